"""Schedules: what the clock starts, in whose name and how. The store has the schedules; Temporal fires them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, insert, or_, select, tuple_, update

from turngate.domain.agents.schedules import ID_PREFIX, Overlap, Timetable
from turngate.domain.requests import UnattendedAsks
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import schedules


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule. ``input``: what each of its runs begins with. ``timetable``: JSON of Timetable.

    ``conversation_id``: the one that its runs continue with; None: each begins its own. ``model``: in place of the agent's;
    None: as the agent says when it fires. ``revision``: from 1, one more with each change. ``created_by``: in whose name
    the runs are started. ``fires_after``: when its timetable was last changed, or it was resumed: no earlier instant of the
    timetable counts. ``removed_at``: when Temporal no longer had it, after it was deleted.
    """

    id: str
    name: str
    agent: str
    input: str
    workspace: str | None
    model: str | None
    conversation_id: str | None
    unattended_asks: UnattendedAsks
    timetable: str
    overlap: Overlap
    catch_up_seconds: int
    notes: str
    created_by: str
    revision: int = 1
    created_at: str = ""
    fires_after: str = ""
    paused_at: str | None = None
    paused_by: str | None = None
    pause_reason: str = ""
    deleted_at: str | None = None
    deleted_by: str | None = None
    removed_at: str | None = None

    @property
    def times(self) -> Timetable:
        """When it fires."""
        return Timetable.model_validate_json(self.timetable)


async def create(conn: Connection, schedule: Schedule) -> Schedule:
    """Store a new schedule. Raises sqlalchemy's IntegrityError when another has its name."""
    at = as_text(now())
    await conn.execute(insert(schedules).values(**{**vars(schedule), "created_at": at, "fires_after": at}))
    created = await get(conn, schedule.id)
    if created is None:  # pragma: no cover - inserted above, in this transaction
        raise RuntimeError(f"schedule {schedule.id} vanished")
    return created


async def get(conn: Connection, schedule_id: str, *, hold: bool = False) -> Schedule | None:
    """Return one schedule, also a deleted one; None: there is none. ``hold``: nothing changes it before this transaction ends."""
    query = select(schedules).where(schedules.c.id == schedule_id)
    return await _one(conn, query.with_for_update() if hold else query)


async def find(conn: Connection, id_or_name: str) -> Schedule | None:
    """Return a schedule by its id, also a deleted one, or by its name."""
    if id_or_name.startswith(ID_PREFIX):
        return await get(conn, id_or_name)
    return await _one(conn, select(schedules).where(schedules.c.name == id_or_name, schedules.c.deleted_at.is_(None)))


async def page(
    conn: Connection, *, limit: int, before: tuple[str, str] | None = None, created_by: str | None = None
) -> list[Schedule]:
    """Return schedules, newest first, without deleted ones.

    ``before``: (created_at, id) of the last one seen. ``created_by`` None: everyone's.
    """
    query = select(schedules).where(schedules.c.deleted_at.is_(None))
    if created_by is not None:
        query = query.where(schedules.c.created_by == created_by)
    if before is not None:
        query = query.where(tuple_(schedules.c.created_at, schedules.c.id) < tuple_(*before))
    query = query.order_by(schedules.c.created_at.desc(), schedules.c.id.desc()).limit(limit)
    return [Schedule(**row) for row in (await conn.execute(query)).mappings()]


async def to_sync(conn: Connection) -> list[Schedule]:
    """Return the schedules that Temporal must have, and the deleted ones that it may still have."""
    query = select(schedules).where(or_(schedules.c.deleted_at.is_(None), schedules.c.removed_at.is_(None)))
    return [Schedule(**row) for row in (await conn.execute(query.order_by(schedules.c.id))).mappings()]


async def change(conn: Connection, schedule: Schedule, **values: Any) -> Schedule:
    """Set these columns and count the change; the caller has locked the schedule. Raises IntegrityError for a taken name."""
    revised = {**values, "revision": schedule.revision + 1}
    times_change = values.get("timetable", schedule.timetable) != schedule.timetable
    if times_change or (schedule.paused_at is not None and values.get("paused_at", schedule.paused_at) is None):
        revised["fires_after"] = as_text(now())
    await conn.execute(update(schedules).where(schedules.c.id == schedule.id).values(**revised))
    return Schedule(**{**vars(schedule), **revised})


async def skip_past(conn: Connection) -> None:
    """Let no instant before now count on any timetable."""
    await conn.execute(update(schedules).values(fires_after=as_text(now())))


async def note_removed(conn: Connection, schedule_id: str) -> None:
    """Record that Temporal no longer has a deleted schedule."""
    query = update(schedules).where(schedules.c.id == schedule_id, schedules.c.deleted_at.is_not(None))
    await conn.execute(query.values(removed_at=as_text(now())))


async def _one(conn: Connection, query: Select[Any]) -> Schedule | None:
    row = (await conn.execute(query)).mappings().one_or_none()
    return Schedule(**row) if row else None
