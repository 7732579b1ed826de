"""How people decide, per tool and rule: for a team that looks at its own rules, so nothing here names a person."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Final, Literal

from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import EndedApproval

MOST_ENDED: Final = 1_000
"""Of all tools, the newest. The page says so."""
MOST_GROUPS: Final = 50
MOST_PERIODS: Final = 24
PERIODS: Final = (600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Lengths of a period in seconds: the shortest that makes at most :data:`MOST_PERIODS` is taken."""
WAITS: Final = (5, 15, 60, 300, 1_800, 7_200, 86_400)
"""Borders between times to answer, in seconds."""
Answer = Literal["approve", "edit", "taken_back", "reject", "respond", "unanswered"]
ANSWERS: Final[tuple[Answer, ...]] = ("approve", "edit", "taken_back", "reject", "respond", "unanswered")


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How the approvals of one tool under one rule ended.

    ``approved``: without edits. ``taken_back``: approved, and taken back before the call started.
    ``answered``: by hand. ``unanswered``: no one decided. ``median_seconds``: from the request to the decision;
    None: no one decided any. ``median_looked_seconds``: how long they were looked at before they were decided;
    None: of none it is known. ``regrets``: approved calls that failed or ended unknown.
    """

    tool_name: str
    rule: str
    approved: int
    edited: int
    taken_back: int
    rejected: int
    answered: int
    unanswered: int
    median_seconds: float | None
    median_looked_seconds: float | None
    regrets: int

    @property
    def count(self) -> int:
        """How many requests ended."""
        return self.approved + self.edited + self.taken_back + self.rejected + self.answered + self.unanswered


@dataclass(frozen=True, kw_only=True)
class Period:
    """The approvals that were asked for within ``seconds`` from ``begin``. ``counts``: how they ended → how many."""

    begin: datetime
    seconds: int
    counts: Mapping[Answer, int]


@dataclass(frozen=True, kw_only=True)
class Waits:
    """How many decisions took less than ``below`` seconds, and not less than the waits before. ``below`` None: the longest."""

    below: int | None
    count: int


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """How people decide. ``rows``: by tool and rule; ``periods``: over time, the oldest first; ``waits``: by time to answer."""

    rows: list[Statistics]
    periods: list[Period]
    waits: list[Waits]


async def how_people_decide(conn: Connection) -> Decisions:
    """Return how the newest approvals ended."""
    ended = await requests.newest_ended(conn, limit=MOST_ENDED)
    return Decisions(rows=_by_tool_and_rule(ended), periods=periods_of(ended), waits=waits_of(ended))


def _by_tool_and_rule(newest: Sequence[EndedApproval]) -> list[Statistics]:
    """Return the most asked first; at most :data:`MOST_GROUPS`."""
    groups: defaultdict[tuple[str, str], list[EndedApproval]] = defaultdict(list)
    for each in newest:
        groups[each.tool_name, each.rule].append(each)
    rows = [_statistics(tool_name, rule, ended) for (tool_name, rule), ended in groups.items()]
    return sorted(rows, key=lambda row: (-row.count, row.tool_name, row.rule))[:MOST_GROUPS]


def _statistics(tool_name: str, rule: str, ended: Sequence[EndedApproval]) -> Statistics:
    answers = list(map(_answer, ended))
    waits = _waits(ended)
    looks = [each.looked_ms / 1000 for each in ended if each.looked_ms is not None]
    return Statistics(
        tool_name=tool_name,
        rule=rule,
        approved=answers.count("approve"),
        taken_back=answers.count("taken_back"),
        edited=answers.count("edit"),
        rejected=answers.count("reject"),
        answered=answers.count("respond"),
        unanswered=answers.count("unanswered"),
        median_seconds=median(waits) if waits else None,
        median_looked_seconds=median(looks) if looks else None,
        regrets=sum(each.verb in {"approve", "edit"} and each.execution in {"failed", "unknown"} for each in ended),
    )


def _answer(ended: EndedApproval) -> Answer:
    return "taken_back" if ended.taken_back else ended.verb or "unanswered"


def periods_of(ended: Sequence[EndedApproval]) -> list[Period]:
    """Return how many approvals were asked for over time, without gaps; none where none ended."""
    if not ended:
        return []
    asked_at = [from_text(each.created_at).timestamp() for each in ended]
    first, last = int(min(asked_at)), int(max(asked_at))
    length = next((each for each in PERIODS if last // each - first // each < MOST_PERIODS), last - first + 1)
    begin = first // length
    counts = [dict.fromkeys(ANSWERS, 0) for _ in range(begin, last // length + 1)]
    for each, instant in zip(ended, asked_at, strict=True):
        counts[int(instant) // length - begin][_answer(each)] += 1
    return [
        Period(begin=datetime.fromtimestamp((begin + n) * length, UTC), seconds=length, counts=each)
        for n, each in enumerate(counts)
    ]


def waits_of(ended: Sequence[EndedApproval]) -> list[Waits]:
    """Return how long people took to decide; none where no one decided any."""
    waits = _waits(ended)
    if not waits:
        return []
    counts = [0] * (len(WAITS) + 1)
    for each in waits:
        counts[bisect_right(WAITS, each)] += 1
    return [Waits(below=below, count=count) for below, count in zip((*WAITS, None), counts, strict=True)]


def _waits(ended: Sequence[EndedApproval]) -> list[float]:
    return [
        (from_text(each.decided_at) - from_text(each.created_at)).total_seconds()
        for each in ended
        if each.verb is not None
    ]
