"""Comparing two runs: which past they share, which steps and calls correspond, and what differs in each.

Pure: knows facts of steps and calls, not where they are stored or shown.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, Literal, get_args

Aspect = Literal["arguments", "verdict", "decision", "execution", "result"]
"""What two calls of the same tool can differ in."""
ASPECTS: Final[tuple[Aspect, ...]] = get_args(Aspect)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Steps of one run, from the one that follows ``after`` up to ``through``; None: to its end."""

    run_id: str
    after: int = 0
    through: int | None = None


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Two runs without what they share. ``shared``: None when neither continues from the other or from a third one."""

    shared: Stretch | None
    run: Sequence[Stretch]
    other: Sequence[Stretch]


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """What is compared of a call: values that are equal when they mean the same."""

    tool_name: str
    aspects: Mapping[Aspect, Hashable]


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What is compared of a step. ``text``: what the model wrote beside its calls, and its corrective message."""

    text: Hashable
    calls: Sequence[CallFacts]


@dataclass(frozen=True, kw_only=True)
class CallPair:
    """Two calls by their places (from 0) in their steps; None: that step has no such call, and nothing is in ``differs``."""

    run: int | None
    other: int | None
    differs: tuple[Aspect, ...] = ()

    @property
    def same(self) -> bool:
        """Both are there, and nothing differs."""
        return self.run is not None and self.other is not None and not self.differs


@dataclass(frozen=True, kw_only=True)
class StepPair:
    """Two steps by their places (from 0) after the shared past; None: that run took no such step."""

    run: int | None
    other: int | None
    text_differs: bool
    calls: Sequence[CallPair]

    @property
    def same(self) -> bool:
        """Both were taken, said the same, and their calls are the same."""
        both = self.run is not None and self.other is not None
        return both and not self.text_differs and all(pair.same for pair in self.calls)


def apart(run: Sequence[Stretch], other: Sequence[Stretch]) -> Apart:
    """Return what two runs share, and the steps that each took after that.

    Args:
        run: its lineage: the oldest run first, each up to the step where the next one left it, the run itself last. Not
            empty.
        other: the same of the other one.
    """
    places = {stretch.run_id: place for place, stretch in enumerate(other)}
    for place in range(len(run) - 1, -1, -1):
        ours = run[place]
        if ours.run_id in places:
            there = places[ours.run_id]
            theirs = other[there]
            ends = [each.through for each in (ours, theirs) if each.through is not None]
            left_at = min(ends, default=None)
            return Apart(
                shared=Stretch(run_id=ours.run_id, through=left_at),
                run=_own_part(left_at, ours, run[place + 1 :]),
                other=_own_part(left_at, theirs, other[there + 1 :]),
            )
    return Apart(shared=None, run=run[-1:], other=other[-1:])


def align(run: Sequence[StepFacts], other: Sequence[StepFacts]) -> list[StepPair]:
    """Return the steps side by side, the n-th of one beside the n-th of the other."""
    return [
        StepPair(
            run=None if ours is None else place,
            other=None if theirs is None else place,
            text_differs=ours is not None and theirs is not None and ours.text != theirs.text,
            calls=align_calls(ours.calls if ours else (), theirs.calls if theirs else ()),
        )
        for place, (ours, theirs) in enumerate(zip_longest(run, other))
    ]


def align_calls(run: Sequence[CallFacts], other: Sequence[CallFacts]) -> list[CallPair]:
    """Return the calls side by side: in the order of the first step, then what only the second has.

    Calls of one tool belong together. Those with the same arguments are paired first, so that one call more before them
    does not make all of them differ; the rest are paired by their order. Takes time linear in the number of calls.
    """
    matches: dict[int, int] = {}
    for keys in (_by_arguments, _by_name):
        free: dict[Hashable, list[int]] = {}
        taken = set(matches.values())
        for place in range(len(other) - 1, -1, -1):
            if place not in taken:
                free.setdefault(keys(other[place]), []).append(place)
        for place, call in enumerate(run):
            if place not in matches and free.get(keys(call)):
                matches[place] = free[keys(call)].pop()
    pairs = [_pair(place, call, matches.get(place), other) for place, call in enumerate(run)]
    taken = set(matches.values())
    return pairs + [CallPair(run=None, other=place) for place in range(len(other)) if place not in taken]


def json_meaning(text: str) -> str:
    """Return a text that is equal for two JSON texts when they mean the same.

    For what is no JSON, or nests some hundred levels deep, it is the text itself. Blanks and the order of members do not
    count. Numbers count as written: ``1`` is not ``1.0``, and no digit is lost. A key that is given twice counts as often.
    """
    try:
        read = json.loads(
            text, parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_Members
        )
        return _written(read)
    except (ValueError, RecursionError):
        return text


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """An object's members, in the order they were sent."""


def _written(value: Any) -> str:
    # A flat text, no nested tuple: comparing those would run into the recursion limit where reading them did not.
    match value:
        case _Members():
            members = sorted(value, key=_name)
            return "{" + ",".join(f"{json.dumps(name)}:{_written(each)}" for name, each in members) + "}"
        case list():
            return "[" + ",".join(_written(each) for each in value) + "]"
        case _Number():
            return str(value)
        case _:
            return json.dumps(value)


def _name(member: tuple[str, Any]) -> str:
    return member[0]


def _own_part(left_at: int | None, first: Stretch, rest: Iterable[Stretch]) -> list[Stretch]:
    """Return a run's stretches after the shared past."""
    if left_at is None or first.through == left_at:
        return list(rest)
    return [Stretch(run_id=first.run_id, after=left_at, through=first.through), *rest]


def _by_arguments(call: CallFacts) -> Hashable:
    return call.tool_name, call.aspects["arguments"]


def _by_name(call: CallFacts) -> Hashable:
    return call.tool_name


def _pair(place: int, call: CallFacts, beside: int | None, other: Sequence[CallFacts]) -> CallPair:
    if beside is None:
        return CallPair(run=place, other=None)
    theirs = other[beside].aspects
    differs = tuple(aspect for aspect in ASPECTS if call.aspects[aspect] != theirs[aspect])
    return CallPair(run=place, other=beside, differs=differs)
