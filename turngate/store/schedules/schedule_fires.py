"""Fires of schedules: each instant of a timetable has one outcome, however often it is reported (I5).

The same transaction that records a run records its fire, so a fire that is reported again finds the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import func, insert, or_, select, update

from turngate.domain.agents.schedules import FireStatus, has_fire
from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import derived_id
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import messages, runs
from turngate.store.runs.new_run import NewRun, open_run
from turngate.store.schedules import schedules
from turngate.store.schedules.schedules import Schedule
from turngate.store.tables import erasures, schedule_fires
from turngate.store.tables import runs as runs_table


@dataclass(frozen=True, kw_only=True)
class Fire:
    """What happened to one fire. ``fire_at``: its instant on the timetable. ``run_id``: the run that it opened.

    ``reason``: why it opened none. ``fired_by``: who asked for an extra fire; None: the clock.
    """

    schedule_id: str
    fire_at: str
    outcome: FireStatus
    run_id: str | None = None
    reason: str = ""
    fired_by: str | None = None
    noted_at: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentAtFire:
    """The agent as the process that opens the run knows it. ``model``: its own."""

    version: str
    model: str


async def settle(
    conn: Connection, schedule_id: str, fire_at: datetime, agent: AgentAtFire | None, *, by: str | None = None
) -> Fire | None:
    """Open the run of a fire, or store why there is none; a fire that is settled already is returned as it is.

    Args:
        conn: a write transaction.
        schedule_id: the schedule.
        fire_at: the fire's instant on the timetable.
        agent: None: the caller's app has no agent of that name.
        by: who asked for an extra fire; None: the clock.

    Returns:
        What happened to it; ``waiting``: try again later. None: nothing to do, because the schedule is gone or
        paused, or its timetable has no such instant. An extra fire never waits: while a run is live it is ``skipped``, with that
        run as ``reason``, and not stored.

    Raises sqlalchemy's IntegrityError when someone starts a run in the same conversation at this moment: try again.
    """
    # Locked first: of two callers with the same fire, the second one reads what the first one wrote.
    schedule = await schedules.get(conn, schedule_id, hold=True)
    before = await get(conn, schedule_id, fire_at)
    if before is not None and before.outcome != "waiting":
        return before
    new = Fire(schedule_id=schedule_id, fire_at=as_text(fire_at), outcome="waiting", fired_by=by)
    if schedule is None or not _fires(schedule, by):
        if before is not None:
            skipped = replace(new, outcome="skipped", reason="the schedule was paused or deleted")
            await _note(conn, schedule, skipped, before)
        return None
    is_new = before is None and by is None
    if is_new and not _is_on_timetable(schedule, fire_at):
        return None
    if is_new and fire_at > now():
        return replace(new, reason="it is still to come")
    if is_new and _is_late(schedule, fire_at):
        late = f"no worker took it within {schedule.catch_up_seconds} s"
        return await _note(conn, schedule, replace(new, outcome="missed", reason=late), before)
    return await _settle_due(conn, schedule, new, before, agent)


async def _settle_due(
    conn: Connection, schedule: Schedule, new: Fire, before: Fire | None, agent: AgentAtFire | None
) -> Fire:
    """Open the run of a fire whose time has come, or store why there is none."""
    if agent is None:
        unknown = f"the worker's app has no agent {schedule.agent!r}"
        return await _note(conn, schedule, replace(new, outcome="missed", reason=unknown), before)
    if await _is_erased(conn, schedule):
        gone = f"the content of conversation {schedule.conversation_id}, which it continues, was erased"
        return await _note(conn, schedule, replace(new, outcome="missed", reason=gone), before)
    live = await _live(conn, schedule)
    if live is not None:
        return await _wait_or_skip(conn, schedule, new, before, live)
    opened = replace(new, outcome="opened", run_id=derived_id("run", schedule.id, new.fire_at))
    await _open(conn, schedule, opened, agent)
    return await _note(conn, schedule, opened, before)


def _is_on_timetable(schedule: Schedule, fire_at: datetime) -> bool:
    """Tell whether the stored timetable has this instant, since it last changed. A message can say anything (I13)."""
    return as_text(fire_at) > max(schedule.created_at, schedule.fires_after) and has_fire(schedule.times, fire_at)


def _is_late(schedule: Schedule, fire_at: datetime) -> bool:
    """Tell whether no one took a fire in time. Its jitter is not a delay."""
    times = schedule.times
    return now() - fire_at > timedelta(seconds=schedule.catch_up_seconds + times.jitter_seconds)


async def _is_erased(conn: Connection, schedule: Schedule) -> bool:
    """Tell whether all content of the conversation that a schedule continues was erased."""
    if schedule.conversation_id is None:
        return False
    of_all = erasures.c.conversation_id == schedule.conversation_id, erasures.c.what == "all"
    return (await conn.execute(select(erasures.c.id).where(*of_all).limit(1))).first() is not None


def _fires(schedule: Schedule, by: str | None) -> bool:
    """Tell whether a schedule starts runs. A paused one does so only for an extra fire."""
    return schedule.deleted_at is None and (schedule.paused_at is None or by is not None)


async def _wait_or_skip(conn: Connection, schedule: Schedule, new: Fire, before: Fire | None, live: str) -> Fire:
    """Return what happens to a fire while the run of an earlier one is live: it waits, or is skipped."""
    if new.fired_by is not None:
        return replace(new, outcome="skipped", reason=live)
    delayed = replace(new, reason=f"run {live} was still live")
    if schedule.overlap == "buffer_one":
        return before or await _buffer(conn, schedule, delayed)
    return await _note(conn, schedule, replace(delayed, outcome="skipped"), before)


async def get(conn: Connection, schedule_id: str, fire_at: datetime) -> Fire | None:
    """Return what happened to the fire of this instant; None: it was not reported yet."""
    query = select(schedule_fires).where(
        schedule_fires.c.schedule_id == schedule_id, schedule_fires.c.fire_at == as_text(fire_at)
    )
    row = (await conn.execute(query)).mappings().one_or_none()
    return Fire(**row) if row else None


async def newest(conn: Connection, schedule_id: str, *, limit: int) -> list[Fire]:
    """Return a schedule's fires, newest first."""
    query = select(schedule_fires).where(schedule_fires.c.schedule_id == schedule_id)
    rows = await conn.execute(query.order_by(schedule_fires.c.fire_at.desc()).limit(limit))
    return [Fire(**row) for row in rows.mappings()]


async def counts(conn: Connection, schedule_id: str) -> dict[str, int]:
    """Return outcome → how many fires of a schedule have it, for the outcomes that any has."""
    query = select(schedule_fires.c.outcome, func.count().label("many")).where(
        schedule_fires.c.schedule_id == schedule_id
    )
    return {row.outcome: int(row.many) for row in await conn.execute(query.group_by(schedule_fires.c.outcome))}


async def unstarted(conn: Connection, *, before: datetime) -> list[runs.Run]:
    """Return the live runs that fires opened before this instant and that have no step yet, oldest first."""
    query = select(runs_table).where(
        runs_table.c.status == "running",
        runs_table.c.schedule_id.is_not(None),
        runs_table.c.step == 0,
        runs_table.c.created_at < as_text(before),
    )
    rows = await conn.execute(query.order_by(runs_table.c.created_at, runs_table.c.id))
    return [runs.Run(**row) for row in rows.mappings()]


async def _buffer(conn: Connection, schedule: Schedule, fire: Fire) -> Fire:
    """Let a fire wait. Only one does: an earlier one that still waits has lost its workflow, with Temporal's database."""
    own = schedule_fires.c.schedule_id == schedule.id, schedule_fires.c.outcome == "waiting"
    for row in (await conn.execute(select(schedule_fires).where(*own))).mappings().all():
        lost = Fire(**row)
        await _note(conn, schedule, replace(lost, outcome="skipped", reason="a later fire waits in its place"), lost)
    return await _note(conn, schedule, fire, None)


async def _live(conn: Connection, schedule: Schedule) -> str | None:
    """Return the id of a live run that the schedule does not let a new one overlap with, or None."""
    if schedule.overlap == "allow":
        return None
    own = runs_table.c.schedule_id == schedule.id
    if schedule.conversation_id is not None:  # also one that someone else started in it
        own = or_(own, runs_table.c.conversation_id == schedule.conversation_id)
    query = select(runs_table.c.id).where(own, runs_table.c.status == "running").limit(1)
    return (await conn.execute(query)).scalar_one_or_none()


async def _open(conn: Connection, schedule: Schedule, fire: Fire, agent: AgentAtFire) -> None:
    """Record the fire's run: its conversation, if it begins one, its first message and its first event."""
    run_id = fire.run_id or ""
    conversation_id = schedule.conversation_id or derived_id("conv", run_id)
    begins = schedule.conversation_id is None
    new = NewRun(
        id=run_id,
        conversation_id=conversation_id,
        agent=schedule.agent,
        agent_version=agent.version,
        model=schedule.model or agent.model,
        workspace=schedule.workspace,
        task=schedule.input,
        input_message_id=derived_id("msg", run_id, "input"),
        started_by=schedule.created_by,
        attended=False,
        unattended_asks=schedule.unattended_asks,
        schedule_id=schedule.id,
    )
    payload = {"schedule_id": schedule.id, "unattended": schedule.unattended_asks, "fired_by": fire.fired_by}
    if fire.fired_by is not None:
        payload["by"] = fire.fired_by
    head = None if begins else await messages.head_of(conn, conversation_id)
    message = new.input_after(head, user_message(schedule.input))
    await open_run(conn, new, message, details=payload, begins_conversation=begins)


async def _note(conn: Connection, schedule: Schedule | None, fire: Fire, before: Fire | None) -> Fire:
    """Store what happened to a fire, and append its event."""
    noted = replace(fire, noted_at=as_text(now()))
    if before is None:
        await conn.execute(insert(schedule_fires).values(**vars(noted)))
    else:
        own = schedule_fires.c.schedule_id == fire.schedule_id, schedule_fires.c.fire_at == fire.fire_at
        await conn.execute(update(schedule_fires).where(*own).values(**vars(noted)))
    name = "" if schedule is None else schedule.name
    payload = {"schedule_id": fire.schedule_id, "name": name, "fire_at": fire.fire_at}
    known = {"run_id": fire.run_id, "reason": fire.reason, "by": fire.fired_by}
    payload.update({key: value for key, value in known.items() if value})
    kind = {"opened": "fired", "waiting": "waiting"}.get(fire.outcome, fire.outcome)
    await events.append(conn, events.SYSTEM, [(f"schedule.{kind}", payload)])
    return noted
