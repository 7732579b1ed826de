"""What a rule means, in one sentence. Pure.

Every condition and every term of the rule is in it: no key of a rule lacks words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from turngate.domain.policy.arguments import ArgumentMatcher
from turngate.domain.policy.policy import Rule
from turngate.domain.policy.terms import AskTerms, Rung
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
IN_WORDS: Final = frozenset(
    {
        "name",
        "verdict",
        "shadow",
        "reason",
        "risk",
        "tools",
        "agents",
        "args",
        "command",
        "command_at",
        "stdin",
        "paths",
    }
    | {"paths_at", "workspaces", "from_", "from_at", "total", "quorum", "roles", "people", "starter_may_decide"}
    | {
        "expires_after_seconds",
        "grace_seconds",
        "on_expiry",
        "fresh_for_seconds",
        "decisions",
        "ladder",
        "grantable",
        "judge",
    }
)
"""Fields of a rule that the sentence says; name and reason are shown beside it."""


def in_a_sentence(rule: Rule) -> str:
    """Return what the rule does: ``Calls of refund whose /order begins with "A-" run without asking.``."""
    conditions = [*(_condition(each) for each in rule.args), *_other_conditions(rule)]
    which = f" whose {' and '.join(conditions)}" if conditions else ""
    calls = f"calls of {_tools(rule.tools)}{_agents(rule.agents)}{which} {_consequence(rule)}"
    first = f"It is only recorded that {calls}." if rule.shadow else f"{calls[0].upper()}{calls[1:]}."
    return " ".join([first, *_terms(rule.terms)])


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
        stdin = ", which may read a file or a pipe" if rule.stdin else ""
        conditions.append(f"command line at {rule.command_at} {words} {_any_of(rule.command)}{stdin}")
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


def _terms(terms: AskTerms) -> list[str]:
    """Return the sentences about the terms that the first one doesn't say."""
    sentences = []
    if terms.decisions is not None:
        sentences.append(f"The only answers are {' and '.join(terms.decisions)}.")
    if terms.on_expiry == "park":
        sentences.append("When their time is over, they wait on without a clock.")
    sentences += [_rung(each) for each in terms.ladder]
    if terms.fresh_for_seconds is not None:
        sentences.append(f"An approval counts for {exact_span(terms.fresh_for_seconds)}.")
    if terms.grantable:
        sentences.append("A grant may answer in place of a person.")
    if terms.judge is not None:
        sentences.append("The judge may let them run in place of a person.")
    return sentences


def _rung(rung: Rung) -> str:
    after = f"After {exact_span(rung.after_seconds)} without a decision"
    who = " and ".join([*(f"every {role}" for role in rung.roles), *rung.people])
    match rung.do:
        case "remind":
            return f"{after}, those who may decide are reminded."
        case "escalate":
            return f"{after}, {who} may decide, too."
        case "delegate":
            return f"{after}, only {who} may decide."


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
