"""What a live run waits for, according to the store and Temporal, in one table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from turngate.approvals_api.gateway.workflow_status import FailingTask, PendingActivity, WorkflowLook
from turngate.approvals_api.runs.stalled import find_stall, is_stalled
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.results import Ok
from turngate.store.clock import as_text
from turngate.store.requests.requests import ListedRequest
from turngate.wire.calls import CallView
from turngate.wire.runs import RunSummary

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
LONG_AGO, JUST_NOW = NOW - timedelta(hours=1), NOW - timedelta(seconds=1)
POLLED = WorkflowLook(state="running", task_queue="q", polled=True)
LATER = "2026-05-04T13:00:00.000000+00:00"


def run(created_at: datetime = LONG_AGO, **more: Any) -> RunSummary:
    return RunSummary(
        id="run_1", conversation_id="c", agent="a", agent_version="1", model="m", workspace=None, task="t",
        status="running", reason="", error_class="", step=1, started_by="s", created_at=as_text(created_at), ended_at=None,
        **more,
    )  # fmt: skip


def open_call(**more: Any) -> CallView:
    facts: dict[str, Any] = {
        "tool_call_id": "call_1", "tool_name": "pay", "input": "{}", "edited_input": None, "digest": "d", "effect": "once",
        "disposition": "ask", "verdict": None, "requests": [], "execution": "not_started", "attempts": 0,
        "started_at": None, "ended_at": None, "result": None, "settled_at": None,
    }  # fmt: skip
    return CallView(**{**facts, **more})


def executing(**more: Any) -> CallView:
    return open_call(execution="executing", attempts=1, started_at=as_text(LONG_AGO), **more)


def request(**more: Any) -> ListedRequest:
    facts: dict[str, Any] = {
        "id": "rq_1", "run_id": "run_1", "tool_call_id": "call_1", "kind": "approval", "status": "pending", "agent": "a",
        "tool_name": "pay", "input": "{}", "digest": "d", "rule": "r", "reason": "", "risk": "low", "expires_at": LATER,
        "created_at": as_text(LONG_AGO), "verb": None, "decided_by": None, "decided_at": None, "path": "a", "quorum": 1,
        "urgent_at": LATER, "approvals": 0, "rungs_climbed": 0, "parked_at": None, "claimed_by": None, "claimed_until": None,
    }  # fmt: skip
    return ListedRequest(**{**facts, **more})


def looked(
    *, name: str = "call_model", taken: bool = False, attempt: int = 1, since: datetime = LONG_AGO
) -> WorkflowLook:
    doing = PendingActivity(name=name, taken=taken, attempt=attempt, since=since, last_failure="no way")
    return WorkflowLook(state="running", task_queue="q", polled=True, activities=(doing,))


def unpolled(**more: Any) -> WorkflowLook:
    return WorkflowLook(state="running", task_queue="q", polled=False, untaken_since=LONG_AGO, **more)


def failing(task: FailingTask) -> WorkflowLook:
    return WorkflowLook(state="running", task_queue="q", polled=True, untaken_since=LONG_AGO, failing=task)


OF_BUILD = (
    "It began with build 1, and no worker of that build polls the task queue 'q'. Workers of build 2 and "
    "without a build can't continue it."
)
OF_NEW = (
    "Build 2 gets new runs, and no worker of that build polls the task queue 'q'. Workers without a build get none."
)
OF_NONE = (
    "No build is current, and no worker without a build polls the task queue 'q'. Workers of build 1 and "
    "of build 2 get it after `turngate builds --set-current BUILD`."
)
ANSWERED = "pay waits for a person's answer."
NOT_TAKEN = "No worker has taken its next task: all are busy, or the worker of its tool's queue is not running."
GONE = "Temporal has no workflow of this run, but the run is live in the store: it can't continue by itself."
TRIED = "The model fails and is retried, attempt 4 now: no way"
CASES: dict[str, tuple[RunSummary, list[CallView], list[ListedRequest], WorkflowLook, list[tuple[str, str]]]] = {
    "works": (run(), [], [], POLLED, []),
    "settled": (run(), [open_call(result=Ok(value={}))], [request()], POLLED, []),
    "consent": (run(), [open_call()], [request()], POLLED, [("person", "pay waits for a person's approval.")]),
    "question": (run(), [open_call()], [request(kind="question")], POLLED, [("person", ANSWERED)]),
    "outcome": (
        run(), [executing()], [request(kind="outcome")], POLLED,
        [("person", "pay may or may not have taken effect: a person must say which.")],
    ),
    "parked": (
        run(), [open_call()], [request(parked_at=LATER)], POLLED,
        [("person", "pay waits for a person's approval; it is parked and does not expire.")],
    ),
    "tool": (run(), [executing()], [], POLLED, [("tool", "pay runs.")]),
    "tool again": (run(), [executing().model_copy(update={"attempts": 3})], [], POLLED, [("tool", "pay runs, in attempt 3.")]),
    "timer": (run(), [executing(signal=WaitUntil(seconds=60))], [], POLLED, [("timer", "pay waits for a timer.")]),
    "sub-agent": (
        run(), [executing(child_run_id="run_2")], [], POLLED,
        [("sub_agent", "pay waits for a sub-agent's run.")],
    ),
    "model": (run(), [], [], looked(taken=True), [("model", "The model was called and has not answered yet.")]),
    "model, asked by the activity of the last call": (
        run(), [open_call(result=Ok(value={}), settled_at=as_text(JUST_NOW))], [], looked(name="run_tool", taken=True),
        [("model", "The model was called and has not answered yet.")],
    ),
    "a call beside one that has its result": (
        run(), [open_call(result=Ok(value={})), executing()], [], looked(name="run_tool", taken=True),
        [("tool", "pay runs.")],
    ),
    "model tried again": (run(), [], [], looked(attempt=4), [("model_retrying", TRIED)]),
    "model tried again now": (run(), [], [], looked(attempt=4, taken=True), [("model_retrying", TRIED)]),
    "just put in the queue": (run(), [], [], looked(since=JUST_NOW), []),
    "not taken up": (
        run(), [], [], looked(name="run_tool"),
        [("no_worker", NOT_TAKEN)],
    ),
    "workflow task not taken up": (
        run(), [], [], WorkflowLook(state="running", task_queue="q", polled=True, untaken_since=LONG_AGO),
        [("no_worker", NOT_TAKEN)],
    ),
    "pinned to a build whose workers are gone": (
        run(), [], [], unpolled(build="1", pinned=True, others=frozenset({"2", None})),
        [("no_worker", OF_BUILD)],
    ),
    "new, and the current build's workers are gone": (
        run(), [], [], unpolled(build="2", others=frozenset({None})),
        [("no_worker", OF_NEW)],
    ),
    "new, and no build is current": (
        run(), [], [], unpolled(others=frozenset({"1", "2"})),
        [("no_worker", OF_NONE)],
    ),
    "of a build, and no worker at all": (
        run(), [], [], unpolled(build="1", pinned=True), [("no_worker", "No worker of build 1 polls the task queue 'q'.")],
    ),
    "no worker, though a person is asked": (
        run(), [open_call()], [request()], WorkflowLook(state="running", task_queue="q", polled=False),
        [("no_worker", "No worker polls the task queue 'q'."), ("person", "pay waits for a person's approval.")],
    ),
    "code that no longer replays it": (
        run(), [open_call()], [request()], failing(FailingTask(attempt=5, failure="Nondeterminism error: x", replays=False)),
        [
            ("workflow_fails", "The workers' code no longer replays the run, attempt 5: Nondeterminism error: x"),
            ("person", "pay waits for a person's approval."),
        ],
    ),
    "code that fails, with a long text": (
        run(paused_at=LATER), [], [], failing(FailingTask(attempt=2, failure="no\nway " * 100)),
        [
            ("workflow_fails", f"The run's workflow task fails, attempt 2: {'no way ' * 39}no way… 420 more characters"),
            ("paused", "It is paused"),
        ],
    ),
    "code that fails, and its workers are gone": (
        run(), [], [], replace(failing(FailingTask(attempt=2)), polled=False),
        [
            ("workflow_fails", "The run's workflow task fails, attempt 2; its error is not known."),
            ("no_worker", "No worker polls the task queue 'q'."),
        ],
    ),
    "no workflow": (
        run(), [open_call()], [request()], WorkflowLook(state="gone"),
        [("workflow_gone", GONE)],
    ),
    "no workflow yet": (run(JUST_NOW), [], [], WorkflowLook(state="gone"), []),
    "Temporal away": (
        run(), [], [], WorkflowLook(state="away"),
        [("temporal_away", "Temporal does not answer, so the state of its workflow is unknown.")],
    ),
    "paused": (
        run(paused_at=LATER, paused_by="ada", pause_reason="lunch"), [], [], POLLED, [("paused", "It is paused by ada: lunch")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_live_run_waits_for_this(case: str) -> None:
    """Each state gives its reasons, beginning with those that need someone to act."""
    run, calls, pending, look, expected = CASES[case]
    reasons = find_stall(run, calls, {each.tool_call_id: each for each in pending}, look, now=NOW)
    assert [(each.kind, each.says) for each in reasons] == expected


@pytest.mark.parametrize(
    ("case", "still_for", "counts"),
    [
        ("consent", 60, True),
        ("consent", 7_200, False),
        ("tool", 60, True),
        ("model", 7_200, False),
        ("timer", 0, False),
        ("sub-agent", 0, False),
        ("paused", 7_200, True),
        ("not taken up", 7_200, True),
        ("no workflow", 7_200, True),
        ("code that no longer replays it", 7_200, True),
    ],
)
def test_some_waits_count_as_stalled(case: str, still_for: int, counts: bool) -> None:
    """A wait that passes by itself counts after a while or never; any other counts at once."""
    run, calls, pending, look, _expected = CASES[case]
    [first, *_more] = find_stall(run, calls, {each.tool_call_id: each for each in pending}, look, now=NOW)
    assert is_stalled(first, NOW, timedelta(seconds=still_for)) is counts
