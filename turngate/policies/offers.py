"""A rule made of decisions: the narrowest one that covers calls which people approved, and none that they did not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from os.path import commonprefix
from typing import Any, Final

from pydantic import JsonValue, ValidationError

from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.grants import exact_pattern, same_json
from turngate.domain.policy.limits import COMMANDS
from turngate.domain.policy.policy import Rule
from turngate.domain.requests import Verb
from turngate.domain.text.json_pointers import decode_arguments, pointer_of
from turngate.policies.facts import call_facts
from turngate.policies.rule_text import rule_text

MOST_VALUES: Final = 5
"""Values of one argument that are named one by one."""
FEWEST_CHARS: Final = 2
"""Of a common beginning: one letter says nothing."""
NAME_CHARS: Final = 60
_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DecidedCall:
    """A call of one tool by one agent, and what a person decided. ``input``: None: it is too long to be compared."""

    input: str | None
    verb: Verb


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A rule that would let calls like one run. ``approved``: how many calls like it people approved."""

    rule: Rule
    approved: int


def narrowest_rule(
    tool: str, agent: str, raw_input: str, decided: Sequence[DecidedCall], *, least: int
) -> Offer | None:
    """Return the narrowest allow rule that covers a call and at least ``least`` approved ones like it; None: there is none.

    Alike are calls of the same tool and agent with the same arguments, all equal but at most one. Where one differs, the rule
    names its values, a range of numbers, or how its texts begin. No rule covers a decided call that was not approved as it was.
    """
    this = _arguments(raw_input)
    if this is None:
        return None
    known = _Known.of(this, decided)
    best: Offer | None = None
    for differing in (None, *this):  # none first: of rules for as many calls, the one with every argument fixed
        alike = [each for each in known.approved if _same_but(each, this, differing)]
        if len(alike) < max(least, 0 if best is None else best.approved + 1):
            continue
        rule = _rule(tool, agent, this, differing, alike, known.other_names)
        if rule is not None and not known.stops(rule, tool=tool, agent=agent):
            best = Offer(rule=rule, approved=len(alike))
    return best


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What people decided. ``approved``: calls with the same names of arguments. ``stopped``: calls not approved as they were.

    ``other_names``: arguments that only other calls have.
    """

    approved: Sequence[Arguments]
    stopped: Sequence[str | None]
    other_names: Sequence[str]

    @classmethod
    def of(cls, this: Arguments, decided: Sequence[DecidedCall]) -> _Known:
        read = [(call, None if call.input is None else _arguments(call.input)) for call in decided]
        with_arguments = [(call, each) for call, each in read if each is not None]
        return cls(
            approved=[each for call, each in with_arguments if call.verb == "approve" and each.keys() == this.keys()],
            stopped=[call.input for call in decided if call.verb != "approve"],
            other_names=sorted({name for _call, each in with_arguments for name in each if name not in this}),
        )

    def stops(self, rule: Rule, *, tool: str, agent: str) -> bool:
        """Tell whether a rule covers a call that was stopped, or may: then it is not narrow enough."""
        return any(_covers(rule, each, tool=tool, agent=agent) for each in self.stopped)


def _arguments(raw_input: str) -> Arguments | None:
    try:
        decoded = decode_arguments(raw_input)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _same_but(one: Arguments, other: Arguments, differing: str | None) -> bool:
    return all(same_json(value, other[name]) for name, value in one.items() if name != differing)


def _rule(
    tool: str,
    agent: str,
    this: Arguments,
    differing: str | None,
    alike: Sequence[Arguments],
    others: Iterable[str],
) -> Rule | None:
    conditions: list[dict[str, Any]] = []
    try:
        fixed = exact_pattern(tool, this, open_arguments=[] if differing is None else [differing]).fixed
        conditions = [{"at": pointer_of([name]), "op": "eq", "value": value} for name, value in fixed.items()]
        if differing is not None:
            values = [exact_pattern(tool, {differing: each[differing]}).fixed[differing] for each in (this, *alike)]
            condition = _condition(differing, values)
            if condition is None:
                return None
            conditions.append({"at": pointer_of([differing]), **condition})
        conditions += [{"at": pointer_of([name]), "op": "absent"} for name in others]
        rule = Rule.model_validate(
            {
                "name": f"{tool} as approved"[:NAME_CHARS],
                "verdict": "allow",
                "tools": [tool],
                "agents": [agent],
                "args": conditions,
            }
        )
        rule_text(rule)
    except (InvalidInputError, ValidationError, ConfigurationError):  # null, or a value that no rule can hold
        return None
    return rule


def _condition(name: str, values: Sequence[JsonValue]) -> Mapping[str, Any] | None:
    """Return the narrowest condition that all these values of one argument meet; None: none says enough.

    How a text begins is offered for identifiers only: what follows may turn a command, path, address or sentence into another.
    """
    different: list[JsonValue] = []
    for value in values:
        if not any(same_json(value, each) for each in different):
            different.append(value)
    if len(different) <= MOST_VALUES:
        return {"op": "in", "value": different}
    numbers = [each for each in different if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == len(different):
        return {"op": "between", "value": [min(numbers), max(numbers)]}
    texts = [each for each in different if isinstance(each, str) and _IDENTIFIER.fullmatch(each)]
    beginning = commonprefix(texts)  # noqa: RUF071 - characters are meant: these are no paths
    if name.casefold() in COMMANDS or len(texts) < len(different) or len(beginning) < FEWEST_CHARS:
        return None
    return {"op": "starts_with", "value": beginning}


def _covers(rule: Rule, raw_input: str | None, *, tool: str, agent: str) -> bool:
    """Tell whether a rule covers a call, or may."""
    if raw_input is None:
        return True
    facts = cache(partial(call_facts, raw_input, None))
    return rule.matches(tool=tool, agent=agent, facts=facts) != "no"
