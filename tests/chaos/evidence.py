"""The evidence of a chaos run: the store's rows, the workflows' histories, the tools' ledger, the operators' answers.

Only gathers; :mod:`checker` compares it all. Three of the four have nothing to do with the store: the
histories are Temporal's, ledger and answers are files and values of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chaos_app
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from turngate.domain import contract
from turngate.domain.conversation.messages import Message
from turngate.domain.requests import Resolution, Verb
from turngate.runtime.workflow_code import build_replayer
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, messages, recovery, runs
from turngate.workflows.agent_turn import AgentTurn

Code = Callable[[frozenset[str]], type[AgentTurn]]
"""The builds that did an execution's tasks → the workflow's code in them."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """One line of the ledger: a handler was started, with these arguments (JSON text in the order of its fields)."""

    tool: str
    name: str
    run: str
    call: str
    key: str
    input: str
    at: float

    @property
    def of(self) -> tuple[str, str]:
        return self.run, self.call


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One answer to a decision. ``http``: 200, 409 or 410. ``status``: of a 200. ``winner``: decision id a 409 names."""

    decision_id: str
    request_id: str
    by: str
    verb: Verb
    outcome: Resolution | None = None
    http: int
    status: str | None = None
    code: str = ""
    winner: str | None = None


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """One answer to an approval being taken back. ``http``: 200, 409 or 410."""

    request_id: str
    by: str
    http: int
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What a run was to do. ``calls``: how many its script makes; None: it is not followed to its last step."""

    run_id: str
    name: str
    calls: int | None
    may_be_interrupted: bool = False


@dataclass(kw_only=True)
class Workflow:
    """Temporal's view of a run. ``executions``: how many it took (continue-as-new). ``received``: the requests in its signals.

    ``builds``: of each execution, the newest first, the builds that did its tasks; none where workers have no build.
    ``task_failures``: causes of failed workflow tasks, with their messages. ``unresolved``: the last, if none succeeded later.
    ``replay_error``: why its history does not replay; empty when it does.
    """

    status: str
    executions: int = 1
    received: set[str] = field(default_factory=set)
    builds: list[frozenset[str]] = field(default_factory=list)
    task_failures: list[str] = field(default_factory=list)
    unresolved: str = ""
    replay_error: str = ""


@dataclass(kw_only=True)
class Recorded:
    """What the store holds of one run. ``decisions``: decision id → content. ``head``: the path to the run's head."""

    run: runs.Run
    calls: list[calls.Call]
    requests: list[requests.Request]
    decisions: dict[str, requests.Decision]
    executions: list[executions.Execution]
    events: list[events.Event]
    head: list[Message]
    chain_broken: bool


@dataclass(kw_only=True)
class Evidence:
    """All of it. ``runs``: the planned ones and their sub-agents' runs.

    ``manifests``: tool name → digest of its declaration, from the app itself.
    """

    planned: list[Planned]
    runs: dict[str, Recorded]
    workflows: dict[str, Workflow]
    ledger: list[Start]
    answers: list[Answered]
    manifests: dict[str, str]
    taken_back: list[TakenBack] = field(default_factory=list)


def read_ledger(file: Path) -> list[Start]:
    """Return the starts of handlers, in order."""
    if not file.exists():
        return []
    # A running process may have written half a line; the next read counts it.
    lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [
        Start(
            **{name: line[name] for name in ("tool", "name", "run", "call", "key", "at")}, input=text_of(line["input"])
        )
        for line in lines
    ]


def text_of(arguments: dict[str, Any]) -> str:
    """Return arguments as a script's model and an operator's edit write them."""
    return json.dumps(arguments, ensure_ascii=False)


async def gather(
    database: Database,
    client: Client,
    *,
    planned: Sequence[Planned],
    ledger: Path,
    answers: Iterable[Answered],
    taken_back: Iterable[TakenBack],
    code: Code = lambda _builds: AgentTurn,
) -> Evidence:
    """Read everything, once all runs are over. ``code``: what the histories of some builds are replayed with."""
    recorded_runs: dict[str, Recorded] = {}
    async with database.read() as conn:
        for plan in planned:
            below = await recovery.runs_below(conn, plan.run_id)
            for run_id in (plan.run_id, *(run.id for run in below)):
                recorded = await _recorded(conn, run_id)
                if recorded is not None:
                    recorded_runs[run_id] = recorded
    workflows = {run_id: await _workflow(client, run_id, code) for run_id in recorded_runs}
    known = {run_id: workflow for run_id, workflow in workflows.items() if workflow is not None}
    return Evidence(
        planned=list(planned),
        runs=recorded_runs,
        workflows=known,
        ledger=read_ledger(ledger),
        answers=list(answers),
        taken_back=list(taken_back),
        manifests={tool.name: tool.manifest.digest for tool in chaos_app.TOOLS},
    )


async def _recorded(conn: Connection, run_id: str) -> Recorded | None:
    run = await runs.get(conn, run_id)
    if run is None:
        return None
    run_requests = await requests.of_run(conn, run_id)
    contents = {
        each.decision_id: await requests.decision(conn, each.decision_id) for each in run_requests if each.decision_id
    }
    return Recorded(
        run=run,
        calls=await calls.of_run(conn, run_id),
        requests=run_requests,
        decisions={name: content for name, content in contents.items() if content is not None},
        executions=await executions.of_run(conn, run_id),
        events=await events.after(conn, 0, run_id=run_id, limit=10_000),
        head=[stored.message for stored in await messages.path_to(conn, run.head_message_id)],
        chain_broken=await events.chain_break(conn, run_id) is not None,
    )


async def _workflow(client: Client, run_id: str, code: Code) -> Workflow | None:
    """Read a run's executions from the newest one back to the first; None when Temporal has none."""
    try:
        described = await client.get_workflow_handle(run_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    workflow = Workflow(status=(described.status or WorkflowExecutionStatus.RUNNING).name, executions=0)
    execution: str = described.run_id
    while execution:
        history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        workflow.executions += 1
        _read(workflow, history)
        builds = builds_of(history)
        workflow.builds.append(builds)
        replayed = await build_replayer(code(builds)).replay_workflow(history, raise_on_replay_failure=False)
        if replayed.replay_failure is not None:
            workflow.replay_error = f"{type(replayed.replay_failure).__name__}: {replayed.replay_failure}"
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return workflow


def builds_of(history: WorkflowHistory) -> frozenset[str]:
    """Return the builds whose workers did tasks of this execution."""
    done = [
        event.workflow_task_completed_event_attributes.deployment_version.build_id
        for event in history.events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    return frozenset(done) - {""}


def _read(workflow: Workflow, history: WorkflowHistory) -> None:
    failure = ""
    for event in history.events:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                failed = event.workflow_task_failed_event_attributes
                failure = f"{WorkflowTaskFailedCause.Name(failed.cause)}: {failed.failure.message}"
                workflow.task_failures.append(failure)
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                failure = ""
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                signaled = event.workflow_execution_signaled_event_attributes
                request_id = json.loads(signaled.input.payloads[0].data) if signaled.input.payloads else None
                if signaled.signal_name == contract.DECIDED and isinstance(request_id, str):
                    workflow.received.add(request_id)
            case _:
                pass
    workflow.unresolved = workflow.unresolved or failure
