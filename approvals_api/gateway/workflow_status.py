"""What Temporal knows of a live run now: its workflow, the task that fails, who polls, the activities in flight.

Only :class:`turngate.approvals_api.gateway.client.Gateway` calls it. It changes nothing and starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, VersioningBehavior, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import WorkflowExecutionVersioningInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from turngate.approvals_api.gateway.task_queues import OPEN_WORKFLOWS, QueueLook, look_at_queue
from turngate.domain import contract
from turngate.domain.errors import UnreadableContentError
from turngate.runtime.temporal_client import ENCODED_FAILURE

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

WAIT: Final = timedelta(seconds=2)
NEWEST_EVENTS: Final = 50
"""Looked through for the last end of a workflow task. What comes after it are signals, and ends of activities."""
LOST_TWICE: Final = 2
TIMED_OUT: Final = "no worker finished it in time"
FAILING: Final = (
    f"{OPEN_WORKFLOWS} AND TemporalReportedProblems IN ('category=WorkflowTaskFailed', 'category=WorkflowTaskTimedOut')"
)
"""Temporal lists a workflow there from some failed attempt on: the fifth unless its operator says otherwise, within a minute."""
FAILING_LISTED: Final = 100
FIRED_BY: Final = SearchAttributeKey.for_keyword("TemporalScheduledById")
ENDS_OF_TASKS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    }
)


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
class FailingTask:
    """A workflow task that fails and is tried again: the worker's workflow code can't continue the run.

    ``attempt``: the next or present one, from 2. ``failure``: what the last recorded attempt said; empty: not known.
    ``replays``: False: the code issues other commands than the history has.
    """

    attempt: int
    failure: str = ""
    replays: bool = True


@dataclass(frozen=True, kw_only=True)
class FailingWorkflows:
    """The workflows whose tasks Temporal reports as failing, the newest :data:`FAILING_LISTED`. ``run_ids``: agents' turns.

    ``fires``: workflow id → schedule id, of fires of schedules that haven't started their runs.
    """

    run_ids: frozenset[str] = frozenset()
    fires: Mapping[str, str] = field(default_factory=dict)


async def list_failing(client: Client) -> FailingWorkflows | None:
    """Return the workflows that can't continue, however old; None: this server has no such list. Raises the SDK's errors."""
    turns, fires = set(), {}
    try:
        async for each in client.list_workflows(FAILING, limit=FAILING_LISTED, rpc_timeout=WAIT):
            if each.workflow_type == contract.SCHEDULED_START:
                fires[each.id] = each.typed_search_attributes.get(FIRED_BY) or each.id
            else:
                turns.add(each.id)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:  # a server of before 1.30
            return None
        raise
    return FailingWorkflows(run_ids=frozenset(turns), fires=fires)


@dataclass(frozen=True, kw_only=True)
class WorkflowLook:
    """A workflow at one moment. ``closed``: it has ended. ``gone``: Temporal has no such workflow. ``away``: no answer.

    ``build``: only its workers can take the next task; None: only workers without a build. ``pinned``: it began with that
    build; else the build is the one that gets new runs. ``polled``: such a worker polls its task queue; None: not known.
    ``others``: the builds that others poll with; None among them: workers without a build. ``untaken_since``: since when its
    next workflow task waits for a worker; None: none waits. ``failing``: None: its workflow task doesn't fail.
    """

    state: Literal["running", "closed", "gone", "away"]
    task_queue: str = ""
    build: str | None = None
    pinned: bool = False
    polled: bool | None = None
    others: frozenset[str | None] = frozenset()
    untaken_since: datetime | None = None
    failing: FailingTask | None = None
    activities: tuple[PendingActivity, ...] = ()


async def look_at(client: Client, run_id: str) -> WorkflowLook:
    """Return what Temporal says about the run's workflow, in two or three short calls. Never raises for a server that is away."""
    try:
        async with asyncio.timeout(WAIT.total_seconds()):
            description = await client.get_workflow_handle(run_id).describe(rpc_timeout=WAIT)
            if description.status is not WorkflowExecutionStatus.RUNNING:
                return WorkflowLook(state="closed", task_queue=description.task_queue)
            failures = [
                await _message(client, each.last_failure) for each in description.raw_description.pending_activities
            ]
            failing = await _failing(client, description)
            queue = await look_at_queue(client, description.task_queue, wait=WAIT)
            return _running(description, queue, failures, failing)
    except RPCError as error:
        return WorkflowLook(state="gone" if error.status is RPCStatusCode.NOT_FOUND else "away")
    except (RuntimeError, TimeoutError):  # a lazy client that cannot connect raises RuntimeError
        return WorkflowLook(state="away")


async def _failing(client: Client, description: WorkflowExecutionDescription) -> FailingTask | None:
    raw = description.raw_description
    attempt = raw.pending_workflow_task.attempt if raw.HasField("pending_workflow_task") else 0
    if attempt <= 1:
        return None
    newest = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(workflow_id=description.id, run_id=description.run_id),
            maximum_page_size=NEWEST_EVENTS,
        ),
        timeout=WAIT,
    )
    # The server records the first failed attempt, and no later one.
    last = next((each for each in newest.history.events if each.event_type in ENDS_OF_TASKS), None)
    if last is None or last.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
        # A worker that is lost with its task lets it time out once, and the next worker takes it.
        return FailingTask(attempt=attempt, failure=TIMED_OUT) if attempt > LOST_TWICE else None
    failed = last.workflow_task_failed_event_attributes
    return FailingTask(
        attempt=attempt,
        failure=await _message(client, failed.failure) or _cause(failed.cause),
        replays=failed.cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR,
    )


def _cause(cause: WorkflowTaskFailedCause.ValueType) -> str:
    name = WorkflowTaskFailedCause.Name(cause).removeprefix("WORKFLOW_TASK_FAILED_CAUSE_")
    return name.lower().replace("_", " ")


async def _message(client: Client, failure: Failure) -> str:
    """Return what a failure says. An encrypted store's is in a payload; without its key, nothing is known of it."""
    if failure.message != ENCODED_FAILURE:
        return failure.message
    try:
        error = await client.data_converter.decode_failure(failure)
    except UnreadableContentError:
        return ""
    return error.message if isinstance(error, FailureError) else str(error)


def _running(
    description: WorkflowExecutionDescription, queue: QueueLook, failures: Sequence[str], failing: FailingTask | None
) -> WorkflowLook:
    raw = description.raw_description
    pinned_to = _pinned_build(raw.workflow_execution_info.versioning_info)
    build = queue.current_build if pinned_to is None else pinned_to
    polling = queue.builds(datetime.now(UTC))
    task = raw.pending_workflow_task if raw.HasField("pending_workflow_task") else None
    waits = task is not None and not task.HasField("started_time")
    pending = []
    for each, failure in zip(raw.pending_activities, failures, strict=True):
        taken = each.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        pending.append(
            PendingActivity(
                name=each.activity_type.name,
                taken=taken,
                attempt=each.attempt,
                since=_instant(each.last_started_time if taken else each.scheduled_time),
                last_failure=failure,
            )
        )
    return WorkflowLook(
        state="running",
        task_queue=description.task_queue,
        build=build,
        pinned=pinned_to is not None,
        polled=build in polling,
        others=frozenset(polling - {build}),
        untaken_since=_instant(task.scheduled_time) if task is not None and waits else None,
        failing=failing,
        activities=tuple(pending),
    )


def _pinned_build(versioning: WorkflowExecutionVersioningInfo) -> str | None:
    """Return the build that the run stays with; an operator may have moved it there by Temporal's own tools."""
    if versioning.versioning_override.HasField("pinned"):
        return versioning.versioning_override.pinned.version.build_id
    if versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        return versioning.deployment_version.build_id
    return None


def _instant(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
