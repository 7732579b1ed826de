"""The part of the gateway that keeps Temporal's schedules.

A schedule there says when, and under which id; what is started is in the store (I8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import TypedSearchAttributes

from turngate.approvals_api.gateway.calls import reported
from turngate.approvals_api.gateway.labels import Labels, values_of
from turngate.domain import contract
from turngate.domain.agents.schedules import Overlap, Timetable, cron_lines
from turngate.domain.contract import ScheduledStartInput
from turngate.domain.runs.labels import RunLabels

RPC_WAIT: Final = timedelta(seconds=3)
NEXT_FIRES: Final = 5
_NOTE: Final = "turngate revision "


@dataclass(frozen=True, kw_only=True)
class WantedSchedule:
    """What Temporal must keep. ``revision``: of the store's schedule; ``task_queue``: of the agent's worker.

    ``labels``: of its runs; None: they have none.
    """

    id: str
    revision: int
    timetable: Timetable
    overlap: Overlap
    catch_up: timedelta
    paused: bool
    task_queue: str
    heartbeat_timeout_seconds: int
    labels: RunLabels | None = None


@dataclass(frozen=True, kw_only=True)
class ScheduleLook:
    """What Temporal keeps. ``revision``: 0 when its note has none. ``next_fires``: the next few, soonest first.

    ``passed_over``: fires that Temporal skipped because no worker had taken the one before. ``missed``: those that were due
    while it was down for longer than the catch-up window.
    """

    revision: int
    paused: bool
    task_queue: str
    next_fires: tuple[datetime, ...]
    passed_over: int
    missed: int
    attributes: dict[str, str] = field(default_factory=dict)

    def is_of(self, wanted: WantedSchedule, attributes: Mapping[str, str]) -> bool:
        """Tell whether nothing has to change; a newer revision stays. ``attributes``: what a fire should get."""
        same = self.paused == wanted.paused and self.task_queue == wanted.task_queue and self.attributes == attributes
        return self.revision > wanted.revision or (self.revision == wanted.revision and same)


class TemporalSchedules:
    """The schedules that Temporal keeps. Each method raises UnavailableError when Temporal is away."""

    def __init__(self, client: Client, labels: Labels | None = None) -> None:
        self._client = client
        self._labels = labels or Labels(client)

    async def look(self, schedule_id: str) -> ScheduleLook | None:
        """Return what Temporal keeps under this id, or None."""
        try:
            async with _bounded():
                description = await self._client.get_schedule_handle(schedule_id).describe(rpc_timeout=RPC_WAIT)
        except LookupError:
            return None
        action = description.schedule.action
        starts = action if isinstance(action, ScheduleActionStartWorkflow) else None
        return ScheduleLook(
            revision=_revision_of(description.schedule),
            paused=description.schedule.state.paused,
            task_queue="" if starts is None else starts.task_queue,
            next_fires=tuple(description.info.next_action_times[:NEXT_FIRES]),
            passed_over=description.info.num_actions_skipped_overlap,
            missed=description.info.num_actions_missed_catchup_window,
            attributes={} if starts is None else values_of(starts.typed_search_attributes),
        )

    async def is_kept(self, look: ScheduleLook, wanted: WantedSchedule) -> bool:
        """Tell whether Temporal keeps what is wanted, with the search attributes that its server has now."""
        return look.is_of(wanted, await self._labels.of(wanted.labels).attributes())

    async def create(self, wanted: WantedSchedule) -> bool:
        """Create a schedule; False when one exists, which is left as it is."""

        async def create(options: dict[str, Any]) -> None:
            await self._client.create_schedule(wanted.id, _schedule(wanted, options), rpc_timeout=RPC_WAIT)

        try:
            async with _bounded():
                await self._labels.of(wanted.labels).sent_with(create)
        except ScheduleAlreadyRunningError:
            return False
        return True

    async def change(self, wanted: WantedSchedule) -> None:
        """Change a schedule to what is wanted; one of a newer revision is left as it is, one that is gone is left alone."""

        async def change(options: dict[str, Any]) -> None:
            async def changed(current: ScheduleUpdateInput) -> ScheduleUpdate | None:
                if _revision_of(current.description.schedule) > wanted.revision:
                    return None
                return ScheduleUpdate(schedule=_schedule(wanted, options))

            await self._client.get_schedule_handle(wanted.id).update(changed, rpc_timeout=RPC_WAIT)

        with suppress(LookupError):
            async with _bounded():
                await self._labels.of(wanted.labels).sent_with(change)

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule; one that is gone is fine."""
        with suppress(LookupError):
            async with _bounded():
                await self._client.get_schedule_handle(schedule_id).delete(rpc_timeout=RPC_WAIT)


def _revision_of(schedule: Schedule) -> int:
    note = schedule.state.note or ""
    revision = note.removeprefix(_NOTE)
    return int(revision) if note.startswith(_NOTE) and revision.isdecimal() else 0


def _schedule(wanted: WantedSchedule, options: dict[str, Any]) -> Schedule:
    times = wanted.timetable
    # A fire that waits for a worker, or for the end of a run, is the one that is buffered; only the store sees the runs
    # themselves (docs/adr/0018), so Temporal only has to keep such fires from piling up.
    overlap = ScheduleOverlapPolicy.ALLOW_ALL if wanted.overlap == "allow" else ScheduleOverlapPolicy.SKIP
    intervals: list[ScheduleIntervalSpec] = []
    if times.every_seconds is not None:
        intervals.append(ScheduleIntervalSpec(every=timedelta(seconds=times.every_seconds)))
    return Schedule(
        action=ScheduleActionStartWorkflow(
            contract.SCHEDULED_START,
            ScheduledStartInput(schedule_id=wanted.id, heartbeat_timeout_seconds=wanted.heartbeat_timeout_seconds),
            id=wanted.id,
            task_queue=wanted.task_queue,
            priority=options["priority"],
            typed_search_attributes=options.get("search_attributes", TypedSearchAttributes.empty),
        ),
        spec=ScheduleSpec(
            cron_expressions=[] if times.cron is None else cron_lines(times.cron),
            intervals=intervals,
            start_at=times.starts_at,
            end_at=times.ends_at,
            jitter=timedelta(seconds=times.jitter_seconds) if times.jitter_seconds else None,
            time_zone_name=times.time_zone,
        ),
        policy=SchedulePolicy(overlap=overlap, catchup_window=wanted.catch_up),
        state=ScheduleState(note=f"{_NOTE}{wanted.revision}", paused=wanted.paused),
    )


@asynccontextmanager
async def _bounded() -> AsyncIterator[None]:
    """Bound the call, and turn Temporal's transport errors into ours; LookupError: there is no such schedule."""
    with reported():
        async with asyncio.timeout(RPC_WAIT.total_seconds()):
            yield
