"""Who polls a task queue: workers, by their build, and the build that gets new runs there.

https://docs.temporal.io/production-deployment/worker-deployments/worker-versioning
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

POLL_LASTS: Final = timedelta(seconds=70)
"""A worker's poll is held for up to a minute; the server remembers a poller for five, also one that was killed."""


@dataclass(frozen=True, kw_only=True)
class Poller:
    """A worker process that has polled. ``build`` None: it has no build. ``identity``: of its Temporal client."""

    identity: str
    build: str | None
    polled_at: datetime

    def is_there(self, now: datetime) -> bool:
        """Tell whether it has polled so lately that it may still be there. A worker that was stopped counts for a while."""
        return now - self.polled_at < POLL_LASTS


@dataclass(frozen=True, kw_only=True)
class QueueLook:
    """A task queue at one moment. ``pollers``: for workflow tasks, in the last five minutes, the newest poll first.

    ``current_build``: new runs go to its workers; None: to workers without a build.
    """

    pollers: tuple[Poller, ...]
    current_build: str | None

    def builds(self, now: datetime) -> set[str | None]:
        """Return the builds whose workers may be there; None stands for workers without one."""
        return {each.build for each in self.pollers if each.is_there(now)}


async def look_at_queue(client: Client, task_queue: str, *, wait: timedelta) -> QueueLook:
    """Return who polls the task queue for workflow tasks. Raises the SDK's errors when Temporal is away."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=wait)
    pollers = [
        Poller(
            identity=each.identity,
            build=_build_of(each.deployment_options),
            polled_at=each.last_access_time.ToDatetime(tzinfo=UTC),
        )
        for each in answer.pollers
    ]
    return QueueLook(
        pollers=tuple(sorted(pollers, key=lambda each: each.polled_at, reverse=True)),
        current_build=answer.versioning_info.current_deployment_version.build_id or None,
    )


def _build_of(options: WorkerDeploymentOptions) -> str | None:
    versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return options.build_id if versioned else None
