"""How people decide, per tool and rule: for a team that looks at its own rules, so nothing here names a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from turngate.store.clock import from_text
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import EndedApproval

MOST_ENDED: Final = 1_000
"""Of all tools, the newest. The page says so."""
MOST_GROUPS: Final = 50


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """How the approvals of one tool under one rule ended.

    ``approved``: without edits. ``answered``: by hand. ``unanswered``: no one decided. ``median_seconds``: from the request to
    the decision; None: no one decided any. ``regrets``: approved calls that failed or ended unknown.
    """

    tool_name: str
    rule: str
    approved: int
    edited: int
    rejected: int
    answered: int
    unanswered: int
    median_seconds: float | None
    regrets: int

    @property
    def count(self) -> int:
        """How many requests ended."""
        return self.approved + self.edited + self.rejected + self.answered + self.unanswered


async def how_people_decide(conn: Connection) -> list[Statistics]:
    """Return how the newest approvals ended, by tool and rule, the most asked first; at most :data:`MOST_GROUPS`."""
    groups: defaultdict[tuple[str, str], list[EndedApproval]] = defaultdict(list)
    for each in await requests.newest_ended(conn, limit=MOST_ENDED):
        groups[each.tool_name, each.rule].append(each)
    rows = [_statistics(tool_name, rule, ended) for (tool_name, rule), ended in groups.items()]
    return sorted(rows, key=lambda row: (-row.count, row.tool_name, row.rule))[:MOST_GROUPS]


def _statistics(tool_name: str, rule: str, ended: Sequence[EndedApproval]) -> Statistics:
    verbs = [each.verb for each in ended]
    waits = [
        (from_text(each.decided_at) - from_text(each.created_at)).total_seconds()
        for each in ended
        if each.verb is not None
    ]
    return Statistics(
        tool_name=tool_name,
        rule=rule,
        approved=verbs.count("approve"),
        edited=verbs.count("edit"),
        rejected=verbs.count("reject"),
        answered=verbs.count("respond"),
        unanswered=verbs.count(None),
        median_seconds=median(waits) if waits else None,
        regrets=sum(each.verb in {"approve", "edit"} and each.execution in {"failed", "unknown"} for each in ended),
    )
