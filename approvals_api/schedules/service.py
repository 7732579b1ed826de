"""Schedules: create, change, pause, resume, delete, run now."""

from __future__ import annotations

import logging
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.gateway.client import BUSY_WAIT
from turngate.approvals_api.idempotency import KeyedChange, once
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs.control import MAX_REASON_CHARS
from turngate.approvals_api.runs.order import require_workspace
from turngate.approvals_api.runs.ownership import (
    require_bounds,
    require_maker,
    require_own_conversation,
    require_own_schedule,
)
from turngate.approvals_api.runs.start import published_agent, start_workflow
from turngate.approvals_api.runs.switch_model import require_known_model
from turngate.approvals_api.runs.views import run_summary
from turngate.approvals_api.schedules.order import as_wanted, check_wanted, columns_of
from turngate.approvals_api.schedules.sync import agree
from turngate.approvals_api.schedules.views import existing_schedule, schedule_detail
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.errors import invalid
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.agents.schedules import ID_PREFIX
from turngate.domain.errors import ConflictError, UnavailableError
from turngate.domain.text.instants import in_utc
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest, secret_of
from turngate.store.runs import messages
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedule_fires import AgentAtFire
from turngate.store.schedules.schedules import Schedule
from turngate.wire.orders import ScheduleChange, ScheduleOrder
from turngate.wire.runs import RunSummary
from turngate.wire.schedules import ScheduleDetail
from turngate.wire.view import View

logger = logging.getLogger(__name__)


class _Created(View):
    """The schedule or run that was created under an Idempotency-Key."""

    id: str


async def check(services: Services, principal: Principal, wanted: ScheduleOrder) -> None:
    """Raise what :func:`create` would of an order, without storing anything. Its name is not compared with others."""
    principal.require("runs:write")
    await check_wanted(wanted, principal)
    await require_bounds(principal, wanted.agent, wanted.workspace)
    await require_workspace(services, wanted.workspace)
    async with services.database.read() as conn:
        await _require_known(conn, wanted)


async def check_change(services: Services, principal: Principal, id_or_name: str, change: ScheduleChange) -> None:
    """Raise what :func:`update` would of a change, without storing anything."""
    async with services.database.read() as conn:
        before = await existing_schedule(conn, id_or_name)
    require_maker(principal, before)
    await check(services, principal, change.applied_to(as_wanted(before)))


async def create(
    services: Services,
    principal: Principal,
    wanted: ScheduleOrder,
    *,
    key: str | None = None,
    paused: bool = False,
) -> ScheduleDetail:
    """Create a schedule. It is stored first; while Temporal is away it fires only after Temporal is back and has it.

    ``paused``: it fires only after someone resumes it.

    Raises:
        InvalidInputError: what does not fit, by the pointers of the API's body.
        NotFoundError: no such conversation.
        ConflictError: ``name_taken`` or ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs.
    """
    principal.require("runs:write")
    await check_wanted(wanted, principal)
    await require_bounds(principal, wanted.agent, wanted.workspace)
    await require_workspace(services, wanted.workspace)

    async def act(conn: Connection) -> _Created:
        await _require_known(conn, wanted)
        schedule = await _to_store(conn, principal, wanted)
        if paused:
            schedule = replace(schedule, paused_at=as_text(now()), paused_by=principal.name)
        schedule = await schedules.create(conn, schedule)
        await _log(
            conn,
            schedule,
            "created",
            by=principal.name,
            agent=schedule.agent,
            overlap=schedule.overlap,
            says=schedule.times.says,
            paused=paused,
            paused_at=schedule.paused_at,
            paused_by=schedule.paused_by,
        )
        return _Created(id=schedule.id)

    content = {**dict(wanted), "timetable": wanted.timetable.model_dump_json()}
    try:
        members = ["schedule", *map(repr, content.values()), *(["paused"] if paused else [])]
        change = KeyedChange(key=key, content=members, answer=_Created, act=act)
        created = await once(services, principal, change)
    except IntegrityError:
        raise _name_taken(wanted.name) from None
    return await _agreed(services, created.id)


async def update(
    services: Services, principal: Principal, id_or_name: str, change: ScheduleChange, *, revision: int
) -> ScheduleDetail:
    """Change a schedule, from its next fire on. Its author keeps owning its runs.

    Args:
        services: the process's services.
        principal: who changes it; must hold ``runs:write``.
        id_or_name: the schedule.
        change: what is omitted stays.
        revision: the one that was changed; another means that someone else changed it since.

    Raises:
        InvalidInputError: what does not fit.
        NotFoundError: no such schedule.
        ConflictError: ``revision_differs`` (details have the present one), ``name_taken`` or ``schedule_deleted``.
        ForbiddenError: ``not_your_schedule``: someone else made it; or the principal may not start runs.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        before = await existing_schedule(conn, id_or_name)
    require_maker(principal, before)
    wanted = change.applied_to(as_wanted(before))
    await check_wanted(wanted, principal)
    await require_bounds(principal, wanted.agent, wanted.workspace)
    await require_workspace(services, wanted.workspace)
    try:
        async with services.database.write() as conn:
            schedule = await _to_change(conn, before.id)
            require_maker(principal, schedule)
            if schedule.revision != revision:
                message = (
                    f"someone changed it meanwhile: it is at revision {schedule.revision}, not {revision}. Reload it"
                )
                raise ConflictError(message, code="revision_differs", revision=schedule.revision)
            await _require_known(conn, wanted)
            columns = columns_of(wanted)
            changed = sorted(name for name, value in columns.items() if getattr(schedule, name) != value)
            if changed:
                schedule = await schedules.change(conn, schedule, **columns)
                await _log(conn, schedule, "changed", by=principal.name, changed=changed, says=schedule.times.says)
    except IntegrityError:
        raise _name_taken(wanted.name) from None
    return await _agreed(services, schedule.id)


async def pause(services: Services, principal: Principal, id_or_name: str, *, reason: str = "") -> ScheduleDetail:
    """Pause a schedule: no fire starts a run until :func:`resume`. Its live run continues. A repeat changes nothing.

    Raises NotFoundError; InvalidInputError for a long reason; ConflictError ``schedule_deleted``; ForbiddenError.
    """
    principal.require("runs:write")
    if len(reason) > MAX_REASON_CHARS:
        raise invalid("/reason", f"at most {MAX_REASON_CHARS:,} characters, not {len(reason):,}")
    require_storable(reason, "/reason")
    async with services.database.write() as conn:
        schedule = await _to_change(conn, id_or_name)
        await require_own_schedule(conn, principal, schedule.id)
        if schedule.paused_at is None:
            paused = {"paused_at": as_text(now()), "paused_by": principal.name, "pause_reason": reason}
            schedule = await schedules.change(conn, schedule, **paused)
            await _log(conn, schedule, "paused", by=principal.name, reason=reason)
    return await _agreed(services, schedule.id)


async def resume(services: Services, principal: Principal, id_or_name: str) -> ScheduleDetail:
    """Resume a schedule from its next fire; fires that were due meanwhile are not made up for. Raises as :func:`pause`."""
    principal.require("runs:write")
    async with services.database.write() as conn:
        schedule = await _to_change(conn, id_or_name)
        await require_own_schedule(conn, principal, schedule.id)
        await require_bounds(principal, schedule.agent, schedule.workspace)
        if schedule.paused_at is not None:
            schedule = await schedules.change(conn, schedule, paused_at=None, paused_by=None, pause_reason="")
            await _log(conn, schedule, "resumed", by=principal.name)
    return await _agreed(services, schedule.id)


async def delete(services: Services, principal: Principal, id_or_name: str) -> ScheduleDetail:
    """Delete a schedule: it never fires again. Its runs stay, live ones continue.

    Raises as :func:`pause`, and ForbiddenError ``not_your_schedule`` unless its maker or an admin deletes it.
    """
    principal.require("runs:write")
    async with services.database.write() as conn:
        schedule = await _to_change(conn, id_or_name)
        require_maker(principal, schedule)
        ended = {"deleted_at": as_text(now()), "deleted_by": principal.name}
        schedule = await schedules.change(conn, schedule, **ended)
        await _log(conn, schedule, "deleted", by=principal.name)
    return await _agreed(services, schedule.id)


async def fire_now(services: Services, principal: Principal, id_or_name: str, *, key: str | None = None) -> RunSummary:
    """Start a run now, also of a paused schedule; the same key returns the first run again.

    Raises:
        NotFoundError: no such schedule.
        ConflictError: ``run_live`` (details name the live run), ``schedule_deleted`` or ``idempotency_key_reused``.
        InvalidInputError: ``unknown_agent``: no worker publishes its agent any more.
        UnavailableError: Temporal is away; nothing was changed.
        ForbiddenError: the principal may not start runs.
    """
    principal.require("runs:write")
    if not await services.gateway.ready(BUSY_WAIT):
        raise UnavailableError("Temporal cannot be reached, so no run was started. Try again when it is back.")

    async def act(conn: Connection) -> _Created:
        schedule = await _to_change(conn, id_or_name)
        await require_own_schedule(conn, principal, schedule.id)
        await require_bounds(principal, schedule.agent, schedule.workspace)
        agent = await published_agent(conn, schedule.agent)
        known = AgentAtFire(version=agent.version, model=agent.model)
        fire = await schedule_fires.settle(conn, schedule.id, now(), known, by=principal.name)
        if fire is None or fire.run_id is None:
            live = "" if fire is None else fire.reason
            message = (
                f"run {live} is still live, and this schedule runs one at a time: wait for its end, or interrupt it"
            )
            raise ConflictError(message, code="run_live", run_id=live)
        return _Created(id=fire.run_id)

    try:
        change = KeyedChange(key=key, content=["fire", id_or_name], answer=_Created, act=act)
        created = await once(services, principal, change)
    except IntegrityError:
        raise ConflictError("another run was started at the same moment: try again", code="run_live") from None
    async with services.database.read() as conn:
        run = await existing_run(conn, created.id)
        agent = await published_agent(conn, run.agent)
    if run.status == "running" and run.step == 0:
        # It is recorded in any case: if this fails, the loop over the schedules starts it.
        with suppress(UnavailableError):
            await start_workflow(services, run, agent)
    return run_summary(run)


async def _require_known(conn: Connection, wanted: ScheduleOrder) -> None:
    """Raise InvalidInputError when there is no such agent or model: else only the first fire would show it."""
    await published_agent(conn, wanted.agent)
    if wanted.model is not None:
        await require_known_model(conn, wanted.model)


async def _to_store(conn: Connection, principal: Principal, wanted: ScheduleOrder) -> Schedule:
    conversation_id = wanted.conversation_id
    if conversation_id is not None:
        await require_own_conversation(conn, principal, conversation_id)
    if conversation_id is None and wanted.conversation == "continue":
        conversation_id = f"conv_{secrets.token_hex(12)}"
        await messages.create_conversation(conn, conversation_id)
    elif conversation_id is not None and not await messages.conversation_exists(conn, conversation_id):
        raise invalid("/conversation_id", f"there is no conversation {conversation_id!r}")
    return Schedule(
        id=f"{ID_PREFIX}{secrets.token_hex(12)}",
        conversation_id=conversation_id,
        created_by=principal.name,
        **columns_of(wanted),
    )


def _name_taken(name: str) -> ConflictError:
    message = f"there is already a schedule {name!r}: choose another name, or delete that one"
    return ConflictError(message, code="name_taken", name=name)


async def _to_change(conn: Connection, id_or_name: str) -> Schedule:
    """Return a schedule to change, locked. Raises NotFoundError, ConflictError ``schedule_deleted``."""
    schedule = await existing_schedule(conn, id_or_name, hold=True)
    if schedule.deleted_at is not None:
        raise ConflictError(
            f"{schedule.deleted_by} deleted this schedule at {in_utc(schedule.deleted_at)}", code="schedule_deleted"
        )
    return schedule


async def _agreed(services: Services, schedule_id: str) -> ScheduleDetail:
    """Send a change to Temporal, and return the schedule as it is now. If Temporal is away, it gets the change later."""
    async with services.database.read() as conn:
        schedule = await existing_schedule(conn, schedule_id)
    try:
        await agree(services, schedule)
    except UnavailableError as error:
        logger.warning("schedule %s is stored; Temporal gets the change later: %s", schedule_id, error)
    return await schedule_detail(services, schedule_id)


async def _log(conn: Connection, schedule: Schedule, what: str, *, by: str, **more: Any) -> None:
    payload = {"schedule_id": schedule.id, "name": schedule.name, "by": by}
    payload.update({name: value for name, value in more.items() if value})
    payload |= events.digests(schedule={schedule.id: row_digest("schedule", vars(schedule), secret_of(conn))})
    await events.append(conn, events.SYSTEM, [(f"schedule.{what}", payload)])
