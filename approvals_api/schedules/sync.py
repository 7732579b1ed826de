"""Keeping Temporal's schedules equal to the store's: after each change, and in a loop.

The store is written first. If a process dies between the two, or Temporal loses its database, the next round repairs it;
until then each fire reads in the store whether its schedule still exists.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from turngate.approvals_api.concurrency import for_each
from turngate.approvals_api.gateway.schedules import (
    WantedSchedule,
)
from turngate.approvals_api.runs.lost import STARTING
from turngate.approvals_api.runs.start import schedule_labels, start_workflow
from turngate.approvals_api.services import Services
from turngate.domain.errors import UnavailableError
from turngate.store import agents
from turngate.store.clock import now
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedules import Schedule

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 20.0
AT_ONCE: Final = 8


async def keep_schedules(services: Services, *, pause_seconds: float = PAUSE_SECONDS) -> None:
    """Compare every schedule in a loop. Runs until it is cancelled; waits while Temporal or the store is away."""
    while True:
        try:
            await agree_on_all(services)
            await start_opened(services)
        except UnavailableError as error:
            logger.warning("schedules are compared with Temporal's later: %s", error)
        await asyncio.sleep(pause_seconds)


async def agree_on_all(services: Services) -> int:
    """Make Temporal's schedules equal to the store's; returns how many were created, changed or deleted.

    Safe to repeat, and for several at once. Raises UnavailableError when Temporal or the store is away.
    """
    changed: list[str] = []

    async def one(schedule: Schedule) -> None:
        if await agree(services, schedule):
            changed.append(schedule.id)

    async with services.database.read() as conn:
        to_compare = await schedules.to_sync(conn)
    await for_each(to_compare, one, at_once=AT_ONCE)
    return len(changed)


async def start_opened(services: Services) -> int:
    """Start the workflows of runs that fires recorded and that have none yet; returns how many were tried.

    Safe to repeat: a workflow that was started is left as it is. Raises as above.
    """
    async with services.database.read() as conn:
        unstarted = await schedule_fires.unstarted(conn, before=now() - STARTING)
        published = {agent.name: agent for agent in await agents.every(conn)} if unstarted else {}
    tried = 0
    for run in unstarted:
        agent = published.get(run.agent)
        if agent is not None:
            await start_workflow(services, run, agent)
            tried += 1
    return tried


async def agree(services: Services, schedule: Schedule) -> bool:
    """Make Temporal's schedule equal to the store's; returns whether it had to be changed. Raises as above.

    ``schedule``: as the caller read it. Another process, or the loop, may have read an older or newer one and be the last to
    change Temporal's. So after a change, the store is read again.
    """
    changed = False
    while await _agree_with(services, schedule):
        changed = True
        async with services.database.read() as conn:
            newest = await schedules.get(conn, schedule.id)
        if newest is None or newest.revision == schedule.revision:
            break
        schedule = newest
    return changed


async def _agree_with(services: Services, schedule: Schedule) -> bool:
    temporal = services.gateway.schedules
    look = await temporal.look(schedule.id)
    if schedule.deleted_at is not None:
        if look is not None:
            await temporal.delete(schedule.id)
        async with services.database.write() as conn:
            await schedules.note_removed(conn, schedule.id)
        return look is not None
    wanted = await _wanted(services, schedule)
    if wanted is None:
        logger.warning("schedule %s does not fire: no worker publishes its agent %r", schedule.id, schedule.agent)
        return False
    if look is not None and await temporal.is_kept(look, wanted):
        return False
    if look is not None or not await temporal.create(wanted):
        await temporal.change(wanted)
    logger.info("Temporal has schedule %s at revision %d", schedule.id, schedule.revision)
    return True


async def _wanted(services: Services, schedule: Schedule) -> WantedSchedule | None:
    async with services.database.read() as conn:
        agent = await agents.get(conn, schedule.agent)
    if agent is None:
        return None
    return WantedSchedule(
        id=schedule.id,
        revision=schedule.revision,
        timetable=schedule.times,
        overlap=schedule.overlap,
        catch_up=timedelta(seconds=schedule.catch_up_seconds),
        paused=schedule.paused_at is not None,
        task_queue=agent.task_queue,
        heartbeat_timeout_seconds=services.settings.heartbeat_timeout_seconds,
        labels=await schedule_labels(services, schedule),
    )
