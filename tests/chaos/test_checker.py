"""The checker of the chaos runs finds each planted defect in evidence that is otherwise whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

import chaos_app
import pytest
from checker import Kind, violations
from evidence import Answered, Evidence, Planned, Recorded, Start, TakenBack, Workflow, text_of

from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from turngate.domain.digest import call_digest
from turngate.domain.policy.terms import AskTerms
from turngate.domain.tools import results
from turngate.domain.tools.results import TOOL_RESULT, Failure, Ok, rejected
from turngate.store.clock import as_text, from_text
from turngate.store.events.events import Event
from turngate.store.requests.requests import Decision, Request, again_id
from turngate.store.runs.calls import Call
from turngate.store.runs.executions import Execution
from turngate.store.runs.runs import Run

Row = TypeVar("Row")
RUN = "run_1"
NOON = "2026-01-02T12:00:00.000000+00:00"
MANIFESTS = {tool.name: tool.manifest.digest for tool in chaos_app.TOOLS}
TOOL = {
    "paid": "pay", "edited": "pay", "refused": "pay", "posted": "post", "lost": "pay", "regretted": "transfer"
}  # fmt: skip
GRACE_SECONDS = 2
DONE = Ok(value={"done": "it"})
RESULTS = dict.fromkeys(TOOL, DONE) | {"refused": rejected("ann", "no")}


def row(of: type[Row], /, **columns: Any) -> Row:
    """Return a row with these columns, and the rest empty."""
    empty = {"str": "", "int": 0, "bool": False}
    rest = {
        each.name: empty.get(str(each.type))
        for each in fields(of)  # type: ignore[arg-type]
        if each.name not in columns and each.default is MISSING and each.default_factory is MISSING
    }
    return of(**rest, **columns)


def arguments(call: str, amount: int = 1) -> str:
    return text_of({"name": call, "amount": amount, "hold": False, "milliseconds": 0})


def digest(call: str, text: str) -> str:
    tool = TOOL[call]
    return call_digest(
        tool_name=tool,
        manifest_digest=MANIFESTS[tool],
        raw_input=text,
        run_id=RUN,
        tool_call_id=call,
        policy_version="v1",
        nonce="",
        defaults=None,
    )


def start(call: str, amount: int = 1, *, at: float = 5.0) -> Start:
    began = from_text(NOON).timestamp() + at
    return Start(
        tool=TOOL[call], name=call, run=RUN, call=call, key=f"k-{call}", input=arguments(call, amount), at=began
    )


def request(call: str, verb: str, status: str, kind: str = "approval", grace: int = 0) -> Request:
    name = f"rq-{call}-{kind}"
    return row(
        Request,
        id=name,
        run_id=RUN,
        tool_call_id=call,
        kind=kind,
        status=status,
        digest=digest(call, arguments(call)),
        verb=verb,
        decision_id=f"d-{name}",
        decided_by="ann",
        decided_at=NOON,
        terms=AskTerms(grace_seconds=grace).model_dump_json(),
    )


def whole() -> Evidence:
    """A run with a call that was approved, one edited, one rejected, one ungated, one lost and sent again, one regretted."""
    requests = [
        request("paid", "approve", "approved"),
        request("edited", "edit", "approved"),
        request("refused", "reject", "rejected"),
        request("lost", "approve", "approved"),
        request("lost", "respond", "responded", "outcome"),
        request("regretted", "approve", "approved", grace=GRACE_SECONDS),
    ]
    again = replace(requests[-1], id=again_id(requests[-1]), decision_id="d-again")
    requests.append(again)
    edit = row(Decision, id="d-rq-edited-approval", digest=digest("edited", arguments("edited", 9)), verb="edit")
    resolution = row(Decision, id="d-rq-lost-outcome", outcome="did_not_happen", verb="respond")
    calls = [
        row(
            Call,
            run_id=RUN,
            tool_call_id=call,
            tool_name=tool,
            input=arguments(call),
            disposition="run" if tool == "post" else "ask",
            digest=digest(call, arguments(call)),
            policy_version="v1",
            result=TOOL_RESULT.dump_json(RESULTS[call]).decode(),
        )
        for call, tool in TOOL.items()
    ]
    call_parts = [
        ToolCallPart(tool_call_id=each.tool_call_id, tool_name=each.tool_name, input=each.input) for each in calls
    ]
    result_parts = [
        ToolResultPart(tool_call_id=call, tool_name=tool, result=RESULTS[call]) for call, tool in TOOL.items()
    ]
    head = [
        user_message("go"),
        Message(role="assistant", parts=tuple(call_parts)),
        Message(role="tool", parts=tuple(result_parts)),
        Message(role="assistant", parts=(TextPart(text="Done."),)),
    ]
    ran = {
        "paid": "d-rq-paid-approval",
        "edited": edit.id,
        "posted": None,
        "lost": resolution.id,
        "regretted": "d-again",
    }
    executed = [
        row(
            Execution,
            run_id=RUN,
            tool_call_id=call,
            state="succeeded",
            decision_id=decision,
            digest=edit.digest if call == "edited" else digest(call, arguments(call)),
        )
        for call, decision in ran.items()
    ]
    noted = [row(Event, type="execution.started", payload={"tool_call_id": call}) for call in (*ran, "lost")]
    recorded = Recorded(
        run=row(Run, id=RUN, status="completed"),
        calls=calls,
        requests=requests,
        decisions={edit.id: edit, resolution.id: resolution},
        executions=executed,
        events=[*noted, row(Event, type="run.ended", payload={})],
        head=head,
        chain_broken=False,
    )
    answers = [
        Answered(
            decision_id=each.decision_id or "",
            request_id=each.id,
            by="ann",
            verb=each.verb or "approve",
            http=200,
            status=each.status,
        )
        for each in requests
    ]
    refused = {"http": 409, "status": None, "code": "already_decided", "winner": "d-rq-paid-approval"}
    lost = replace(answers[0], decision_id="d-late", by="bob", **refused)
    return Evidence(
        planned=[Planned(run_id=RUN, name="one", calls=len(TOOL))],
        runs={RUN: recorded},
        workflows={RUN: Workflow(status="COMPLETED", received={each.id for each in requests})},
        ledger=[
            start("paid"),
            start("edited", 9),
            start("posted"),
            start("lost"),
            start("lost", at=6.0),
            start("regretted"),
        ],
        answers=[*answers, lost],
        manifests=MANIFESTS,
        taken_back=[
            TakenBack(request_id=requests[-2].id, by="ann", http=200),
            TakenBack(request_id=again.id, by="ann", http=409, code="already_started"),
        ],
    )


def test_whole_evidence_is_found_whole() -> None:
    """Evidence of a correct run has no violation."""
    assert violations(whole()) == []


def interrupted(evidence: Evidence) -> Evidence:
    """The same, by now of a run that may be interrupted, and was."""
    evidence.planned = [replace(evidence.planned[0], calls=None, may_be_interrupted=True)]
    evidence.runs[RUN].run = replace(evidence.runs[RUN].run, status="interrupted")
    evidence.workflows[RUN].status = "COMPLETED"
    return evidence


def unplanned(evidence: Evidence, *, started: bool) -> Evidence:
    """Add a response whose call an interrupt closed before it was planned."""
    asks = ToolCallPart(tool_call_id="late", tool_name="pay", input="{}")
    closed = ToolResultPart(
        tool_call_id="late", tool_name="pay", result=results.interrupted("ann", "", started=started)
    )
    evidence.runs[RUN].head += [Message(role="assistant", parts=(asks,)), Message(role="tool", parts=(closed,))]
    return evidence


def unstarted(evidence: Evidence, **values: Any) -> Evidence:
    """With a sub-agent's run that its parent's end ended before its workflow was started."""
    child = replace(evidence.runs[RUN].run, **{"id": "child", "parent_run_id": RUN, "step": 0, **values})
    ended = [row(Event, type="run.ended", payload={})]
    nothing: dict[str, Any] = {"calls": [], "requests": [], "decisions": {}, "executions": []}
    evidence.runs["child"] = Recorded(run=child, events=ended, head=[], chain_broken=False, **nothing)
    return evidence


def test_an_interrupt_may_come_before_a_plan_and_before_a_sub_agents_workflow() -> None:
    """A response that was closed unplanned has no rows of calls, and a child that never began no workflow: both are whole."""
    assert violations(interrupted(whole())) == []
    assert violations(unplanned(interrupted(whole()), started=False)) == []
    assert violations(unstarted(interrupted(whole()))) == []
    assert [each.kind for each in violations(unplanned(interrupted(whole()), started=True))] == ["conversation"]
    assert [each.kind for each in violations(unplanned(whole(), started=False))] == ["conversation"]
    assert [each.kind for each in violations(unstarted(interrupted(whole()), step=1))] == ["workflow"]
    assert [each.kind for each in violations(unstarted(interrupted(whole()), parent_run_id=None, status="completed"))]


def test_a_decision_that_settles_its_call_may_be_seen_without_a_signal() -> None:
    """Beside a call that runs in the same step, and where the activity that asked may be repeated; an approval never is."""
    beside = whole()
    beside.workflows[RUN].received.discard("rq-refused-approval")
    assert violations(beside) == []
    alone = whole()
    alone.workflows[RUN].received.discard("rq-refused-approval")
    change(alone.runs[RUN].calls, of_call(alone, "refused"), step=2)
    assert [each.kind for each in violations(alone)] == ["workflow"]
    repeated = whole()
    repeated.workflows[RUN].received.discard("rq-lost-outcome")
    assert violations(repeated) == []
    approved = whole()
    approved.workflows[RUN].received.discard("rq-paid-approval")
    assert [each.kind for each in violations(approved)] == ["workflow"]


def of_call(evidence: Evidence, call: str) -> int:
    return next(at for at, each in enumerate(evidence.runs[RUN].calls) if each.tool_call_id == call)


def change(rows: list[Row], place: int, /, **values: Any) -> None:
    rows[place] = replace(rows[place], **values)  # type: ignore[type-var]


def without_result(of: Evidence) -> None:
    change(of.runs[RUN].calls, of_call(of, "paid"), result=None)


def other_result(of: Evidence) -> None:
    change(of.runs[RUN].calls, of_call(of, "paid"), result=TOOL_RESULT.dump_json(Failure(kind="unknown")).decode())


def never_started(of: Evidence) -> None:
    of.ledger = [line for line in of.ledger if line.call != "paid"]


def path_without_results(of: Evidence) -> None:
    del of.runs[RUN].head[2]


def path_without_calls(of: Evidence) -> None:
    del of.runs[RUN].head[1:3]


def status(status: str) -> Callable[[Evidence], None]:
    return lambda of: setattr(of.runs[RUN], "run", replace(of.runs[RUN].run, status=status))


def answered(**values: Any) -> Callable[[Evidence], None]:
    return lambda of: change(of.answers, 0, **values)


def of_request(place: int, **values: Any) -> Callable[[Evidence], None]:
    return lambda of: change(of.runs[RUN].requests, place, **values)


def saw(**values: Any) -> Callable[[Evidence], None]:
    return lambda of: change(of.ledger, 0, **values)


def workflow(**values: Any) -> Callable[[Evidence], None]:
    def defect(of: Evidence) -> None:
        for name, value in values.items():
            setattr(of.workflows[RUN], name, value)

    return defect


DEFECTS: dict[str, tuple[Kind, Callable[[Evidence], None]]] = {
    "a second start of a once call": ("twice", lambda of: of.ledger.append(start("paid"))),
    "a third start, and one word that it did not happen": ("twice", lambda of: of.ledger.append(start("lost"))),
    "a second start of an ungated once call": ("twice", lambda of: of.ledger.append(start("posted"))),
    "a decision redeemed by two calls": (
        "twice",
        lambda of: change(of.runs[RUN].executions, 1, decision_id="d-rq-paid-approval"),
    ),
    "a call without a result": ("lost", without_result),
    "a success that nothing started": ("lost", never_started),
    "a call that was never made": ("lost", lambda of: change(of.planned, 0, calls=len(TOOL) + 1)),
    "a run that is not there": ("lost", lambda of: change(of.planned, 0, run_id="run_2")),
    "a run that failed": ("lost", status("failed")),
    "a run that still runs": ("lost", status("running")),
    "an interrupt that no one sent": ("lost", status("interrupted")),
    "a request that still waits": ("lost", of_request(0, status="pending", decision_id=None, verb=None)),
    "a running execution": ("lost", lambda of: change(of.runs[RUN].executions, 0, state="executing")),
    "an effect of a rejected call": ("unapproved", lambda of: of.ledger.append(start("refused"))),
    "an effect of an unknown call": (
        "unapproved",
        lambda of: of.ledger.append(replace(start("paid"), call="made up")),
    ),
    "an approval that is gone": ("unapproved", lambda of: of.runs[RUN].requests.pop(0)),
    "other bytes than were approved": ("unapproved", saw(input=arguments("paid", 2))),
    "the model's bytes in place of the edit's": (
        "unapproved",
        lambda of: change(of.ledger, 1, input=arguments("edited")),
    ),
    "another digest in the execution": ("unapproved", lambda of: change(of.runs[RUN].executions, 0, digest="other")),
    "an effect before its approval": ("unapproved", saw(at=from_text(NOON).timestamp() - 1)),
    "a start during the grace": ("unapproved", lambda of: change(of.ledger, -1, at=start("regretted", at=1.0).at)),
    "an approval redeemed that was taken back": (
        "unapproved",
        lambda of: change(of.runs[RUN].executions, -1, decision_id="d-rq-regretted-approval"),
    ),
    "a start after its approval was taken back": ("unapproved", of_request(-1, status="rejected", verb="reject")),
    "an approval taken back, and not asked about again": ("decision", lambda of: of.runs[RUN].requests.pop()),
    "an approval of no one taken back": ("decision", lambda of: change(of.taken_back, 0, request_id="rq-unknown")),
    "an approval taken back too late that is taken back": (
        "decision",
        lambda of: change(of.taken_back, 0, http=409, code="already_started"),
    ),
    "taking back answered otherwise": ("decision", lambda of: change(of.taken_back, 1, http=500)),
    "a start that the log does not have": ("unapproved", lambda of: of.runs[RUN].events.pop(0)),
    "an execution that is not on record": ("unapproved", lambda of: of.runs[RUN].executions.pop(0)),
    "another call's decision redeemed": (
        "unapproved",
        lambda of: change(of.runs[RUN].executions, 0, decision_id="d-rq-refused-approval"),
    ),
    "an accepted decision that did not win": ("decision", of_request(0, decision_id="d-late")),
    "a decision accepted and forgotten": (
        "decision",
        lambda of: change(of.answers, -1, http=200, status="approved", code="", winner=None),
    ),
    "a winner whose answer says that it lost": ("decision", answered(http=409, status=None)),
    "an answer of another status": ("decision", answered(status="rejected")),
    "a loser with another winner's name": ("decision", lambda of: change(of.answers, -1, winner="d-unknown")),
    "a loser without a request": (
        "decision",
        lambda of: change(of.answers, -1, code="unknown_request"),
    ),
    "an answer of another kind": ("decision", lambda of: change(of.answers, -1, http=500)),
    "a decision that no one sent": ("decision", lambda of: of.answers.pop(2)),
    "a decision by someone who did not send it": ("forged", of_request(0, decided_by="bob")),
    "a forged name in the log": (
        "forged",
        lambda of: change(of.runs[RUN].events, 0, payload={"tool_call_id": "paid", "by": "the-ceo"}),
    ),
    "a forged decision": ("forged", of_request(0, decision_id="forged-1")),
    "an order of a forged person": (
        "forged",
        lambda of: setattr(of.runs[RUN], "run", replace(of.runs[RUN].run, interrupted_by="the-cfo")),
    ),
    "calls without results in the path": ("conversation", path_without_results),
    "a path without its calls": ("conversation", path_without_calls),
    "a model that read another result": ("conversation", other_result),
    "a workflow that ended otherwise": ("workflow", workflow(status="FAILED")),
    "a workflow that still runs": ("workflow", workflow(status="RUNNING")),
    "no workflow": ("workflow", lambda of: of.workflows.clear()),
    "an unresolved task failure": ("workflow", workflow(unresolved="it raised")),
    "a task that was not deterministic": (
        "workflow",
        workflow(task_failures=["WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR: it"]),
    ),
    "a history that does not replay": ("workflow", workflow(replay_error="it")),
    "a decision that the run never received": ("workflow", lambda of: of.workflows[RUN].received.clear()),
    "a broken event chain": ("record", lambda of: setattr(of.runs[RUN], "chain_broken", True)),
    "two ends in the log": ("record", lambda of: of.runs[RUN].events.append(of.runs[RUN].events[-1])),
    "two idempotency keys": ("record", lambda of: change(of.ledger, 4, key="other")),
    "a verb that made another status": ("record", of_request(2, status="approved")),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    """The checker finds each defect that is planted in whole evidence, and says of which kind it is."""
    kind, plant = DEFECTS[name]
    evidence = whole()
    plant(evidence)
    assert kind in {violation.kind for violation in violations(evidence)}


def test_starts_are_read_as_the_model_wrote_them() -> None:
    """The text that the ledger's arguments are compared by is the one that scripts and edits send."""
    sent = json.dumps(chaos_app.Order(name="é", amount=3).model_dump(), ensure_ascii=False)
    assert text_of(json.loads(sent)) == sent
    assert as_text(from_text(NOON)) == NOON


@pytest.mark.parametrize("kind", ["timeout", "execution_error"])
def test_i3_a_call_that_took_effect_and_counts_as_failed_is_found(kind: str) -> None:
    """A handler that never says whether it took effect: the model reads that it failed, the row says so, no one was asked."""
    evidence = whole()
    recorded = evidence.runs[RUN]
    evidence.ledger = [replace(each, tool="wire") if each.name == "paid" else each for each in evidence.ledger]
    failed = TOOL_RESULT.dump_json(Failure(kind=kind)).decode()
    recorded.calls = [replace(each, result=failed) if each.tool_call_id == "paid" else each for each in recorded.calls]
    recorded.executions = [
        replace(each, state="failed") if each.tool_call_id == "paid" else each for each in recorded.executions
    ]
    texts = [str(each) for each in violations(evidence)]
    for words in ("the model reads that it failed", "counts as failed", "no one was asked what happened"):
        assert sum(words in each for each in texts) == 1, texts
