"""Retries and timeouts of every activity, in one table, each row with its reason.

``schedule_to_close`` bounds all attempts together; ``start_to_close`` one attempt. An outage of our own store must not
fail a run that someone left alone for days, so what needs only the store is tried for a week.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import Priority, RetryPolicy
from temporalio.workflow import ActivityCancellationType

from turngate.domain import contract
from turngate.domain.contract import PlannedCall, RunLimits
from turngate.domain.runs.labels import DECIDED

OUTAGE = timedelta(days=7)
GRACE = timedelta(seconds=30)
"""Beyond a tool's own timeout, which its activity enforces: time to kill it and store the partial output."""

MODEL_REQUEST = timedelta(seconds=contract.MODEL_REQUEST_SECONDS)

FIRST = Priority(priority_key=DECIDED)
"""Ahead of everything that waits: a person has just decided, and looks. Else an activity has its run's priority."""


class Options(TypedDict, total=False):
    """Keyword arguments of ``workflow.start_activity``."""

    task_queue: str | None
    start_to_close_timeout: timedelta
    schedule_to_close_timeout: timedelta
    heartbeat_timeout: timedelta
    retry_policy: RetryPolicy
    cancellation_type: ActivityCancellationType
    priority: Priority


def call_model(limits: RunLimits, *, decided: bool = False) -> Options:
    """Long, heartbeating, retried while the agent's ``model_retry`` lasts; permanent provider errors are not retried.

    The activity itself says when to stop (a permanent error, or ``model_retry`` used up by waiting) and how long to wait
    for the provider. The intervals here apply after a lost worker: several in a row must not stall the run for a minute.
    The bound here is the outer one: waiting and one long answer together. ``decided``: a person decided a call of the step
    before.
    """
    options: Options = {
        "start_to_close_timeout": MODEL_REQUEST,
        "schedule_to_close_timeout": MODEL_REQUEST + timedelta(seconds=limits.model_retry_seconds),
        "heartbeat_timeout": timedelta(seconds=limits.heartbeat_timeout_seconds),
        "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=8)),
        # An interrupt cancels the request to the provider and waits for the activity to end, so that closing the step
        # sees a response that was stored, or none, and never one that is being stored.
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    }
    return {**options, "priority": FIRST} if decided else options


def run_tool(call: PlannedCall, limits: RunLimits, *, takes_next_step: bool = False, decided: bool = False) -> Options:
    """Retried for a week, because the execution row decides what a retry does, not the attempt count.

    A retry that finds its ``once`` call started opens an ``outcome`` request instead of starting it again; ``read`` and
    ``idempotent`` calls start again a bounded number of times. So a retry is always safe, also after a store outage.

    ``takes_next_step``: it may also ask the model (ADR 0033). That gives the tool no more time: the activity stops
    its heartbeat when the call has used up its own. ``decided``: a person has just decided the call.
    """
    attempt = timedelta(seconds=call.timeout_seconds) + GRACE
    options: Options = {
        "task_queue": call.queue,
        "start_to_close_timeout": attempt + MODEL_REQUEST if takes_next_step else attempt,
        "schedule_to_close_timeout": timedelta(seconds=call.timeout_seconds) + OUTAGE,
        "heartbeat_timeout": timedelta(seconds=limits.heartbeat_timeout_seconds),
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=30)
        ),
        # The partial output of an interrupted tool is stored before its call is closed.
        "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    }
    return {**options, "priority": FIRST} if decided else options


def _until_stored(attempt: timedelta) -> Options:
    """Return the row of one short transaction that must happen: tried until the store is back."""
    return {
        "start_to_close_timeout": attempt,
        "schedule_to_close_timeout": OUTAGE,
        "retry_policy": RetryPolicy(
            initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=30)
        ),
    }


# No one waits for it, and it must not be lost.
RECORD_EXPIRY = _until_stored(timedelta(seconds=10))

# Like an expiry: no one waits for it, and a reminder must not be lost.
CLIMB_LADDER = _until_stored(timedelta(seconds=10))

# One short transaction: the run must learn what was ordered, however long the store is away. A person ordered it.
READ_CONTROL: Options = {**_until_stored(timedelta(seconds=10)), "priority": FIRST}

# The same, for the runs below.
INTERRUPT_BELOW: Options = {**_until_stored(timedelta(seconds=10)), "priority": FIRST}

# No one waits for it; the schedule says how late a fire may come, and the store knows.
OPEN_SCHEDULED = _until_stored(timedelta(seconds=30))

# The run's one way out: tried until the store is back.
CLOSE_STEP = _until_stored(timedelta(seconds=30))

# One short transaction that the run waits for. It does not heartbeat: a worker that is lost in it is noticed by this
# timeout, which leaves a write time to wait for its lock (10 s).
SETTLE_CALL = _until_stored(timedelta(seconds=15))

TABLE = {
    contract.CALL_MODEL: call_model,
    contract.RUN_TOOL: run_tool,
    contract.RECORD_EXPIRY: RECORD_EXPIRY,
    contract.CLIMB_LADDER: CLIMB_LADDER,
    contract.READ_CONTROL: READ_CONTROL,
    contract.INTERRUPT_BELOW: INTERRUPT_BELOW,
    contract.OPEN_SCHEDULED: OPEN_SCHEDULED,
    contract.CLOSE_STEP: CLOSE_STEP,
    contract.SETTLE_CALL: SETTLE_CALL,
}
"""The table itself; a test holds it against the activities that the worker registers."""
