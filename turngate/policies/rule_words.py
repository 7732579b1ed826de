"""What a rule means, in one sentence. Pure.

Every condition and every term of the rule is in it: what has no words here is said as it is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.policy import Rule
from turngate.domain.policy.terms import AskTerms
from turngate.domain.text.durations import exact_span

OPERATOR_WORDS: Final[Mapping[str, str]] = {
    "eq": "is",
    "ne": "is not",
    "lt": "is less than",
    "le": "is at most",
    "gt": "is more than",
    "ge": "is at least",
    "between": "is between",
    "in": "is one of",
    "not_in": "is none of",
    "contains": "contains",
    "starts_with": "begins with",
    "ends_with": "ends with",
    "glob": "matches the pattern",
    "exists": "is there",
    "absent": "is not there",
}
_IN_WORDS: Final = frozenset(
    {"name", "verdict", "shadow", "reason", "risk", "tools", "agents", "args", "command", "command_at", "paths"}
    | {"paths_at", "workspaces", "from", "from_at", "total", "quorum", "roles", "people", "starter_may_decide"}
    | {"expires_after_seconds", "grace_seconds"}
)


def in_a_sentence(rule: Rule) -> str:
    """Return what the rule does: ``Calls of refund whose /order begins with "A-" run without asking.``."""
    written: dict[str, Any] = rule.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    conditions = [*(_condition(each) for each in rule.args), *_other_conditions(rule)]
    conditions += [f"{name} = {_json(value)}" for name, value in written.items() if name not in _IN_WORDS]
    which = f" whose {' and '.join(conditions)}" if conditions else ""
    calls = f"calls of {_tools(rule.tools)}{_agents(rule.agents)}{which} {_consequence(rule)}"
    if rule.shadow:
        return f"It is only recorded that {calls}."
    return f"{calls[0].upper()}{calls[1:]}."


def operator_words(op: str) -> str:
    """Return an operator in words."""
    return OPERATOR_WORDS.get(op, op.replace("_", " "))


def _tools(tools: Sequence[str]) -> str:
    return "any tool" if "*" in tools else " or ".join(tools)


def _agents(agents: Sequence[str]) -> str:
    if "*" in agents:
        return ""
    return f" by agent{'s' if len(agents) > 1 else ''} {' or '.join(agents)}"


def _condition(matcher: ArgumentMatcher) -> str:
    where = matcher.at or "arguments"
    words = f"{where} {operator_words(matcher.op)}"
    if "value" not in matcher.model_fields_set:
        return words
    value = matcher.value
    if matcher.op in {"in", "not_in"} and isinstance(value, list):
        return f"{words} {', '.join(_json(each) for each in value)}"
    if matcher.op == "between" and isinstance(value, list):
        return f"{words} {' and '.join(_json(each) for each in value)}"
    return f"{words} {_json(value)}"


def _other_conditions(rule: Rule) -> list[str]:
    conditions = []
    if rule.command:
        words = "consists of commands like" if rule.verdict == "allow" else "has a command like"
        conditions.append(f"command line at {rule.command_at} {words} {_any_of(rule.command)}")
    if rule.paths:
        conditions.append(f"path at {' or '.join(rule.paths_at)} is in {_any_of(rule.paths)}")
    if rule.from_ is not None:
        where = "any argument" if "" in rule.from_at else " or ".join(rule.from_at)
        origin = "may be written by strangers" if rule.from_ == "untrusted" else "comes from nowhere"
        conditions.append(f"value at {where} {origin}")
    if "*" not in rule.workspaces:
        conditions.append(f"workspace is {_any_of(rule.workspaces)}")
    return conditions


def _any_of(words: Sequence[str]) -> str:
    return " or ".join(_json(each) for each in words)


def _consequence(rule: Rule) -> str:
    if rule.verdict == "allow":
        return "run without asking" if rule.total is None else f"run without asking, up to {rule.total.words}"
    if rule.verdict == "deny":
        return "are denied"
    risk = "" if rule.risk is None else f", as {rule.risk} risk"
    grace = rule.terms.grace_seconds
    start = f", and start {exact_span(grace)} after the approval" if grace else ""
    return f"wait for {_people(rule.terms)}{risk}{start}"


def _people(terms: AskTerms) -> str:
    who = [*(f"an {role}" if role[0] in "ao" else f"a {role}" for role in terms.roles), *terms.people]
    words = f"{terms.quorum} people" if terms.quorum > 1 else "a person"
    if who:
        words += f" ({' or '.join(who)})"
    if not terms.starter_may_decide:
        words += ", not the one who started the run"
    if terms.expires_after_seconds is not None:
        words += f", for at most {exact_span(terms.expires_after_seconds)}"
    return words


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
