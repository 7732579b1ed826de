"""What is allowed in a policy and is still a mistake: rules that can never apply, terms that no one can meet.

Pure: looks at rules and, where they are known, at declared tools. A warning here never changes a verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from turngate.domain.policy.arguments import ORDERS, ArgumentMatcher
from turngate.domain.policy.measures import bounds_of, measured
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.runs.budgets import EXTEND_BUDGET
from turngate.domain.text.json_pointers import tokens_of
from turngate.domain.text.suggestions import did_you_mean
from turngate.domain.tools.tool import Tool
from turngate.policies.explain import ORDER

# Does one rule cover every call that another one covers? Sound, not complete: a yes is certain, a no is not.
#
# Pure. Only what the linter has to know: a rule that is covered by one that comes before it can never decide anything.


_WILD = frozenset("*?[")


def covers(wide: Rule, narrow: Rule) -> bool:
    """Tell whether ``wide`` certainly matches each call that ``narrow`` matches."""
    return (
        patterns_cover(wide.tools, narrow.tools)
        and patterns_cover(wide.agents, narrow.agents)
        and _workspaces_cover(wide, narrow)
        and all(any(implies(had, wanted) for had in narrow.args) for wanted in wide.args)
        and _commands_cover(wide, narrow)
        and _paths_cover(wide, narrow)
        and _origins_cover(wide, narrow)
    )


def patterns_cover(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Tell whether every name that fits one of the narrow patterns fits one of the wide ones."""
    return all(any(_pattern_covers(one, other) for one in wide) for other in narrow)


def _pattern_covers(wide: str, narrow: str) -> bool:
    if wide in {"*", narrow}:
        return True
    if _WILD.isdisjoint(narrow):
        return fnmatchcase(narrow, wide)
    beginning = wide.removesuffix("*")
    if beginning == wide or not _WILD.isdisjoint(beginning):
        return False
    plain = next(place for place, char in enumerate(narrow) if char in _WILD)
    return narrow[:plain].startswith(beginning)


def _workspaces_cover(wide: Rule, narrow: Rule) -> bool:
    return "*" in wide.workspaces or set(narrow.workspaces) <= set(wide.workspaces)


def _commands_cover(wide: Rule, narrow: Rule) -> bool:
    if not wide.command:
        return True
    same_place = wide.command_at == narrow.command_at
    reads_as_much = wide.verdict != "allow" or wide.stdin or not narrow.stdin
    return bool(narrow.command) and same_place and reads_as_much and set(narrow.command) <= set(wide.command)


def _paths_cover(wide: Rule, narrow: Rule) -> bool:
    if not wide.paths:
        return True
    same_places = set(wide.paths_at) == set(narrow.paths_at)
    return bool(narrow.paths) and same_places and set(narrow.paths) <= set(wide.paths)


def _origins_cover(wide: Rule, narrow: Rule) -> bool:
    if wide.from_ is None:
        return True
    return wide.from_ == narrow.from_ and ("" in wide.from_at or set(narrow.from_at) <= set(wide.from_at))


def implies(had: ArgumentMatcher, wanted: ArgumentMatcher) -> bool:
    """Tell whether a call that meets ``had`` certainly meets ``wanted``."""
    if had.at != wanted.at:
        return False
    if had == wanted:
        return True
    if had.op in {"eq", "in"}:
        values = had.value if had.op == "in" and isinstance(had.value, list) else [had.value]
        return all(value is not None and _meets(wanted, value) for value in values)
    if wanted.op == "exists":
        return had.op in ORDERS
    if had.op in ORDERS and wanted.op in ORDERS:
        inner, outer = bounds_of(had.op, had.value), bounds_of(wanted.op, wanted.value)
        return all(any(_bound_within(one, other) for one in inner) for other in outer)
    return False


def _meets(wanted: ArgumentMatcher, value: Any) -> bool:
    """Ask the matcher itself, about arguments that hold nothing but this value where it looks."""
    tokens = tokens_of(wanted.at)
    arguments: Any = value
    for token in reversed(tokens):
        arguments = {token: arguments}
    return wanted.match(arguments) == "yes"


def _bound_within(had: tuple[str, Any], wanted: tuple[str, Any]) -> bool:
    """Tell whether what is within one bound is within the other one."""
    (op, value), (other_op, other_value) = had, wanted
    inner, outer = measured(value), measured(other_value)
    if op[0] != other_op[0] or inner is None or outer is None:
        return False
    reaches = op in {"le", "ge"} and other_op in {"lt", "gt"}
    return bool(inner.compared("lt" if op[0] == "l" else "gt", outer)) or (
        not reaches and bool(inner.compared("eq", outer))
    )


_RUNS_THE_CALL: Final = frozenset({"approve", "edit"})


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Something in one rule that does not do what it seems to say, with the fix."""

    rule: str
    message: str


def doubts(policy: Policy, tools: Mapping[str, Sequence[Tool]] | None = None) -> list[Doubt]:
    """Return what is doubtful in a policy, in the file's order.

    ``tools``: agent → its tools, of the app that the policy is for; None: they are not known.
    """
    doubts: list[Doubt] = []
    for place, rule in enumerate(policy.rule):
        messages = [*_never_reached(policy, place, rule), *_terms(rule)]
        if tools is not None:
            messages += _against(rule, tools)
        doubts.extend(Doubt(rule=rule.name, message=message) for message in messages)
    return doubts


def _never_reached(policy: Policy, place: int, rule: Rule) -> Iterator[str]:
    """Yield which rule decides everything this one covers before its turn; the first such rule."""
    rank = ORDER.index(rule.verdict)
    for other_place, other in enumerate(policy.rule):
        earlier = (ORDER.index(other.verdict), other_place) < (rank, place)
        # A shadow rule decides nothing, so it can only hide another shadow rule.
        if not earlier or (other.shadow and not rule.shadow) or not covers(other, rule):
            continue
        if other.verdict == rule.verdict:
            yield f"it can never apply: {other.name!r} comes before it and matches every call that it matches"
        else:
            yield (
                f"it can never apply: {other.verdict} rules come before {rule.verdict} rules, and {other.name!r} matches "
                f"every call that it matches"
            )
        return


def _terms(rule: Rule) -> Iterator[str]:
    if rule.verdict != "ask":
        return
    if rule.decisions is not None and _RUNS_THE_CALL.isdisjoint(rule.decisions):
        yield f"no one can let the call run: decisions = {list(rule.decisions)} has neither approve nor edit"
    if not rule.starter_may_decide and not rule.roles and len(set(rule.people)) == 1:
        yield f"no one may decide where {rule.people[0]} started the run: name someone else beside them, or a role"
    if rule.grantable and rule.risk == "high":
        yield "grantable = true has no effect: its risk is high, so each call is decided by itself"
    if rule.on_expiry == "park" and rule.ladder and rule.expires_after_seconds is None:
        yield "on_expiry = 'park' counts only where the agent's own limit lets requests expire: set expires_after_seconds"


def _against(rule: Rule, tools: Mapping[str, Sequence[Tool]]) -> Iterator[str]:
    """Yield what does not fit the app: no such agent, no such tool, no such argument."""
    agents = [agent for agent in tools if _any_fits(rule.agents, agent)]
    if not agents:
        yield f"no agent of the app is called {' or '.join(rule.agents)}: it has {', '.join(tools) or 'none'}"
        return
    having = {tool.name: tool for agent in agents for tool in tools[agent]}
    yield from _unknown_tools(rule, having.keys())
    matched = {name: tool for name, tool in having.items() if _any_fits(rule.tools, name)}
    if not matched:
        return
    if rule.verdict == "allow" and all(tool.kind == "interaction" for tool in matched.values()):
        yield "it can never apply: its tools ask people, and no rule can answer in their place"
    yield from _unknown_arguments(rule, matched)
    if rule.from_ == "untrusted" and not _any_untrusted(tools):
        yield "it can never apply: no tool of the app is declared with untrusted=True"


def _any_untrusted(tools: Mapping[str, Sequence[Tool]]) -> bool:
    return any(tool.untrusted for of_agent in tools.values() for tool in of_agent)


def _unknown_tools(rule: Rule, names: Collection[str]) -> Iterator[str]:
    of = "no agent of the app" if rule.agents == ["*"] else f"no agent called {' or '.join(rule.agents)}"
    for pattern in rule.tools:
        if not any(fnmatchcase(name, pattern) for name in (*names, EXTEND_BUDGET)):  # the engine's own, of every agent
            known = ", ".join(sorted(names)) or "none"
            yield f"{of} has a tool that fits {pattern!r}: they have {known}.{did_you_mean(pattern, names)}"


def _unknown_arguments(rule: Rule, matched: Mapping[str, Tool]) -> Iterator[str]:
    if _any_fits(rule.tools, EXTEND_BUDGET):  # it has arguments of its own
        return
    for pointer in _pointers(rule):
        first = tokens_of(pointer)[0] if pointer else ""
        if first and not any(_may_have(tool, first) for tool in matched.values()):
            yield f"none of its tools ({', '.join(matched)}) has an argument {first!r}, which it looks at ({pointer})"


def _pointers(rule: Rule) -> Iterable[str]:
    at_command = [rule.command_at] if rule.command else []
    at_paths = rule.paths_at if rule.paths else []
    at_origins = rule.from_at if rule.from_ else []
    return dict.fromkeys([*(matcher.at for matcher in rule.args), *at_command, *at_paths, *at_origins])


def _may_have(tool: Tool, argument: str) -> bool:
    schema: Mapping[str, Any] = tool.manifest.parameters
    properties = schema.get("properties")
    # Where the schema says more than properties do, nothing is certain.
    if not isinstance(properties, dict) or {"anyOf", "oneOf", "allOf", "$ref", "patternProperties"} & schema.keys():
        return True
    return argument in properties or bool(schema.get("additionalProperties", False))


def _any_fits(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
