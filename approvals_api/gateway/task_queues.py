"""Who polls a task queue: workers, by their build; the build that gets new runs there; and the builds there are.

https://docs.temporal.io/production-deployment/worker-deployments/worker-versioning
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import TaskQueueType, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkerDeploymentRequest,
    ListWorkersRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from turngate.domain import contract

OPEN_WORKFLOWS: Final = (
    f"WorkflowType IN ('{contract.AGENT_TURN}', '{contract.SCHEDULED_START}') AND ExecutionStatus = 'Running'"
)
STOPPING: Final = "WorkerStatus = 'ShuttingDown'"
RUNNING: Final = "WorkerStatus = 'Running'"
LANES_LISTED: Final = 100
POLL_LASTS: Final = timedelta(seconds=70)
"""A worker's poll is held for up to a minute; the server remembers a poller for five, also one that was killed."""


@dataclass(frozen=True, kw_only=True)
class Poller:
    """A worker process that has polled. ``build`` None: it has no build. ``identity``: of its Temporal client."""

    identity: str
    build: str | None
    polled_at: datetime

    def is_there(self, now: datetime) -> bool:
        """Tell whether it has polled so lately that it may still be there. A worker that was killed counts for a while."""
        return now - self.polled_at < POLL_LASTS


@dataclass(frozen=True, kw_only=True)
class QueueLook:
    """A task queue at one moment. ``pollers``: for workflow tasks, in the last five minutes, the newest poll first.

    ``current_build``: new runs go to its workers; None: to workers without a build. ``waiting``: how long the oldest task
    waits for a worker, of those for workers without a build. ``stopping``: identity of a worker that is stopping → when it
    last reported it.
    """

    pollers: tuple[Poller, ...]
    current_build: str | None
    waiting: timedelta = timedelta()
    stopping: Mapping[str, datetime] = field(default_factory=dict)

    def builds(self, now: datetime) -> set[str | None]:
        """Return the builds whose workers may be there; None stands for workers without one."""
        return {each.build for each in self.present(now)}

    def present(self, now: datetime) -> list[Poller]:
        """Return the pollers that may be there and are not stopping."""
        return [each for each in self.pollers if each.is_there(now) and not self._is_stopping(each)]

    def _is_stopping(self, poller: Poller) -> bool:
        # A container that is started again has the identity that it had before; it polls after that.
        reported_at = self.stopping.get(poller.identity)
        return reported_at is not None and reported_at >= poller.polled_at


async def look_at_queue(client: Client, task_queue: str, *, wait: timedelta) -> QueueLook:
    """Return who polls the task queue for workflow tasks. Raises the SDK's errors when Temporal is away."""
    answer = await _describe(client, task_queue, TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, wait)
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
        waiting=answer.stats.approximate_backlog_age.ToTimedelta(),
    )


async def stopping_workers(
    client: Client, queues: Iterable[str], *, now: datetime, wait: timedelta
) -> dict[str, dict[str, datetime]]:
    """Return who is stopping: task queue → identity → when it last reported it; of a hundred lanes of these queues at most.

    A worker reports it when it begins to stop, and each minute until it has ended. A server of before worker heartbeats knows
    none. Raises the SDK's errors.
    """
    reports: dict[str, dict[str, datetime]] = defaultdict(dict)
    of_these = " OR ".join(f"TaskQueue = '{name}'" for name in queues if "'" not in name)
    for worker in await _heartbeats(client, f"{STOPPING} AND ({of_these})", wait) if of_these else ():
        reported_at = worker.heartbeat_time.ToDatetime(tzinfo=UTC)
        if now - reported_at < POLL_LASTS:
            of_queue = reports[worker.task_queue]
            of_queue[worker.worker_identity] = max(reported_at, of_queue.get(worker.worker_identity, reported_at))
    return dict(reports)


async def worker_clocks(client: Client, *, wait: timedelta) -> dict[str, datetime]:
    """Return the last heartbeat of each worker that hasn't ended: identity → instant, by its own clock. Raises as above."""
    beats: dict[str, datetime] = {}
    for worker in await _heartbeats(client, RUNNING, wait):
        at = worker.heartbeat_time.ToDatetime(tzinfo=UTC)
        beats[worker.worker_identity] = max(at, beats.get(worker.worker_identity, at))
    return beats


async def _heartbeats(client: Client, query: str, wait: timedelta) -> list[WorkerHeartbeat]:
    """Return the last heartbeats, of a hundred lanes at most; a server of before worker heartbeats knows none."""
    request = ListWorkersRequest(namespace=client.namespace, page_size=LANES_LISTED, query=query)
    try:
        answer = await client.workflow_service.list_workers(request, timeout=wait)
    except RPCError as error:
        if error.status in {RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.INVALID_ARGUMENT}:
            return []
        raise
    return [each.worker_heartbeat for each in answer.workers_info]


async def oldest_activity(client: Client, task_queue: str, *, wait: timedelta) -> timedelta:
    """Return how long the oldest model request or tool call in the queue waits for a worker. Raises as above."""
    answer = await _describe(client, task_queue, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY, wait)
    return answer.stats.approximate_backlog_age.ToTimedelta()


async def _describe(
    client: Client, task_queue: str, kind: TaskQueueType.ValueType, wait: timedelta
) -> DescribeTaskQueueResponse:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind, report_stats=True
    )
    return await client.workflow_service.describe_task_queue(request, timeout=wait)


def _build_of(options: WorkerDeploymentOptions) -> str | None:
    versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return options.build_id if versioned else None


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build. ``open_runs``: how many of its runs have not ended. Temporal counts with a second's delay."""

    build_id: str
    current: bool
    open_runs: int


async def known_builds(client: Client, deployment_name: str, *, limit: int, wait: timedelta) -> list[Build]:
    """Return the newest builds that workers have started with, newest first. Raises the SDK's errors."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=deployment_name)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=wait)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []
        raise
    deployment = answer.worker_deployment_info
    current = deployment.routing_config.current_deployment_version.build_id
    newest = sorted(deployment.version_summaries, key=lambda each: each.create_time.ToNanoseconds(), reverse=True)
    names = [each.deployment_version.build_id for each in newest[:limit]]

    async def count(build_id: str) -> int:
        query = f"{OPEN_WORKFLOWS} AND TemporalWorkerDeploymentVersion = '{deployment_name}:{build_id}'"
        return (await client.count_workflows(query, rpc_timeout=wait)).count

    counts = await asyncio.gather(*(count(each) for each in names))
    return [
        Build(build_id=name, current=name == current, open_runs=many) for name, many in zip(names, counts, strict=True)
    ]
