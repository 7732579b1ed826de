"""What a workflow is started with, and what its end is."""

from __future__ import annotations

from pydantic import AwareDatetime, BaseModel, ConfigDict

from turngate.domain.requests import RunStatus
from turngate.domain.runs.turn_state import TurnState

# What every value of the contract is.


class WireValue(BaseModel):
    """A value on the wire. Its fields may grow, with a default; none is renamed or removed."""

    model_config = ConfigDict(frozen=True)


class RunLimits(WireValue):
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

    def with_heartbeat(self, timeout_seconds: int) -> RunLimits:
        """Return the limits with the heartbeat time-out of the deployment: an agent does not know it."""
        return self.model_copy(update={"heartbeat_timeout_seconds": timeout_seconds})


class AgentTurnInput(WireValue):
    """Start of a run. ``state`` is None at the start, and set by continue-as-new and when a lost run is recovered."""

    run_id: str
    agent: str
    limits: RunLimits
    state: TurnState | None = None


class AgentTurnResult(WireValue):
    """End of a run that reached its end; a failed run raises instead."""

    status: RunStatus
    steps: int


class ChildRun(WireValue):
    """A run that is recorded in the store and to be started by the workflow: a sub-agent's, or the conversation's next.

    ``state``: of a sub-agent's run that had begun when its workflow was lost; None: it starts at its beginning.
    ``starter``: a pseudonym of the person who started it; None: who started the run that starts it.
    """

    run_id: str
    agent: str
    limits: RunLimits
    state: TurnState | None = None
    starter: str | None = None


class ScheduledStartInput(WireValue):
    """One fire of a schedule. The run's input stays in the store.

    ``fire_at``: its instant on the timetable; None: as Temporal says it. ``heartbeat_timeout_seconds``: as of a run that the
    API starts.
    """

    schedule_id: str
    heartbeat_timeout_seconds: int
    fire_at: AwareDatetime | None = None
