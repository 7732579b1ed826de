"""The wire between gateway, workflow and activities: names, inputs, results, error-type strings. One module owns it.

Both sides import from here and nowhere else. Values stay small and constant in conversation length (I8): ids and
digests, never conversation content. Fields may be added with a default; none is renamed or removed while runs of an
older release live.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

from turngate.domain.ask_terms import AskTerms, Role
from turngate.domain.requests import Outcome, RequestKind, RequestStatus, RunStatus, Verb
from turngate.domain.turn_state import TurnState

AGENT_TURN = "AgentTurn"
SCHEDULED_START = "ScheduledStart"

CALL_MODEL = "call_model"
RUN_TOOL = "run_tool"
RECORD_DECISION = "record_decision"
RECORD_EXPIRY = "record_expiry"
CLOSE_STEP = "close_step"
SETTLE_CALL = "settle_call"
CLIMB_LADDER = "climb_ladder"
NOTE_PAUSE = "note_pause"
SUPERSEDE_REQUESTS = "supersede_requests"
OPEN_SCHEDULED = "open_scheduled"

DECIDE = "decide"
"""Update and Signal of this name carry the same DecideInput; the Signal is for when no worker answers."""
INTERRUPT = "interrupt"
PAUSE = "pause"
RESUME = "resume"
SUPERSEDE = "supersede"
EXTERNAL_CALL = "external_call"
"""Signal: the program that runs a call from outside is there to start it, or has reported what came of it."""
GATES = "gates"
"""Query: the run's gates of the step at hand, request id → Gate."""

MAX_CALLS_PER_STEP = 128
"""Calls of one response beyond this are closed unexecuted, so that a plan stays far below 256 KiB (I8)."""

# Error types: the ``type`` of an ApplicationError, the same string where it is raised and where it is matched. Those of
# a refused decision are the literals of turngate.domain.requests.RefusalType.
ERROR_INVALID_EDIT = "invalid_edit"
ERROR_STORE_UNAVAILABLE = "store_unavailable"
ERROR_MODEL = "model_error"
ERROR_TOOL_RAISED = "tool_raised"
ERROR_CONFIGURATION = "configuration"
ERROR_RUN_FAILED = "run_failed"


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True)


class RunLimits(_Wire):
    """What the run may use; a copy of the agent's limits at its start. Durations in seconds."""

    steps: int = 100
    concurrency: int = 4
    malformed_in_a_row: int = 3
    model_retry_seconds: int = 600
    heartbeat_timeout_seconds: int = 10
    continue_as_new_after_steps: int | None = None
    """Besides Temporal's own suggestion; for tests and very long runs."""
    budgets_ask: bool = False
    """A budget that is used up asks for more, the steps' among them, so the store's side says when they are."""
    marks_gates: bool = False
    """Gates that open leave a command in history (ADR 0023). False: a run that began before they did."""


class AgentTurnInput(_Wire):
    """Start of a run. ``state`` is None at the start, and set by continue-as-new and when a lost run is recovered."""

    run_id: str
    agent: str
    limits: RunLimits = RunLimits()
    state: TurnState | None = None


class AgentTurnResult(_Wire):
    """End of a run that reached its end; a failed run raises instead."""

    status: RunStatus
    steps: int


class CallModelInput(_Wire):
    """Close step ``step - 1`` if there is one, then get, store and plan response ``step`` (1-based)."""

    run_id: str
    step: int


class PlannedCall(_Wire):
    """A call the workflow has to settle. Calls closed at planning are not listed: their results are stored already.

    ``request_id`` set: it waits for a person; else it runs at once. ``queue``: task queue of its worker, None the run's
    own. ``expires_after_seconds``: None waits for ever. ``not_by``: a person who may not decide it. ``terms``: on which it
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


class ChildRun(_Wire):
    """A run that is recorded in the store and to be started by the workflow: a sub-agent's, or the conversation's next.

    ``state``: of a sub-agent's run that had begun when its workflow was lost; None: it starts at its beginning.
    """

    run_id: str
    agent: str
    limits: RunLimits
    state: TurnState | None = None


class StepPlan(_Wire):
    """What the model's response asks of the workflow. ``final``: no calls, the run is already stored as completed.

    ``next``: of a final one, the run that answers a message which was sent meanwhile.
    """

    final: bool
    calls: tuple[PlannedCall, ...] = ()
    malformed: bool = False
    """No call of the response could be run, or it was empty."""
    problem: str = ""
    """Of a malformed one, in a few words for whoever reads why the run ended: failure kinds with their count."""
    signals: bool = False
    """A call of the response asks something of the run."""
    budget: PlannedCall | None = None
    """The model was not asked: a budget is used up, and this call asks for more. The same step is planned again after it."""
    next: ChildRun | None = None


class RunToolInput(_Wire):
    """Redeem and run one call. ``decision_id``: None for a call that policy allowed."""

    run_id: str
    call: str
    decision_id: str | None = None


News = Literal["wanted", "reported"]
"""Of a call from outside: the program that runs it is there to start it, or has reported what came of it."""


class Wait(_Wire):
    """A timer the workflow holds for a call: to an instant, or for so long. Neither: it is over already.

    ``news``: a call from outside; the door is asked again when they come, at ``until`` at the latest (None: whenever).
    """

    until: AwareDatetime | None = None
    seconds: float | None = None
    news: News | None = None


class RunToolResult(_Wire):
    """What became of one call.

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


class SettleCallInput(_Wire):
    """Store the result of a call whose wait is over, or whose sub-agent's run has ended."""

    run_id: str
    call: str


class DecideInput(_Wire):
    """A decision on its way to the workflow. Its content (edited arguments, message) waits in the store under its id.

    ``by``, ``role`` and ``machine`` (a token that belongs to nobody) come from the credential. ``sent_at``: when it was
    given, which may be long before a worker takes it; None, of earlier releases: not known.
    """

    decision_id: str
    request_id: str
    verb: Verb
    digest: str
    by: str
    outcome: Outcome | None = None
    role: Role = "operator"
    machine: bool = False
    sent_at: AwareDatetime | None = None


class DecideResult(_Wire):
    """The first answer to a decision; the same decision id again gets the same one.

    ``status`` stays ``pending`` when the decision is one approval of several that are needed.
    """

    decision_id: str
    status: RequestStatus


class RecordDecisionInput(_Wire):
    """Project one decision into the store; ``at`` is the workflow's time."""

    run_id: str
    decision: DecideInput
    at: datetime


class RecordedDecision(_Wire):
    """Who holds the request in the store now: this decision, or one that was recorded before a crash ate its answer.

    ``status`` ``pending``: it counts as one approval, and more are needed.
    """

    decision_id: str
    verb: Verb
    status: RequestStatus
    by: str
    outcome: Outcome | None = None


class RecordExpiryInput(_Wire):
    """Close one request that nobody answered in time; or ``park`` it: it waits on, without a clock."""

    run_id: str
    request_id: str
    at: datetime
    park: bool = False


class ClimbLadderInput(_Wire):
    """Write that a request has climbed the rung of this index (from 0)."""

    run_id: str
    request_id: str
    rung: int
    at: datetime


class ExternalCallInput(_Wire):
    """News of a call from outside. A repeat changes nothing: what was reported is in the store."""

    call: str
    news: News


class InterruptInput(_Wire):
    """Stop the run now. A repeat with the same or another id changes nothing more."""

    by: str
    reason: str = ""


class PauseInput(_Wire):
    """Hold the run: what runs goes on to its end, nothing new starts. A repeat changes nothing."""

    by: str
    reason: str = ""


class ResumeInput(_Wire):
    """Let a held run go on."""

    by: str


class NotePauseInput(_Wire):
    """Write that the run is held (``paused``), or goes on; by whom, and why."""

    run_id: str
    paused: bool
    by: str
    reason: str = ""
    at: datetime


class SupersedeInput(_Wire):
    """End what waits for a person, because ``by`` has sent a newer message."""

    by: str


class SupersedeRequestsInput(_Wire):
    """Close these requests and their calls in favour of a newer message."""

    run_id: str
    request_ids: tuple[str, ...]
    by: str
    at: datetime


class CloseStepResult(_Wire):
    """``next``: the run that answers a message which was sent while this one was live."""

    next: ChildRun | None = None


class CloseStepInput(_Wire):
    """End the run: close every open call and request, write the results message, set the run's status.

    ``completed``: by a ``finish`` signal of the step at hand, whose answer becomes the run's.
    """

    run_id: str
    status: Literal["completed", "failed", "interrupted"]
    reason: str
    by: str = ""
    at: datetime
    error_class: str = ""


class ScheduledStartInput(_Wire):
    """One fire of a schedule. What the run is told stays in the store.

    ``fire_at``: its instant on the timetable; None: as Temporal says it. ``heartbeat_timeout_seconds``: as of a run that the
    API starts.
    """

    schedule_id: str
    heartbeat_timeout_seconds: int = 10
    fire_at: AwareDatetime | None = None


class OpenScheduledInput(_Wire):
    """Record the run of one fire, or that there is none."""

    schedule_id: str
    fire_at: AwareDatetime


class OpenScheduledResult(_Wire):
    """``run``: to be started; None: there is none. ``waits``: for the end of another run; ask again later."""

    run: ChildRun | None = None
    waits: bool = False
