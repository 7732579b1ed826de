"""What a workflow asks of its activities, and their answers."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime

from turngate.domain.contract.starts import ChildRun, WireValue
from turngate.domain.requests import RequestStatus


class ModelFailure(WireValue):
    """A request to the model that failed and is to be sent again, after so many seconds at the earliest."""

    message: str
    error_class: str
    wait_seconds: float


class CallModelInput(WireValue):
    """Close step ``step - 1`` if there is one, then get, store and plan response ``step`` (1-based).

    ``failed``: the first request, which the activity that closed that step sent; it counts as the first attempt.
    """

    run_id: str
    step: int
    failed: ModelFailure | None = None


class PlannedCall(WireValue):
    """A call the workflow has to settle. Calls closed at planning are not listed: their results are stored already.

    ``request_id`` set: it waits for a person; else it runs at once. ``queue``: task queue of its worker, None the run's
    own. ``expires_after_seconds``: None waits forever. ``ladder``: of each rung that is climbed before that, after how many
    seconds. Both count from ``waits_since``; None: from now. ``climbed``: how many rungs are climbed already.
    """

    call: str
    timeout_seconds: int
    request_id: str | None = None
    queue: str | None = None
    expires_after_seconds: int | None = None
    ladder: tuple[int, ...] = ()
    waits_since: AwareDatetime | None = None
    climbed: int = 0


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
    stopped: bool = False
    """There is no plan: nothing may start in the run now."""


class RunToolInput(WireValue):
    """Redeem and run one call: whether it may run, and on whose approval, is read from the store.

    ``then_step``: the step that the activity may take after it has settled the last open call of the one before; None: it may
    not.
    """

    run_id: str
    call: str
    then_step: int | None = None


class Wait(WireValue):
    """A timer the workflow holds for a call: to an instant, or for so long. Neither: it is over already.

    ``news``: of a call from outside, or of ``request_id``, the request that asks again if the approval is taken back. The door
    is asked again when there are any, or when the time is over (no time: whenever).
    """

    until: AwareDatetime | None = None
    seconds: float | None = None
    news: bool = False
    request_id: str | None = None


class NextStep(WireValue):
    """The call's step is closed in the store, or may be. ``plan``: of the step after it; None: its model was not asked.

    ``failed``: why not, if the model was asked in vain.
    """

    plan: StepPlan | None = None
    failed: ModelFailure | None = None


class RunToolResult(WireValue):
    """What happened to one call.

    ``settled``: it has its result. ``asks``: a person is asked about it, and ``again`` is the call as it waits for them.
    ``waits``: it is settled once ``wait`` is over. ``child``: it is settled once the run ``child`` has ended.
    ``finishes``: settled, and the run is to be completed with this step. ``stopped``: nothing may start in the run now.

    ``next``: settled, and this is what the activity knows of the run's next step; None: nothing.
    """

    state: Literal["settled", "asks", "waits", "child", "stopped"]
    again: PlannedCall | None = None
    wait: Wait | None = None
    child: ChildRun | None = None
    finishes: bool = False
    next: NextStep | None = None


class SettleCallInput(WireValue):
    """Store the result of a call whose wait is over, or whose sub-agent's run has ended."""

    run_id: str
    call: str


class RecordExpiryInput(WireValue):
    """End one request whose time is over, or park it, as its terms say."""

    run_id: str
    request_id: str
    at: datetime


class RecordExpiryResult(WireValue):
    """``status``: the request's after that; ``pending``: it is parked, and waits without a clock."""

    status: RequestStatus


class ClimbLadderInput(WireValue):
    """Write that a request has climbed the rung of this index (from 0)."""

    run_id: str
    request_id: str
    rung: int
    at: datetime


class ReadControlInput(WireValue):
    """Read what was ordered for the run."""

    run_id: str


class ReadControlResult(WireValue):
    """Whether the run is to stop, and whether it is to hold."""

    interrupted: bool
    held: bool


class InterruptBelowInput(WireValue):
    """Order the runs below to stop. ``cause``: what ends this run, where no person has interrupted it."""

    run_id: str
    cause: Literal["engine", "temporal"]


class InterruptBelowResult(WireValue):
    """The runs that get a signal."""

    run_ids: tuple[str, ...] = ()


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
