"""What Temporal knows of a live run now: does its workflow exist, does a worker poll, which activities are in flight.

Only :class:`approvals_api.gateway.client.Gateway` calls it. It changes nothing and starts nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from temporalio.api.enums.v1 import PendingActivityState, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

WAIT: Final = timedelta(seconds=2)
POLL_LASTS: Final = timedelta(seconds=70)
"""A worker's poll is held for up to a minute; the server remembers a poller for five, also one that was killed."""


@dataclass(frozen=True, kw_only=True)
class PendingActivity:
    """An activity in flight. ``attempt``: from 1. ``since``: when this attempt began, or was put in the queue.

    ``taken``: a worker has it now. ``last_failure``: of the attempt before; empty for the first.
    """

    name: str
    taken: bool
    attempt: int
    since: datetime
    last_failure: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkflowLook:
    """A workflow at one moment. ``closed``: it has ended. ``gone``: Temporal has no such workflow. ``away``: no answer.

    ``polled``: a worker polls its task queue; None: not known. ``untaken_since``: since when its next workflow task waits
    for a worker; None: none waits.
    """

    state: Literal["running", "closed", "gone", "away"]
    task_queue: str = ""
    polled: bool | None = None
    untaken_since: datetime | None = None
    activities: tuple[PendingActivity, ...] = ()


async def look_at(client: Client, run_id: str) -> WorkflowLook:
    """Return what Temporal says about the run's workflow, in two short calls. Never raises for a server that is away."""
    try:
        async with asyncio.timeout(WAIT.total_seconds()):
            description = await client.get_workflow_handle(run_id).describe(rpc_timeout=WAIT)
            if description.status is not WorkflowExecutionStatus.RUNNING:
                return WorkflowLook(state="closed", task_queue=description.task_queue)
            return _running(description, polled=await _is_polled(client, description.task_queue))
    except RPCError as error:
        return WorkflowLook(state="gone" if error.status is RPCStatusCode.NOT_FOUND else "away")
    except (RuntimeError, TimeoutError):  # a lazy client that cannot connect raises RuntimeError
        return WorkflowLook(state="away")


def _running(description: WorkflowExecutionDescription, *, polled: bool) -> WorkflowLook:
    raw = description.raw_description
    task = raw.pending_workflow_task if raw.HasField("pending_workflow_task") else None
    waits = task is not None and not task.HasField("started_time")
    pending = []
    for each in raw.pending_activities:
        taken = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        pending.append(
            PendingActivity(
                name=each.activity_type.name,
                taken=taken,
                attempt=each.attempt,
                since=_instant(each.last_started_time if taken else each.scheduled_time),
                last_failure=each.last_failure.message,
            )
        )
    return WorkflowLook(
        state="running",
        task_queue=description.task_queue,
        polled=polled,
        untaken_since=_instant(task.scheduled_time) if task is not None and waits else None,
        activities=tuple(pending),
    )


async def _is_polled(client: Client, task_queue: str) -> bool:
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=task_queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=WAIT)
    newest = max((_instant(each.last_access_time) for each in answer.pollers), default=None)
    return newest is not None and datetime.now(UTC) - newest < POLL_LASTS


def _instant(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
