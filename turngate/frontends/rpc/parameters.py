"""What each JSON-RPC method takes and gives besides the API's own answers: strict, without members we do not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from turngate.domain.policy.grants import WantedGrant
from turngate.domain.policy.policy import Risk
from turngate.domain.requests import RequestKind, Resolution, RunStatus, UnattendedAsks, Verb, WhileRunning
from turngate.domain.runs.failure_classes import FailureClass
from turngate.domain.runs.inbox import InboxStatus
from turngate.wire.orders import DecisionOrder


class Params(BaseModel):
    """Parameters by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(Params):
    """No parameters."""


class StartRun(Params):
    """``input``: what the agent should do. ``workspace``: an absolute directory on the server's machine."""

    agent: str
    input: str
    conversation_id: str | None = None
    workspace: str | None = None
    model: str | None = None
    unattended: UnattendedAsks | None = None
    idempotency_key: str | None = None


class SendMessage(Params):
    """``while_running``: what a live run does with it; left out, as its agent declares."""

    run_id: str
    input: str
    while_running: WhileRunning | None = None
    idempotency_key: str | None = None


class OneRun(Params):
    """A run."""

    run_id: str


class StopRun(OneRun):
    """A run, and why it is stopped or held."""

    reason: str = ""


class ListRuns(Params):
    """Which runs; the newest first. ``status`` left out: all. ``cause``: how they failed."""

    status: RunStatus | None = None
    search: str | None = Field(default=None, min_length=1, max_length=255)
    agent: str | None = Field(default=None, min_length=1, max_length=255)
    cause: FailureClass | None = None
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str | None = None


class SwitchModel(OneRun):
    """A run, and its next model: ``PROVIDER:NAME``, or a profile's name."""

    model: str


class WatchRun(OneRun):
    """``after``: from this ``seq``, exclusive; left out, from the run's beginning. ``deltas``: what models say, live."""

    after: int | None = Field(default=None, ge=0)
    deltas: bool = True
    progress: bool = True


class Unwatch(Params):
    """A watch, as ``run.watch`` answered."""

    watch_id: str


class ListRequests(Params):
    """Which requests; what is left out does not matter, and ``status`` left out is ``pending``."""

    status: InboxStatus | None = None
    kind: RequestKind | None = None
    agent: str | None = None
    tool: str | None = None
    risk: Risk | None = None
    rule: str | None = None
    run_id: str | None = None
    claimed: str | None = None
    parked: bool | None = None
    limit: int = Field(default=50, ge=1, le=200)
    cursor: str | None = None


class OneRequest(Params):
    """A request."""

    request_id: str


class Decide(OneRequest):
    """``digest``: of the call as it was shown, which is the only one this decides.

    ``args``: JSON text, passed on byte for byte: edited arguments, an answer, or what a call returned. ``decision_id``: the
    same decision again gets the first answer.
    """

    decision: Verb
    digest: str
    args: str | None = None
    message: str = ""
    outcome: Resolution | None = None
    grant: WantedGrant | None = None
    decision_id: str | None = None

    @property
    def order(self) -> DecisionOrder:
        """The decision that the client takes."""
        return DecisionOrder(
            verb=self.decision,
            digest=self.digest,
            args=self.args,
            message=self.message,
            outcome=self.outcome,
            grant=self.grant,
        )


class WatchBegun(BaseModel):
    """The watch, which every notification of it names."""

    watch_id: str
    run_id: str


class WatchStopped(BaseModel):
    """``stopped``: false when it had ended already."""

    stopped: bool
