"""The family of a run, as a tree: who forked, retried or dry-ran what, after which step, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.runs.ownership import only_own
from turngate.approvals_api.runs.views import RUN_TEXTS, run_summary
from turngate.store.database import Connection
from turngate.store.runs import families
from turngate.store.runs.families import Family
from turngate.store.runs.runs import Run
from turngate.wire.explanation import FamilyMember
from turngate.wire.runs import RunSummary

How = Literal["started", "forked", "retried", "dry run"]


@dataclass(frozen=True, kw_only=True)
class Member:
    """A run in its family's tree. ``level``: how many runs are above it there. ``left_out``: forks of it that are not there.

    ``how``: it came to be. ``here``: its page is the one that has the tree.
    """

    run: RunSummary
    level: int
    how: How
    here: bool
    left_out: int = 0

    @property
    def came(self) -> str:
        """Who made it how, after which step. It contains a person's name: escape it before you show it."""
        step = self.run.forked_from_step
        after = "" if self.how == "started" or step is None else f" after step {step}"
        return f"{self.how} by {self.run.started_by}{after}"


async def family_of(conn: Connection, run_id: str) -> list[Member]:
    """Return the tree, each run before its forks; empty: the run has no fork and is none. Raises NotFoundError."""
    family = await families.family_of(conn, await existing_run(conn, run_id))
    if not family.runs:
        return []
    masks = await Masks.of(conn, [run.id for run in family.runs])
    return list(_members(family, masks, run_id))


async def family_for(conn: Connection, reader: Principal, run_id: str) -> list[FamilyMember]:
    """Return the tree as the API has it, of the runs that this principal may name. Raises NotFoundError."""
    return [
        FamilyMember(
            run_id=each.run.id,
            agents=each.run.agents,
            how_it_ended=each.run.how_it_ended or each.run.status,
            came=each.came,
            level=each.level,
            here=each.here,
            left_out=each.left_out,
        )
        for each in await family_of(conn, run_id)
        if not only_own(reader) or each.run.started_by == reader.name
    ]


def _members(family: Family, masks: Masks, here: str) -> Iterator[Member]:
    forks: dict[str, list[Run]] = {run.id: [] for run in family.runs}
    for run in family.runs:
        if run.forked_from_run_id in forks:
            forks[run.forked_from_run_id].append(run)
    rest = [(family.runs[0], 0)]
    while rest:
        run, level = rest.pop()
        below = sorted(forks[run.id], key=lambda each: (each.forked_from_step or 0, each.created_at), reverse=True)
        rest.extend((each, level + 1) for each in below)
        yield Member(
            run=masks.view(run_summary(run), *RUN_TEXTS),
            level=level,
            how=_how(run),
            here=run.id == here,
            left_out=family.forks.get(run.id, 0) - len(below),
        )


def _how(run: Run) -> How:
    if run.is_dry:
        return "dry run"
    if run.forked_from_run_id is None:
        return "started"
    return "retried" if run.is_retry else "forked"
