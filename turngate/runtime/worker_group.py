"""Several Temporal workers as one: made alike, started, stopped and failing together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from temporalio.client import Client
from temporalio.worker import Worker, WorkerDeploymentConfig


def worker_of_group(
    client: Client,
    task_queue: str,
    activities: Sequence[Callable[..., Any]],
    *,
    slots: int,
    grace: timedelta,
    deployment: WorkerDeploymentConfig | None,
    **more: Any,
) -> Worker:
    """Return a worker for one task queue. ``more``: as :class:`Worker` takes it.

    ``slots``: activities at once. ``grace``: how long they may continue after the worker is told to stop.
    """
    return Worker(
        client,
        task_queue=task_queue,
        activities=activities,
        deployment_config=deployment,
        max_concurrent_activities=slots,
        # An interrupt reaches a running activity with its heartbeat's answer; the SDK's default makes that 6.5 s.
        max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        graceful_shutdown_timeout=grace,
        **more,
    )


class WorkerGroup:
    """The workers of one process, with the methods of one worker that Turngate uses."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)

    async def run(self) -> None:
        """Run until :meth:`shutdown`; when one of them fails the others are shut down, and its error is raised."""
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
        """Stop taking work, let what runs have its grace, and return when all have ended. Safe to repeat."""
        await asyncio.gather(*(each.shutdown() for each in self.workers))

    async def __aenter__(self) -> Self:
        """Start them; when one fails, the block is cancelled and its error raised (see temporalio's ``Worker``)."""
        for each in self.workers:
            await each.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop them, side by side: one after the other each would have its grace period."""
        ended = await asyncio.gather(
            *(each.__aexit__(kind, error, trace) for each in self.workers), return_exceptions=True
        )
        for end in ended:
            if isinstance(end, BaseException):
                raise end
