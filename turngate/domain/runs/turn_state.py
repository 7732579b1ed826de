"""The workflow's state: one serializable value, and the one place where decision, expiry and interrupt meet.

Pure and deterministic: callable from workflow code; time comes in as an argument.
"""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from turngate.domain.policy.terms import PLAIN_TERMS, AskTerms, Role
from turngate.domain.requests import RefusalType, RequestKind, RequestStatus, Resolution, Verb

MAX_REMEMBERED_ANSWERS = 500
"""Answers carried across continue-as-new; older ones are answered from the store before they reach the workflow."""


class Gate(BaseModel):
    """One request of this run that waits, or waited in the step at hand.

    ``terms``: as the ladder's rungs so far left them. ``approved_by``: who approved so far, where several have to.
    ``opened_at``, ``climbed``: of a gate that was there before this workflow, which was started to recover its run: since
    when it waits, and how many rungs it had climbed.
    """

    call: str
    kind: RequestKind
    digest: str
    not_by: str | None = None
    status: RequestStatus = "pending"
    decision_id: str | None = None
    decided_by: str | None = None
    verb: Verb | None = None
    outcome: Resolution | None = None
    terms: AskTerms = PLAIN_TERMS
    approved_by: list[str] = Field(default_factory=list)
    opened_at: AwareDatetime | None = None
    climbed: int = 0


class Decision(BaseModel):
    """A person's decision of one request. Its content (edited arguments, message) stays in the store under its id.

    ``by``, ``role`` and ``machine`` (a token that belongs to no person) come from the credential.
    """

    model_config = ConfigDict(frozen=True)

    decision_id: str
    request_id: str
    verb: Verb
    digest: str
    by: str
    outcome: Resolution | None = None
    role: Role = "operator"
    machine: bool = False


class RecordedDecision(BaseModel):
    """Who holds the request in the store now: this decision, or one that was recorded before a crash ate its answer.

    ``status`` ``pending``: it counts as one approval, and more are needed.
    """

    model_config = ConfigDict(frozen=True)

    decision_id: str
    verb: Verb
    status: RequestStatus
    by: str
    outcome: Resolution | None = None


class DecisionResult(BaseModel):
    """What a decision id was answered; kept so that the same id again gets the same answer (I4)."""

    request_id: str
    status: RequestStatus


class Refusal(BaseModel):
    """Why a decision is refused: its type, a sentence, and the decision id of the winner if there is one."""

    type: RefusalType
    message: str
    winner: str | None = None


class TurnState(BaseModel):
    """Everything a run must not forget.

    ``gates``: request id → gate of the step at hand. ``answers``: decision id → first answer. ``step``: the step being
    worked on, from 1. ``interrupted_by`` is None while the run is not interrupted. ``paused_by``: who holds it; None while
    it continues. ``finishing``: a call of the step at hand ends the run as completed.
    """

    step: int = 1
    malformed_in_a_row: int = 0
    gates: dict[str, Gate] = Field(default_factory=dict)
    answers: dict[str, DecisionResult] = Field(default_factory=dict)
    interrupted_by: str | None = None
    interrupt_reason: str = ""
    paused_by: str | None = None
    finishing: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt has arrived; from then on nothing starts and nothing is decided."""
        return self.interrupted_by is not None

    @property
    def held(self) -> bool:
        """Whether nothing may start now. An interrupt ends a pause: the run has to come to its end."""
        return self.paused_by is not None and not self.interrupted

    def answer_to(self, decision: Decision) -> DecisionResult | None:
        """Return the first answer to this decision; None for a new one, and for an id that decided another request."""
        answer = self.answers.get(decision.decision_id)
        return answer if answer is not None and answer.request_id == decision.request_id else None

    def refusal(self, decision: Decision) -> Refusal | None:
        """Return why this decision cannot win now, or None when it may continue. Changes nothing (used by the validator)."""
        if self.interrupted:  # also a request that this run learned of only later: it ends with all others
            return Refusal(type="run_ended", message="the run was interrupted, and its requests ended with it")
        gate = self.gates.get(decision.request_id)
        if gate is None:
            return Refusal(type="unknown_request", message=f"this run has no open request {decision.request_id!r}")
        if gate.status != "pending":
            return Refusal(
                type="request_not_pending", message=f"the request is already {gate.status}", winner=gate.decision_id
            )
        if gate.digest != decision.digest:
            return Refusal(type="digest_differs", message="the digest is not that of the call in this request")
        return _not_eligible(gate, decision) or _verb_not_allowed(gate, decision)

    def settle(self, request_id: str, recorded: RecordedDecision) -> DecisionResult:
        """Let one recorded decision win its request and remember the answer. The caller has asked :meth:`refusal`."""
        gate = self.gates[request_id]
        if recorded.status == "pending":
            gate.approved_by.append(recorded.by)
        else:
            gate.status = recorded.status
            gate.decision_id = recorded.decision_id
            gate.decided_by = recorded.by
            gate.verb = recorded.verb
            gate.outcome = recorded.outcome
        answer = DecisionResult(request_id=request_id, status=recorded.status)
        self.answers[recorded.decision_id] = answer
        while len(self.answers) > MAX_REMEMBERED_ANSWERS:
            self.answers.pop(next(iter(self.answers)))
        return answer

    def expire(self, request_id: str) -> bool:
        """Expire a request that is still pending; False when a decision was first."""
        gate = self.gates[request_id]
        if gate.status != "pending":
            return False
        gate.status = "expired"
        return True

    def climb(self, request_id: str, rung: int) -> bool:
        """Let a request that still waits climb a rung of its ladder; False when a decision was first."""
        gate = self.gates[request_id]
        if gate.status != "pending":
            return False
        gate.terms = gate.terms.climbed(gate.terms.ladder[rung])
        return True

    def interrupt(self, *, by: str, reason: str) -> bool:
        """Mark the run interrupted and cancel what waits; False when it already was (the first one counts)."""
        if self.interrupted:
            return False
        self.interrupted_by = by
        self.interrupt_reason = reason
        for gate in self.gates.values():
            if gate.status == "pending":
                gate.status = "cancelled"
        return True

    def pause(self, *, by: str) -> bool:
        """Hold the run; False when it is held already, or interrupted."""
        if self.interrupted or self.paused_by is not None:
            return False
        self.paused_by = by
        return True

    def resume(self) -> bool:
        """Let the run continue; False when no one holds it."""
        held, self.paused_by = self.paused_by is not None, None
        return held

    @property
    def supersedable(self) -> list[str]:
        """The requests that a newer message may end. Whether a call happened has to be said all the same."""
        return [name for name, gate in self.gates.items() if gate.status == "pending" and gate.kind != "outcome"]

    def supersede(self, request_ids: list[str]) -> None:
        """End these requests, those that still wait, for a newer message."""
        for request_id in request_ids:
            gate = self.gates.get(request_id)
            if gate is not None and gate.status == "pending":
                gate.status = "superseded"

    def close_step(self, *, malformed: bool) -> None:
        """Continue to the next step: its gates are settled, its results stored."""
        self.gates.clear()
        self.step += 1
        self.malformed_in_a_row = self.malformed_in_a_row + 1 if malformed else 0


def _not_eligible(gate: Gate, decision: Decision) -> Refusal | None:
    """Return why this one may not decide the request."""
    if gate.not_by is not None and gate.not_by == decision.by:
        return Refusal(type="not_eligible", message="the person who started this run may not decide this request")
    barred = gate.terms.barred(name=decision.by, role=decision.role, machine=decision.machine)
    if barred is not None:
        return Refusal(type="not_eligible", message=f"{decision.by} may not decide this request: {barred}")
    if decision.verb == "approve" and decision.by in gate.approved_by:
        why = f"{decision.by} has approved this already; {gate.terms.quorum} different people have to"
        return Refusal(type="already_approved", message=why)
    return None


def _verb_not_allowed(gate: Gate, decision: Decision) -> Refusal | None:
    """Return why a request does not take this verb."""
    allowed = gate.terms.verbs(gate.kind)
    if decision.verb in allowed:
        return None
    return Refusal(type="verb_not_allowed", message=f"this request of kind {gate.kind} takes: {', '.join(allowed)}")
