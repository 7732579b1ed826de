"""The one place where decision, expiry and interrupt meet (I4): each refusal, and the first ending counts."""

from __future__ import annotations

from typing import Any

import pytest

from turngate.domain.contract import DecideInput, RecordedDecision
from turngate.domain.policy.terms import AskTerms, Rung
from turngate.domain.requests import ALLOWED_VERBS, STATUS_OF_VERB, runs_the_call
from turngate.domain.runs.turn_state import MAX_REMEMBERED_ANSWERS, DecisionResult, Gate, TurnState
from turngate.store.clock import now

STOP = {"by": "ann", "reason": "enough"}


def waiting(**gate: Any) -> TurnState:
    return TurnState(gates={"rq_1": Gate(**{"call": "c1", "kind": "approval", "digest": "d", **gate})})


def decision(**changes: Any) -> DecideInput:
    good = {
        "decision_id": "dec_1",
        "request_id": "rq_1",
        "verb": "approve",
        "digest": "d",
        "by": "bob",
        "sent_at": now(),
    }
    return DecideInput(**{**good, **changes})


def recorded(**changes: Any) -> RecordedDecision:
    return RecordedDecision(**{"decision_id": "dec_1", "verb": "approve", "status": "approved", "by": "bob", **changes})


def test_i4_a_decision_about_a_pending_request_may_win() -> None:
    """I4: no refusal for a valid decision, and checking it changes nothing."""
    state = waiting()
    before = state.model_copy(deep=True)
    assert state.refusal(decision()) is None
    assert state == before


@pytest.mark.parametrize(
    ("gate", "changes", "refused"),
    [
        pytest.param({}, {"request_id": "rq_2"}, "unknown_request", id="another request"),
        pytest.param({}, {"digest": "D"}, "digest_differs", id="about another call than was shown"),
        pytest.param({"not_by": "bob"}, {}, "not_eligible", id="by the starter, who is barred"),
        pytest.param({"status": "expired"}, {}, "request_not_pending", id="after its expiry"),
        pytest.param({"status": "cancelled"}, {}, "request_not_pending", id="after its cancellation"),
        pytest.param({"kind": "question"}, {}, "verb_not_allowed", id="approving a question"),
        pytest.param({"kind": "question"}, {"verb": "edit"}, "verb_not_allowed", id="editing a question"),
        pytest.param({"kind": "outcome"}, {"verb": "reject"}, "verb_not_allowed", id="rejecting an outcome"),
    ],
)
def test_i4_each_refusal_has_its_own_word(gate: dict[str, Any], changes: dict[str, Any], refused: str) -> None:
    """I4: a refusal has a stable type and a sentence."""
    refusal = waiting(**gate).refusal(decision(**changes))
    assert refusal is not None
    assert refusal.type == refused
    assert refusal.message


@pytest.mark.parametrize("kind", list(ALLOWED_VERBS))
def test_i4_the_refusal_of_a_verb_lists_the_valid_ones(kind: Any) -> None:
    """I4: every kind accepts its own verbs and no others; the refusal lists them."""
    for verb in STATUS_OF_VERB:
        refusal = waiting(kind=kind).refusal(decision(verb=verb))
        assert (refusal is None) is (verb in ALLOWED_VERBS[kind])
        if refusal is not None:
            assert ", ".join(ALLOWED_VERBS[kind]) in refusal.message


def test_i10_only_the_barred_person_is_barred() -> None:
    """I10: the gate names one person who may not decide; everyone else may."""
    assert waiting(not_by="ann").refusal(decision(by="bob")) is None


def test_i4_the_first_decision_wins_and_the_next_gets_its_id() -> None:
    """I4: once settled, the gate holds the winner; a loser's refusal names it."""
    state = waiting()
    answer = state.settle("rq_1", recorded(verb="reject", status="rejected"))
    assert answer == DecisionResult(request_id="rq_1", status="rejected")
    assert state.answers == {"dec_1": answer}
    refusal = state.refusal(decision(decision_id="dec_2"))
    assert refusal is not None
    assert (refusal.type, refusal.winner) == ("request_not_pending", "dec_1")
    assert "rejected" in refusal.message


def test_i4_a_repeat_is_its_id_and_its_request() -> None:
    """I4: the same decision gets its first answer again; its id on another request gets none."""
    state = waiting()
    answer = state.settle("rq_1", recorded())
    assert state.answer_to(decision()) == answer
    assert state.answer_to(decision(verb="reject")) == answer
    assert state.answer_to(decision(request_id="rq_2")) is None
    assert state.answer_to(decision(decision_id="dec_2")) is None


def test_i4_the_recorded_decision_wins_over_the_requested_one() -> None:
    """I4: a decision recorded just before a crash is the one that is settled and remembered."""
    state = waiting()
    state.settle("rq_1", recorded(decision_id="earlier"))
    assert state.gates["rq_1"].decision_id == "earlier"
    assert list(state.answers) == ["earlier"]


def test_i4_a_decision_before_the_expiry_counts() -> None:
    """I4: an expiry after the decision changes nothing."""
    state = waiting()
    state.settle("rq_1", recorded())
    assert state.expire("rq_1") is False
    assert state.gates["rq_1"].status == "approved"


def test_i4_an_expiry_before_the_decision_counts() -> None:
    """I4: an expired request can be neither decided nor expired again, and names no winner."""
    state = waiting()
    assert state.expire("rq_1") is True
    assert state.expire("rq_1") is False
    refusal = state.refusal(decision())
    assert refusal is not None
    assert (refusal.type, refusal.winner) == ("request_not_pending", None)


def test_the_first_interrupt_counts() -> None:
    """An interrupt cancels pending requests and nothing else; a second one changes neither actor nor reason."""
    state = waiting()
    for request_id, status in {"rq_2": "approved", "rq_3": "expired"}.items():
        state.gates[request_id] = Gate(call=request_id, kind="approval", digest="d", status=status)
    assert not state.interrupted
    assert state.interrupt(**STOP) is True
    assert state.interrupt(by="bob", reason="me too") is False
    assert (state.interrupted, state.interrupted_by, state.interrupt_reason) == (True, "ann", "enough")
    assert [gate.status for gate in state.gates.values()] == ["cancelled", "approved", "expired"]


def test_an_interrupt_without_an_actor_counts() -> None:
    """An empty actor still interrupts: the flag does not depend on the name."""
    state = waiting()
    assert state.interrupt(by="", reason="") is True
    assert state.interrupted
    assert state.interrupt(**STOP) is False


def test_i4_nothing_is_decided_after_an_interrupt() -> None:
    """I4: after an interrupt, every decision is refused because the run has ended."""
    state = waiting()
    state.interrupt(**STOP)
    for request_id in ("rq_1", "rq_that_it_had_not_heard_of"):
        refusal = state.refusal(decision(request_id=request_id))
        assert refusal is not None
        assert refusal.type == "run_ended"
    assert state.expire("rq_1") is False


def test_i8_remembered_answers_are_bounded_and_the_newest_stay() -> None:
    """I8: what a run carries across continue-as-new does not grow with its number of decisions."""
    state = TurnState()
    for number in range(MAX_REMEMBERED_ANSWERS + 5):
        state.gates["rq_1"] = Gate(call="c", kind="approval", digest="d")
        state.settle("rq_1", recorded(decision_id=f"{number:0255}"))  # the longest that the API accepts
    assert len(state.answers) == MAX_REMEMBERED_ANSWERS
    remembered = [decision_id.lstrip("0") for decision_id in state.answers]
    assert (remembered[0], remembered[-1]) == ("5", str(MAX_REMEMBERED_ANSWERS + 4))
    assert len(state.model_dump_json()) < 256 * 1024


def test_a_closed_step_drops_its_gates_and_keeps_its_answers() -> None:
    """The next step starts without gates, and a repeated decision id is still recognised."""
    state = waiting()
    state.settle("rq_1", recorded())
    state.close_step(malformed=False)
    assert (state.step, state.gates) == (2, {})
    assert list(state.answers) == ["dec_1"]


def test_i9_only_consecutive_malformed_responses_count() -> None:
    """I9: a good response resets the count."""
    state = TurnState()
    counts = []
    for malformed in (True, True, False, True):
        state.close_step(malformed=malformed)
        counts.append(state.malformed_in_a_row)
    assert counts == [1, 2, 0, 1]


def test_i8_the_whole_state_crosses_continue_as_new() -> None:
    """I8: the state is one value whose JSON round-trips, the order of answers included."""
    state = waiting(kind="outcome", not_by="ann")
    state.settle("rq_1", recorded(verb="respond", status="responded", outcome="did_not_happen"))
    state.gates["rq_0"] = Gate(call="c0", kind="question", digest="e")
    state.close_step(malformed=True)
    state.gates["rq_9"] = Gate(call="c9", kind="approval", digest="f")
    state.interrupt(**STOP)
    back = TurnState.model_validate_json(state.model_dump_json())
    assert back == state
    assert list(back.answers) == list(state.answers)
    assert TurnState.model_validate_json("{}") == TurnState()


@pytest.mark.parametrize(
    ("kind", "verb", "outcome", "runs"),
    [
        ("approval", "approve", None, True),
        ("approval", "edit", None, True),
        ("approval", "reject", None, False),
        ("approval", "respond", None, False),
        ("question", "respond", None, False),
        ("question", "approve", None, False),
        ("outcome", "respond", "did_not_happen", True),
        ("outcome", "respond", "happened", False),
        ("outcome", "respond", "tell_model", False),
        ("outcome", "respond", None, False),
        ("outcome", "approve", "did_not_happen", False),
    ],
)
def test_i2_only_these_decisions_let_a_handler_start(kind: Any, verb: Any, outcome: Any, runs: bool) -> None:
    """I2: approving or editing an approval, or resolving a lost call as not happened; nothing else."""
    assert runs_the_call(kind, verb, outcome) is runs


# Terms: several approvals, roles, a ladder


def asked_of(**terms: Any) -> TurnState:
    return waiting(terms=AskTerms(**terms))


def approve(state: TurnState, name: str, *, completes: bool = False, decision_id: str = "") -> DecisionResult:
    """Accept one approval as the store counts it."""
    sent = decision(by=name, decision_id=decision_id or f"dec_{name}")
    assert state.refusal(sent) is None
    status = "approved" if completes else "pending"
    return state.settle("rq_1", recorded(by=name, decision_id=sent.decision_id, status=status))


def refused(state: TurnState, **changes: Any) -> str | None:
    refusal = state.refusal(decision(**changes))
    return None if refusal is None else refusal.type


def test_i4_a_quorum_waits_for_its_last_approval() -> None:
    """I4: an approval that does not complete the quorum gets ``pending`` and names no winner."""
    state = asked_of(quorum=3)
    assert approve(state, "ann").status == "pending"
    assert approve(state, "bob").status == "pending"
    gate = state.gates["rq_1"]
    assert (gate.status, gate.decision_id, gate.approved_by) == ("pending", None, ["ann", "bob"])
    assert approve(state, "eve", completes=True).status == "approved"
    assert (gate.status, gate.decision_id) == ("approved", "dec_eve")
    late = state.refusal(decision(by="zoe", decision_id="dec_zoe"))
    assert late is not None
    assert late.winner == "dec_eve"


def test_i4_no_person_counts_twice() -> None:
    """I4: a person's second approval is refused under any new id; the same id gets its first answer."""
    state = asked_of(quorum=2)
    first = approve(state, "ann")
    assert refused(state, by="ann", decision_id="dec_other") == "already_approved"
    assert state.answer_to(decision(by="ann", decision_id="dec_ann")) == first
    assert refused(state, by="bob", decision_id="dec_bob") is None


def test_i4_any_eligible_persons_rejection_is_a_veto() -> None:
    """I4: one rejection ends a partly approved request; an approver may change their mind, too."""
    for vetoing in ("bob", "ann"):
        state = asked_of(quorum=3)
        approve(state, "ann")
        assert refused(state, by=vetoing, verb="reject") is None
        state.settle("rq_1", recorded(by=vetoing, verb="reject", status="rejected"))
        assert refused(state, by="eve", decision_id="dec_eve") == "request_not_pending"


@pytest.mark.parametrize(
    ("terms", "gate", "changes", "word"),
    [
        pytest.param({"quorum": 2}, {}, {"machine": True}, "not_eligible", id="a machine in a quorum"),
        pytest.param({"quorum": 2}, {}, {"machine": True, "role": "admin"}, "not_eligible", id="an admin's machine"),
        pytest.param({"quorum": 2}, {"not_by": "bob"}, {}, "not_eligible", id="the starter in a quorum"),
        pytest.param({"quorum": 2}, {}, {"role": "viewer"}, "not_eligible", id="a viewer"),
        pytest.param({"roles": ["admin"]}, {}, {}, "not_eligible", id="an operator where admins decide"),
        pytest.param({"roles": ["admin"]}, {}, {"role": "admin"}, None, id="an admin where admins decide"),
        pytest.param({"people": ["ann"]}, {}, {"role": "admin"}, "not_eligible", id="a person who is not named"),
        pytest.param({"people": ["bob"]}, {"not_by": "bob"}, {}, "not_eligible", id="the starter, though named"),
        pytest.param({"quorum": 2}, {}, {"verb": "edit"}, "verb_not_allowed", id="an edit that others would not see"),
        pytest.param({"quorum": 2}, {}, {"verb": "respond"}, "verb_not_allowed", id="an answer in place of several"),
        pytest.param({"decisions": ["reject"]}, {}, {}, "verb_not_allowed", id="a verb that the rule leaves out"),
        pytest.param({"decisions": ["edit"]}, {}, {"verb": "edit"}, None, id="a verb that the rule names"),
        pytest.param(
            {"decisions": ["approve"]}, {"kind": "question"}, {"verb": "respond"}, None, id="an answer to a question"
        ),
    ],
)
def test_i10_the_workflow_checks_a_decision_against_the_terms(
    terms: dict[str, Any], gate: dict[str, Any], changes: dict[str, Any], word: str | None
) -> None:
    """I10: role, name, machine, starter and verb are checked where the request is decided, not only in the API."""
    assert refused(waiting(terms=AskTerms(**terms), **gate), **changes) == word


LADDER = [
    Rung(after_seconds=1, do="remind"),
    Rung(after_seconds=2, do="escalate", people=["vic"]),
    Rung(after_seconds=3, do="delegate", roles=["admin"]),
]


def test_each_rung_applies_from_its_time() -> None:
    """A person escalated to may decide only after that rung; after a delegation the earlier people no longer may."""
    state = asked_of(ladder=LADDER)
    people = {"bob": {}, "vic": {"role": "viewer"}, "zoe": {"role": "admin"}}
    may = []
    for rung in range(len(LADDER)):
        assert state.climb("rq_1", rung) is True
        may.append({name for name, who in people.items() if refused(state, by=name, **who) is None})
    assert may == [{"bob", "zoe"}, {"bob", "vic", "zoe"}, {"zoe"}]


def test_an_approval_before_a_rung_stays_counted() -> None:
    """A delegation removes the right to decide, not an approval that was valid when it was given."""
    state = asked_of(quorum=2, ladder=LADDER)
    approve(state, "bob")
    for rung in range(len(LADDER)):
        state.climb("rq_1", rung)
    assert state.gates["rq_1"].approved_by == ["bob"]
    assert refused(state, by="zoe", role="admin") is None


@pytest.mark.parametrize("status", ["approved", "rejected", "responded", "expired", "cancelled"])
def test_a_settled_request_climbs_no_rung(status: Any) -> None:
    """An earlier decision ends the ladder: the terms stay as they were, and no one is notified."""
    state = waiting(status=status, terms=AskTerms(ladder=LADDER))
    before = state.model_copy(deep=True)
    assert state.climb("rq_1", 0) is False
    assert state == before


def test_i4_an_interrupt_cancels_a_partly_approved_request() -> None:
    """I4: a partly approved request is cancelled like any other pending one."""
    state = asked_of(quorum=2)
    approve(state, "ann")
    state.interrupt(**STOP)
    assert state.gates["rq_1"].status == "cancelled"
    assert refused(state, by="eve") == "run_ended"


def test_i8_a_gates_progress_crosses_continue_as_new() -> None:
    """I8: approvals so far and climbed rungs are part of the state."""
    state = asked_of(quorum=2, ladder=LADDER)
    approve(state, "ann")
    state.climb("rq_1", 0)
    state.climb("rq_1", 1)
    assert TurnState.model_validate_json(state.model_dump_json()) == state
