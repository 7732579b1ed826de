"""The workflow of a release with changed code, which today's histories do not match."""

from __future__ import annotations

from temporalio import workflow

from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput, AgentTurnResult
from workflows.agent_turn import AgentTurn


@workflow.defn(name=contract.AGENT_TURN)
class ChangedTurn(AgentTurn):
    """A pause before anything else, in each execution."""

    @workflow.init
    def __init__(self, start: AgentTurnInput) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: AgentTurnInput) -> AgentTurnResult:
        await workflow.sleep(0.01)
        return await super().run(start)
