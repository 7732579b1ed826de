"""Schedules: made, held, let go on, deleted, fired out of turn. Used by the JSON API and the pages."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy.exc import IntegrityError

from approvals_api.gateway.client import BUSY_WAIT
from approvals_api.idempotency import once
from approvals_api.lookups import existing_run
from approvals_api.principal import Principal
from approvals_api.runs.control import MAX_REASON_CHARS
from approvals_api.runs.start import published_agent, turn_input
from approvals_api.runs.switch_model import require_known_model
from approvals_api.runs.views import run_summary
from approvals_api.schedules.order import NewSchedule, as_wanted, check_wanted, columns_of
from approvals_api.schedules.sync import agree
from approvals_api.schedules.views import existing_schedule, schedule_detail
from approvals_api.services import Services
from approvals_api.validation.errors import invalid
from approvals_api.validation.text import require_storable
from turngate.domain.agents.schedules import ID_PREFIX
from turngate.domain.errors import ConflictError, UnavailableError
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import messages
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedule_fires import AgentAtFire
from turngate.store.schedules.schedules import Schedule
from turngate.wire.runs import RunSummary
from turngate.wire.schedules import ScheduleDetail
from turngate.wire.view import View

logger = logging.getLogger(__name__)


class _Made(View):
    """The schedule that an Idempotency-Key made."""

    id: str


async def create(
    services: Services, principal: Principal, wanted: NewSchedule, *, key: str | None = None
) -> ScheduleDetail:
    """Make a schedule. It is stored first; while Temporal is away it fires only once Temporal is back and has it.

    Raises:
        InvalidInputError: what does not fit, by the pointers of the API's body.
        NotFoundError: no such conversation.
        ConflictError: ``name_taken`` or ``idempotency_key_reused``.
        ForbiddenError: the principal may not start runs.
    """
    principal.require("runs:write")
    await check_wanted(wanted, by=principal.name)

    async def act(conn: Connection) -> _Made:
        await _require_known(conn, wanted)
        made = await schedules.create(conn, await _to_store(conn, principal, wanted))
        await _tell(
            conn, made, "created", by=principal.name, agent=made.agent, overlap=made.overlap, says=made.times.says
        )
        return _Made(id=made.id)

    asked = {**asdict(wanted), "timetable": wanted.timetable.model_dump_json()}
    try:
        made = await once(
            services, principal, key, content=["schedule", *map(repr, asked.values())], answer=_Made, act=act
        )
    except IntegrityError:
        raise _name_taken(wanted.name) from None
    return await _agreed(services, made.id)


async def update(
    services: Services, principal: Principal, id_or_name: str, *, revision: int, changes: Mapping[str, Any]
) -> ScheduleDetail:
    """Change a schedule; its next fire is the first that goes by it. Its runs stay its author's.

    Args:
        services: the process's services.
        principal: who changes it; must hold ``runs:write``.
        id_or_name: the schedule.
        revision: the one that was looked at; another means that somebody changed it since.
        changes: members of NewSchedule, all but the conversation; what is left out stays.

    Raises:
        InvalidInputError: what does not fit.
        NotFoundError: no such schedule.
        ConflictError: ``revision_differs`` (details have the present one), ``name_taken`` or ``schedule_deleted``.
        ForbiddenError: the principal may not start runs.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        before = await existing_schedule(conn, id_or_name)
    wanted = replace(as_wanted(before), **changes)
    await check_wanted(wanted, by=before.created_by)
    try:
        async with services.database.write() as conn:
            schedule = await _standing(conn, before.id)
            if schedule.revision != revision:
                message = f"somebody has changed it meanwhile: it is at revision {schedule.revision}, not {revision}"
                raise ConflictError(message, code="revision_differs", revision=schedule.revision)
            await _require_known(conn, wanted)
            columns = columns_of(wanted)
            changed = sorted(name for name, value in columns.items() if getattr(schedule, name) != value)
            if changed:
                schedule = await schedules.change(conn, schedule, **columns)
                await _tell(conn, schedule, "changed", by=principal.name, changed=changed, says=schedule.times.says)
    except IntegrityError:
        raise _name_taken(wanted.name) from None
    return await _agreed(services, schedule.id)


async def pause(services: Services, principal: Principal, id_or_name: str, *, reason: str = "") -> ScheduleDetail:
    """Hold a schedule: none of its fires opens a run until :func:`resume`. Its live run goes on. A repeat changes nothing.

    Raises NotFoundError; InvalidInputError for a long reason; ConflictError ``schedule_deleted``; ForbiddenError.
    """
    principal.require("runs:write")
    if len(reason) > MAX_REASON_CHARS:
        raise invalid("/reason", f"at most {MAX_REASON_CHARS:,} characters, not {len(reason):,}")
    require_storable(reason, "/reason")
    async with services.database.write() as conn:
        schedule = await _standing(conn, id_or_name)
        if schedule.paused_at is None:
            held = {"paused_at": as_text(now()), "paused_by": principal.name, "pause_reason": reason}
            schedule = await schedules.change(conn, schedule, **held)
            await _tell(conn, schedule, "paused", by=principal.name, reason=reason)
    return await _agreed(services, schedule.id)


async def resume(services: Services, principal: Principal, id_or_name: str) -> ScheduleDetail:
    """Let a schedule go on from its next fire; what came up meanwhile is not made up for. Raises as :func:`pause`."""
    principal.require("runs:write")
    async with services.database.write() as conn:
        schedule = await _standing(conn, id_or_name)
        if schedule.paused_at is not None:
            schedule = await schedules.change(conn, schedule, paused_at=None, paused_by=None, pause_reason="")
            await _tell(conn, schedule, "resumed", by=principal.name)
    return await _agreed(services, schedule.id)


async def delete(services: Services, principal: Principal, id_or_name: str) -> ScheduleDetail:
    """Delete a schedule: nothing fires any more. Its runs stay, live ones go on. Raises as :func:`pause`."""
    principal.require("runs:write")
    async with services.database.write() as conn:
        schedule = await _standing(conn, id_or_name)
        ended = {"deleted_at": as_text(now()), "deleted_by": principal.name}
        schedule = await schedules.change(conn, schedule, **ended)
        await _tell(conn, schedule, "deleted", by=principal.name)
    return await _agreed(services, schedule.id)


async def fire_now(services: Services, principal: Principal, id_or_name: str, *, key: str | None = None) -> RunSummary:
    """Open a run now, out of turn, also of a schedule that is paused; the same key returns the first one again.

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

    async def act(conn: Connection) -> _Made:
        schedule = await _standing(conn, id_or_name)
        agent = await published_agent(conn, schedule.agent)
        known = AgentAtFire(version=agent.version, model=agent.model)
        fire = await schedule_fires.come_to(conn, schedule.id, now(), known, by=principal.name)
        if fire is None or fire.run_id is None:
            live = "" if fire is None else fire.reason
            message = (
                f"run {live} is still live, and this schedule has one at a time: wait for its end, or interrupt it"
            )
            raise ConflictError(message, code="run_live", run_id=live)
        return _Made(id=fire.run_id)

    try:
        made = await once(services, principal, key, content=["fire", id_or_name], answer=_Made, act=act)
    except IntegrityError:
        raise ConflictError("another run was started at the same moment: send this again", code="run_live") from None
    async with services.database.read() as conn:
        run = await existing_run(conn, made.id)
        agent = await published_agent(conn, run.agent)
    if run.status == "running" and run.step == 0:
        # Recorded it is in any case: should this fail, the sweep beside the schedules starts it.
        with suppress(UnavailableError):
            await services.gateway.start_run(turn_input(services, run, agent), agent.task_queue)
    return run_summary(run)


async def _require_known(conn: Connection, wanted: NewSchedule) -> None:
    """Raise InvalidInputError when there is no such agent or model: it would be found out at the first fire only."""
    await published_agent(conn, wanted.agent)
    if wanted.model is not None:
        await require_known_model(conn, wanted.model)


async def _to_store(conn: Connection, principal: Principal, wanted: NewSchedule) -> Schedule:
    conversation_id = wanted.conversation_id
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
    message = f"there is a schedule {name!r} already: give this one another name, or delete that one"
    return ConflictError(message, code="name_taken", name=name)


async def _standing(conn: Connection, id_or_name: str) -> Schedule:
    """Return a schedule to change, held. Raises NotFoundError, ConflictError ``schedule_deleted``."""
    schedule = await existing_schedule(conn, id_or_name, hold=True)
    if schedule.deleted_at is not None:
        raise ConflictError(
            f"{schedule.deleted_by} deleted this schedule at {schedule.deleted_at}", code="schedule_deleted"
        )
    return schedule


async def _agreed(services: Services, schedule_id: str) -> ScheduleDetail:
    """Let Temporal hear of a change, and return the schedule as it is now. One that is away hears of it later."""
    async with services.database.read() as conn:
        schedule = await existing_schedule(conn, schedule_id)
    try:
        await agree(services, schedule)
    except UnavailableError as error:
        logger.warning("schedule %s is stored, and Temporal hears of it later: %s", schedule_id, error)
    return await schedule_detail(services, schedule_id)


async def _tell(conn: Connection, schedule: Schedule, what: str, *, by: str, **more: Any) -> None:
    told = {"schedule_id": schedule.id, "name": schedule.name, "by": by}
    told.update({name: value for name, value in more.items() if value})
    await events.append(conn, events.SYSTEM, [(f"schedule.{what}", told)])
