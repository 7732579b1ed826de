"""Several Temporal workers as one: configured alike, started and stopped together; if one fails, all stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker, WorkerDeploymentConfig, WorkerTuner

from turngate import __version__
from turngate.runtime.log_ids import LogIds


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One worker of a group: its task queue, its activities, and how many run at once (``slots``).

    ``more``: further arguments of temporalio's ``Worker``.
    """

    task_queue: str
    activities: Sequence[Callable[..., Any]]
    slots: int
    more: Mapping[str, Any] = field(default_factory=dict)


class WorkerGroup:
    """The workers of one process, with the methods of one worker that Turngate uses."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)

    @classmethod
    def of(
        cls,
        client: Client,
        lanes: Sequence[Lane],
        *,
        grace: timedelta,
        deployment: WorkerDeploymentConfig | None,
        pollers: int | None,
        tuner: Callable[[int], WorkerTuner] | None = None,
    ) -> Self:
        """Return a group with a worker for each lane.

        ``grace``: how long activities may continue after a stop. ``pollers``: of each kind of task; None: the SDK's number.
        ``tuner``: makes what hands out so many slots; None: the SDK's.
        """
        polling: dict[str, Any] = {}
        if pollers is not None:
            polling["activity_task_poller_behavior"] = PollerBehaviorSimpleMaximum(pollers)
            # One for the queue, and one for the tasks of workflows in memory.
            polling["workflow_task_poller_behavior"] = PollerBehaviorSimpleMaximum(max(pollers, 2))
        return cls(
            [
                Worker(
                    client,
                    task_queue=lane.task_queue,
                    activities=lane.activities,
                    deployment_config=deployment,
                    # Temporal shows it and does nothing with it. The SDK's default is a hash over the code of every imported
                    # module, which takes a second of a process's start. A worker with a deployment has that one's build id.
                    build_id=None if deployment is not None else f"turngate-{__version__}",
                    max_concurrent_activities=lane.slots if tuner is None else None,
                    tuner=None if tuner is None else tuner(lane.slots),
                    # An interrupt reaches a running activity with the answer to its heartbeat. The SDK's default delays that
                    # by up to 6.5 s.
                    max_heartbeat_throttle_interval=timedelta(milliseconds=500),
                    graceful_shutdown_timeout=grace,
                    **polling,
                    **{**lane.more, "interceptors": [LogIds(), *lane.more.get("interceptors", ())]},
                )
                for lane in lanes
            ]
        )

    async def run(self) -> None:
        """Run until :meth:`shutdown`. If one worker fails, the others are shut down, and its error is raised."""
        running = [asyncio.create_task(each.run()) for each in self.workers]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await self.shutdown()
            ended = await asyncio.gather(*running, return_exceptions=True)
        for end in ended:
            if isinstance(end, BaseException):
                raise end

    async def shutdown(self) -> None:
        """Stop taking work, let running activities use their grace period, and return when all have ended. Safe to repeat."""
        await asyncio.gather(*(each.shutdown() for each in self.workers))

    async def __aenter__(self) -> Self:
        """Start them. If one fails, the block is cancelled and its error raised (see temporalio's ``Worker``)."""
        for each in self.workers:
            await each.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them at the same time: one after the other, each would use its whole grace period."""
        ended = await asyncio.gather(
            *(each.__aexit__(kind, error, trace) for each in self.workers), return_exceptions=True
        )
        for end in ended:
            if isinstance(end, BaseException):
                raise end
