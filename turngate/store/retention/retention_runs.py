"""The times that the retention rules are applied: one at a time, by the process that holds it.

After a crash another process continues where that one was.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, insert, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.tables import retention_runs

HOLD_FOR: Final = timedelta(seconds=60)
"""Longer than any one erasure may take, so that a hold is over only when its process is dead."""
_NO_ONE: Final = ""


@dataclass(frozen=True, kw_only=True)
class RetentionRun:
    """One time that the rules were applied. ``ended_at`` None: it has not ended, or its process is dead and another continues it.

    ``counts``: JSON of rule → how much went. ``rule``, ``place``: the rule that is being applied, and the last conversation that
    was looked at for it. ``problem``: why it ended early; "": it did not.
    """

    id: str
    started_at: str
    started_by: str
    ended_at: str | None
    live: int | None
    held_by: str
    held_until: str
    counts: str
    rule: str
    place: str
    problem: str

    @property
    def counted(self) -> dict[str, int]:
        """How much went, by rule."""
        counted: dict[str, int] = json.loads(self.counts)
        return counted

    def is_held(self, at: datetime) -> bool:
        """Tell whether a process works on it, as far as the store says."""
        return self.ended_at is None and self.held_by != _NO_ONE and self.held_until > as_text(at)


async def begin(database: Database, held_by: str, *, by: str, hold_for: timedelta = HOLD_FOR) -> RetentionRun | None:
    """Begin to apply the rules, or continue what a dead process began; None: another process is doing it."""
    at = now()
    new = RetentionRun(
        id=f"rtn_{secrets.token_hex(12)}",
        started_at=as_text(at),
        started_by=by,
        ended_at=None,
        live=1,
        held_by=held_by,
        held_until=as_text(at + hold_for),
        counts="{}",
        rule="",
        place="",
        problem="",
    )
    async with database.write() as conn:
        of_no_one = or_(retention_runs.c.held_by == _NO_ONE, retention_runs.c.held_until <= as_text(at))
        taken = update(retention_runs).where(retention_runs.c.live == 1, of_no_one)
        await conn.execute(taken.values(held_by=held_by, held_until=new.held_until))
        current = await live(conn)
    if current is not None:
        return current if current.held_by == held_by else None
    try:
        async with database.write() as conn:
            await conn.execute(insert(retention_runs).values(**vars(new)))
    except IntegrityError:  # another process began at the same moment
        return None
    return new


async def keep(
    conn: Connection,
    run: RetentionRun,
    *,
    counts: Mapping[str, int],
    rule: str,
    place: str,
    hold_for: timedelta = HOLD_FOR,
) -> RetentionRun | None:
    """Note how far it is, and hold it further; None: it is another process's by now, so this one must stop."""
    moved = replace(
        run,
        held_until=as_text(now() + hold_for),
        counts=json.dumps(counts, sort_keys=True),
        rule=rule,
        place=place,
    )
    values = {"held_until": moved.held_until, "counts": moved.counts, "rule": rule, "place": place}
    changed = update(retention_runs).where(*_mine(run)).values(values)
    return moved if (await conn.execute(changed)).rowcount == 1 else None


async def end(conn: Connection, run: RetentionRun, *, problem: str = "") -> None:
    """End it. Does nothing if it is another process's by now."""
    values = {"live": None, "ended_at": as_text(now()), "problem": problem}
    await conn.execute(update(retention_runs).where(*_mine(run)).values(values))


async def release(conn: Connection, held_by: str) -> None:
    """Let another process continue at once. Does nothing for one that holds none."""
    own = retention_runs.c.live == 1, retention_runs.c.held_by == held_by
    await conn.execute(update(retention_runs).where(*own).values(held_by=_NO_ONE))


async def live(conn: Connection) -> RetentionRun | None:
    """Return the one that has not ended; None: there is none."""
    row = (await conn.execute(select(retention_runs).where(retention_runs.c.live == 1))).mappings().one_or_none()
    return None if row is None else RetentionRun(**row)


async def newest(conn: Connection, *, limit: int, before: tuple[str, str] | None = None) -> list[RetentionRun]:
    """Return them, newest first. ``before``: (started_at, id) of the last one seen."""
    c = retention_runs.c
    query = select(retention_runs).order_by(c.started_at.desc(), c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(c.started_at, c.id) < tuple_(*before))
    return [RetentionRun(**row) for row in (await conn.execute(query)).mappings()]


def _mine(run: RetentionRun) -> tuple[ColumnElement[bool], ...]:
    return retention_runs.c.id == run.id, retention_runs.c.live == 1, retention_runs.c.held_by == run.held_by
