"""What a workflow asks of its activities, and their answers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime

from turngate.domain.contract.commands import DecideInput, News
from turngate.domain.contract.starts import ChildRun, WireValue
from turngate.domain.policy.terms import AskTerms
from turngate.domain.requests import RequestKind


class CallModelInput(WireValue):
    """Close step ``step - 1`` if there is one, then get, store and plan response ``step`` (1-based)."""

    run_id: str
    step: int


class PlannedCall(WireValue):
    """A call the workflow has to settle. Calls closed at planning are not listed: their results are stored already.

    ``request_id`` set: it waits for a person; else it runs at once. ``queue``: task queue of its worker, None the run's
    own. ``expires_after_seconds``: None waits forever. ``not_by``: a person who may not decide it. ``terms``: on which it
    is asked for; None: the plain ones.
    """

    call: str
    timeout_seconds: int
    request_id: str | None = None
    kind: RequestKind = "approval"
    digest: str = ""
    queue: str | None = None
    expires_after_seconds: int | None = None
    not_by: str | None = None
    terms: AskTerms | None = None

    def as_resolution_question(self, request_id: str | None, digest: str) -> PlannedCall:
        """Return the lost call as it waits for a person's resolution: without a clock, on the default terms."""
        return PlannedCall(
            call=self.call,
            timeout_seconds=self.timeout_seconds,
            queue=self.queue,
            request_id=request_id,
            kind="outcome",
            digest=digest,
            not_by=self.not_by,
        )


class StepPlan(WireValue):
    """What the model's response asks of the workflow. ``final``: no calls, the run is already stored as completed.

    ``next``: of a final one, the run that answers a message which was sent meanwhile.
    """

    final: bool
    calls: tuple[PlannedCall, ...] = ()
    malformed: bool = False
    """No call of the response could be run, or it was empty."""
    problem: str = ""
    """Of a malformed one, in a few words for the run's reason: failure kinds with their count."""
    signals: bool = False
    """A call of the response asks something of the run."""
    budget: PlannedCall | None = None
    """The model was not asked: a budget is used up, and this call asks for more. The same step is planned again after it."""
    next: ChildRun | None = None


class RunToolInput(WireValue):
    """Redeem and run one call. ``decision_id``: None for a call that policy allowed."""

    run_id: str
    call: str
    decision_id: str | None = None


class Wait(WireValue):
    """A timer the workflow holds for a call: to an instant, or for so long. Neither: it is over already.

    ``news``: a call from outside; the door is asked again when they come, at ``until`` at the latest (None: whenever).
    """

    until: AwareDatetime | None = None
    seconds: float | None = None
    news: News | None = None


class RunToolResult(WireValue):
    """What happened to one call.

    ``settled``: the result is stored. ``unknown``: an ``outcome`` request was opened in its place. ``asked_again``: what
    it depends on changed since it was approved, and ``again`` is the call with its new request. ``waits``: it is settled
    once ``wait`` is over. ``child``: it is settled once the run ``child`` has ended. ``finishes``: settled, and the run
    is to be completed with this step.
    """

    state: Literal["settled", "unknown", "asked_again", "waits", "child"]
    outcome_request_id: str | None = None
    digest: str = ""
    again: PlannedCall | None = None
    wait: Wait | None = None
    child: ChildRun | None = None
    finishes: bool = False


class SettleCallInput(WireValue):
    """Store the result of a call whose wait is over, or whose sub-agent's run has ended."""

    run_id: str
    call: str


class RecordDecisionInput(WireValue):
    """Project one decision into the store; ``at`` is the workflow's time."""

    run_id: str
    decision: DecideInput
    at: datetime


class RecordExpiryInput(WireValue):
    """Close one request that no one answered in time; or ``park`` it: it waits on, without a clock."""

    run_id: str
    request_id: str
    at: datetime
    park: bool = False


class ClimbLadderInput(WireValue):
    """Write that a request has climbed the rung of this index (from 0)."""

    run_id: str
    request_id: str
    rung: int
    at: datetime


class NotePauseInput(WireValue):
    """Write that the run is held (``paused``), or continues; by whom, and why."""

    run_id: str
    paused: bool
    by: str
    reason: str = ""
    at: datetime


class SupersedeRequestsInput(WireValue):
    """Close these requests and their calls in favour of a newer message."""

    run_id: str
    request_ids: tuple[str, ...]
    by: str
    at: datetime


class CloseStepInput(WireValue):
    """End the run: close every open call and request, write the results message, set the run's status.

    ``completed``: by a ``finish`` call of this step, whose answer becomes the run's reply.
    """

    run_id: str
    status: Literal["completed", "failed", "interrupted"]
    reason: str
    by: str = ""
    at: datetime
    error_class: str = ""


class CloseStepResult(WireValue):
    """``next``: the run that answers a message which was sent while this one was live."""

    next: ChildRun | None = None


class OpenScheduledInput(WireValue):
    """Record the run of one fire, or that there is none."""

    schedule_id: str
    fire_at: AwareDatetime


class OpenScheduledResult(WireValue):
    """``run``: to be started; None: there is none. ``waits``: for the end of another run; ask again later."""

    run: ChildRun | None = None
    waits: bool = False
