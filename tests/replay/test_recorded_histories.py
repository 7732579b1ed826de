"""I11: workflow code replays the recorded histories of every release whose runs may still live."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput, AgentTurnResult, ChildRun, OpenScheduledInput, ScheduledStartInput
from turngate.runtime.temporal_client import data_converter
from turngate.worker import SANDBOX
from turngate.workflows.agent_turn import AgentTurn
from turngate.workflows.endings import Ending
from turngate.workflows.scheduled_start import ScheduledStart

HISTORIES = sorted(Path(__file__).with_name("histories").glob("*/*.json"))
"""Of each release a folder."""
STORIES = {
    "approve",
    "asked-after-all",
    "budget",
    "cancelled",
    "continue-as-new-first",
    "continue-as-new-last",
    "continue-as-new-middle",
    "edit",
    "expire",
    "external-call",
    "external-call-lost",
    "failed",
    "finish-signal",
    "fork",
    "fused",
    "fused-in-vain",
    "fused-interrupted",
    "hand-off",
    "held",
    "interrupt",
    "ladder",
    "marked-gates",
    "park",
    "question",
    "quorum",
    "recovered",
    "reject",
    "scheduled-start",
    "signalled",
    "sub-agent-child",
    "sub-agent-failed-parent",
    "sub-agent-interrupted-child",
    "sub-agent-interrupted-parent",
    "sub-agent-parent",
    "superseded",
    "unattended",
    "unknown-outcome",
    "wait-until",
}
STOPPED = {
    "budget",
    "cancelled",
    "failed",
    "finish-signal",
    "fused-interrupted",
    "interrupt",
    "sub-agent-interrupted-child",
    "sub-agent-interrupted-parent",
    "wait-until",
}
"""Those whose end the workflow had to write itself: no answer of the model had."""


STARTS = [path for path in HISTORIES if path.stem == "scheduled-start"]
"""Those of what starts a run."""
TURNS = [path for path in HISTORIES if path not in STARTS]
"""Those of runs."""
CHANGED = [
    pytest.param(
        path,
        marks=() if path.stem in {"approve", "budget", "interrupt", "sub-agent-parent"} else pytest.mark.exhaustive,
    )
    for path in TURNS
]
"""Those that a changed workflow is tried with, which proves the test and not the workflow."""


def history_of(path: Path) -> WorkflowHistory:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    return WorkflowHistory.from_json(recorded["workflow_id"], recorded["history"])


def replayer(code: type[AgentTurn | ScheduledStart] | None = None) -> Replayer:
    """A replayer with the worker's sandbox and converter. The changed workflows below are passed through by name."""
    with_changes = SandboxedWorkflowRunner(restrictions=SANDBOX.restrictions.with_passthrough_modules(__name__))
    runner, workflows = (SANDBOX, [AgentTurn, ScheduledStart]) if code is None else (with_changes, [code])
    options = {"namespace": "default", "build_id": "of a test"}  # or the SDK hashes the code of every module
    return Replayer(workflows=workflows, workflow_runner=runner, data_converter=data_converter(), **options)


def named(path: Path) -> str:
    return f"{path.parent.name} {path.stem}"


def test_every_story_is_recorded() -> None:
    """Each way a run may go is among the histories; a glob that finds nothing would prove nothing."""
    assert {path.stem for path in HISTORIES} >= STORIES


@pytest.mark.parametrize("path", HISTORIES, ids=named)
async def test_i11_recorded_histories_replay(path: Path) -> None:
    """I11: today's workflow gives, event for event, the commands that were recorded."""
    replayed = await replayer().replay_workflow(history_of(path), raise_on_replay_failure=False)
    assert replayed.replay_failure is None


@workflow.defn(name=contract.AGENT_TURN)
class WithATimer(AgentTurn):
    """A change that no history knows: a pause before each step."""

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        return await super().run(start)

    async def _step(self) -> Ending | None:
        await workflow.sleep(1)
        return await super()._step()


@workflow.defn(name=contract.AGENT_TURN)
class WithoutClosing(AgentTurn):
    """A change in one place: a run that was stopped ends without closing its step."""

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        return await super().run(start)

    async def _end(self, ending: Ending) -> AgentTurnResult:
        return await super()._end(Ending.completed(ending.next))


@pytest.mark.parametrize("path", CHANGED, ids=named)
async def test_i11_a_changed_workflow_does_not_replay(path: Path) -> None:
    """I11: with a timer more, every history is refused: the test above can fail."""
    with pytest.raises(workflow.NondeterminismError):
        await replayer(WithATimer).replay_workflow(history_of(path))


@pytest.mark.parametrize("path", CHANGED, ids=named)
async def test_i11_a_change_is_noticed_where_it_is(path: Path) -> None:
    """I11: an activity left out at the end of runs that no answer ended is refused by their histories, and by no other."""
    replayed = await replayer(WithoutClosing).replay_workflow(history_of(path), raise_on_replay_failure=False)
    assert isinstance(replayed.replay_failure, workflow.NondeterminismError) is (path.stem in STOPPED)


@workflow.defn(name=contract.SCHEDULED_START)
class WithoutItsRun(ScheduledStart):
    """A change that loses runs: a fire that had to wait opens none."""

    @workflow.run
    async def run(self, start: ScheduledStartInput) -> str | None:
        return await super().run(start)

    async def _opened(self, start: ScheduledStartInput, order: OpenScheduledInput) -> ChildRun | None:
        return await super()._opened(start, order) and None


@pytest.mark.parametrize("path", STARTS, ids=named)
async def test_i11_a_changed_start_does_not_replay(path: Path) -> None:
    """I11: a fire's workflow that does not start its run is refused by the history of one that did."""
    with pytest.raises(workflow.NondeterminismError):
        await replayer(WithoutItsRun).replay_workflow(history_of(path))


def texts_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a history with its key; payloads decoded."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from texts_in(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each, key)
    elif isinstance(value, str):
        yield key, base64.b64decode(value).decode() if key in {"data", "encoding"} else value


@pytest.mark.parametrize("path", HISTORIES, ids=named)
def test_histories_do_not_say_where_they_were_made(path: Path) -> None:
    """No path, host, process or stack trace of the recording machine is kept."""
    texts = list(texts_in(json.loads(path.read_text(encoding="utf-8"))))
    # The server names itself where one workflow signals another, and where its clock starts one.
    named_by = {text for key, text in texts if key == "identity"} - {"recorder", "history-service"}
    assert all(each.startswith("temporal-scheduler-default-sched_") for each in named_by)
    assert [key for key, _ in texts if key in {"stackTrace", "buildId", "binaryChecksum"}] == []
    words = "\n".join(text for key, text in texts if key != "encoding")
    assert not re.search(r"(?m)(^|[^\w])/\w", words), "a path"
    assert not re.search(r"\d+@\w", words), "a process of a host"
