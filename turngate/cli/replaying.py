"""Replaying the histories of runs: can this release's workflow code go on with them?

Importing this module imports Temporal; the command itself (``replay_commands``) does not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pydantic import BaseModel
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from turngate.domain.contract import AGENT_TURN, SCHEDULED_START, AgentTurnInput, ScheduledStartInput
from turngate.domain.errors import NotFoundError, UnavailableError

INPUTS: Final[dict[str, type[BaseModel]]] = {AGENT_TURN: AgentTurnInput, SCHEDULED_START: ScheduledStartInput}
"""What workflows of ours are started with: runs, and fires of schedules, one of which may wait for a run's end."""
_OURS: Final = f"WorkflowType IN ({', '.join(repr(name) for name in INPUTS)})"
OPEN: Final = f"{_OURS} AND ExecutionStatus = 'Running'"
EVERY: Final = f"{_OURS} AND ExecutionStatus != 'ContinuedAsNew'"
"""An execution that continued as new is never run again; its run's newest one stands for the run."""

Kind = Literal["incompatible", "unreadable", "broken", "other_workflow"]
MEANING: Final[dict[Kind, str]] = {
    "incompatible": (
        "this release's workflow code cannot continue this run: keep a worker of the release that runs it until it has "
        "ended (`turngate worker --build-id`), or interrupt the run before the deploy"
    ),
    "unreadable": (
        "this release cannot read what the run's workers wrote: check with the payload converter and codec that they use, "
        "or keep their release for this run until it has ended"
    ),
    "broken": (
        "this release's workflow code fails on this run: keep the release that runs it until it has ended, and report this"
    ),
    "other_workflow": f"this is no run of Turngate: give histories of the workflow types {' and '.join(INPUTS)}",
}
_EVENT = re.compile(r"HistoryEvent\(id: (\d+), (\w+)\)")
_MESSAGE = re.compile(r'message: "((?:[^"\\]|\\.)*)"')
"""The SDK gives a failed replay's cause as its core prints it, causes nested: the innermost one comes last."""


@dataclass(frozen=True, kw_only=True)
class Failing:
    """Why a run cannot go on, and the event of its history (its id counts from 1) that shows it."""

    kind: Kind
    reason: str
    event_id: int
    event: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One history's check. ``events``: how many there are; ``failing`` None: this release goes on with it."""

    run_id: str
    execution_run_id: str
    events: int
    failing: Failing | None

    def for_programs(self) -> dict[str, Any]:
        """Return this as JSON's values."""
        return {**asdict(self), "ok": self.failing is None}


async def check(history: WorkflowHistory, replayer: Replayer) -> Checked:
    """Replay one history, whose workflow may be anywhere on its way or have ended."""
    return Checked(
        run_id=history.workflow_id,
        execution_run_id=history.run_id,
        events=len(history.events),
        failing=await _failing(history, replayer),
    )


async def _failing(history: WorkflowHistory, replayer: Replayer) -> Failing | None:
    started = history.events[0].workflow_execution_started_event_attributes
    begins_with = INPUTS.get(started.workflow_type.name)
    if begins_with is None:
        return Failing(
            kind="other_workflow",
            reason=f"its workflow type is {started.workflow_type.name!r}",
            event_id=1,
            event="WorkflowExecutionStarted",
        )
    converter = replayer.config().get("data_converter", DataConverter.default)
    try:
        await converter.decode(started.input.payloads, [begins_with])
    except Exception as error:  # noqa: BLE001 - a codec is anybody's code
        return Failing(kind="unreadable", reason=_one_line(error), event_id=1, event="WorkflowExecutionStarted")
    if not _begun(history):
        return None  # It has not begun: there is nothing to replay, and the SDK would wait for it for ever.
    failure = await _replayed(history, replayer)
    return None if failure is None else await _explained(failure, history, replayer)


async def _replayed(history: WorkflowHistory, replayer: Replayer) -> Exception | None:
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


async def _explained(failure: Exception, history: WorkflowHistory, replayer: Replayer) -> Failing:
    messages = [each.replace('\\"', '"').replace("\\n", " ") for each in _MESSAGE.findall(str(failure))]
    named = _EVENT.search(str(failure))
    event_id, event = (int(named[1]), named[2]) if named else await _first_refused(history, replayer)
    if isinstance(failure, NondeterminismError):
        kind: Kind = "incompatible"
    else:
        kind = "unreadable" if "Failed decoding arguments" in messages else "broken"
    return Failing(kind=kind, reason=messages[-1] if messages else _one_line(failure), event_id=event_id, event=event)


async def _first_refused(history: WorkflowHistory, replayer: Replayer) -> tuple[int, str]:
    """Return the event with which the history begins to fail, where the SDK names none: by halving, some 10 replays."""
    fits, fails = _begun(history) - 1, len(history.events)  # how many events from the start
    while fits + 1 < fails:
        middle = (fits + fails) // 2
        if await _replayed(WorkflowHistory(history.workflow_id, history.events[:middle]), replayer) is None:
            fits = middle
        else:
            fails = middle
    event = history.events[fails - 1]
    words = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").split("_")
    return event.event_id, "".join(word.capitalize() for word in words)


def _begun(history: WorkflowHistory) -> int:
    """Return how many events there are up to the first completed workflow task; 0 when there is none."""
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return next((count for count, event in enumerate(history.events, 1) if event.event_type == done), 0)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


async def named_histories(client: Client, run_ids: Sequence[str]) -> AsyncIterator[WorkflowHistory]:
    """Yield the newest execution's history of each run.

    Raises NotFoundError when Temporal has none, and UnavailableError when it does not answer.
    """
    for run_id in run_ids:
        with _reached():
            history = await _fetched(client, run_id)
        if history is None:
            raise NotFoundError(
                f"Temporal has no workflow of run {run_id}: `turngate runs` lists runs; those that ended are forgotten "
                "after the namespace's retention"
            )
        yield history


async def listed_histories(client: Client, query: str, *, limit: int | None) -> AsyncIterator[WorkflowHistory]:
    """Yield the history of each run that Temporal finds by ``query``; at most ``limit``. Raises UnavailableError."""
    with _reached():
        async for found in client.list_workflows(query, limit=limit):
            history = await _fetched(client, found.id, found.run_id)
            if history is not None:  # else forgotten meanwhile
                yield history


async def _fetched(client: Client, run_id: str, execution_run_id: str | None = None) -> WorkflowHistory | None:
    try:
        return await client.get_workflow_handle(run_id, run_id=execution_run_id).fetch_history()
    except RPCError as error:
        if error.status in {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}:
            return None
        raise


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        raise UnavailableError(f"Temporal stopped answering: {error.message}. Try again once it does") from error
