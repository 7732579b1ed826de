"""The workflow of releases with changed code, which can't continue the runs of today's."""

from __future__ import annotations

from typing import ClassVar

from temporalio import workflow

from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput, AgentTurnResult, ScheduledStartInput
from turngate.workflows.agent_turn import AgentTurn
from turngate.workflows.scheduled_start import ScheduledStart


@workflow.defn(name=contract.AGENT_TURN)
class ChangedTurn(AgentTurn):
    """A pause before anything else, in each execution: today's histories don't match it."""

    SAYS: ClassVar = "Nondeterminism error"

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        await workflow.sleep(0.01)
        return await super().run(start)


@workflow.defn(name=contract.AGENT_TURN)
class BrokenTurn(ChangedTurn):
    """A mistake in the code."""

    SAYS: ClassVar = "no such field: parked"

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        raise AttributeError("no such field: parked")


@workflow.defn(name=contract.AGENT_TURN)
class ImportingTurn(ChangedTurn):
    """A module that the sandbox doesn't let in."""

    SAYS: ClassVar = "subprocess"

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        import subprocess  # noqa: PLC0415 - while the workflow runs

        subprocess.run(["true"], check=True)  # noqa: ASYNC221 - the sandbox refuses it
        return await super().run(start)


@workflow.defn(name=contract.SCHEDULED_START)
class BrokenStart(ScheduledStart):
    """A mistake in the code that starts a schedule's run."""

    @workflow.run
    async def run(self, start: ScheduledStartInput) -> str | None:
        raise AttributeError(f"no such field: jitter of {start.schedule_id}")
