"""The part of the gateway that recovery needs: which workflows there are, and starting one again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from turngate.approvals_api.gateway.calls import reported, start_turn
from turngate.approvals_api.gateway.labels import Labels
from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput
from turngate.domain.runs.labels import RunLabels

RPC_WAIT: Final = timedelta(seconds=5)
"""Longer than the API waits: many runs are checked, and no person is waiting for the answer."""
OPEN_TURNS: Final = f"WorkflowType = '{contract.AGENT_TURN}' AND ExecutionStatus = 'Running'"

WorkflowState = Literal["open", "closed", "absent"]
"""``closed``: it has ended in some way, and Temporal still knows it. ``absent``: Temporal doesn't know it (any more)."""


class WorkflowRecovery:
    """Workflows of runs, as recovery sees them. Each method raises UnavailableError when Temporal is away."""

    def __init__(self, client: Client, labels: Labels | None = None) -> None:
        self._client = client
        self._labels = labels or Labels(client)

    async def state_of(self, run_id: str) -> WorkflowState:
        """Return whether the run's workflow is open, has ended, or is unknown to Temporal."""
        try:
            with reported():
                async with asyncio.timeout(RPC_WAIT.total_seconds()):
                    workflow = await self._client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_WAIT)
        except LookupError:
            return "absent"
        return "open" if workflow.close_time is None else "closed"

    async def start_again(self, start: AgentTurnInput, task_queue: str, labels: RunLabels) -> bool:
        """Start a workflow for a run whose own is gone; False when there is an open one, which is left as it is.

        Of two that try at once only one succeeds: the server holds one open workflow per id.
        """
        with reported():
            return await start_turn(
                self._client,
                start,
                task_queue,
                self._labels.of(labels),
                # Also after one that completed: the store says that the run lives, and the store is asked last.
                reuse=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                conflict=WorkflowIDConflictPolicy.FAIL,
                wait=RPC_WAIT,
            )

    async def terminate(self, run_id: str, reason: str) -> None:
        """End the run's workflow where it is, without a word to its activities. One that is closed or unknown stays so."""
        with suppress(LookupError), reported():
            await self._client.get_workflow_handle(run_id).terminate(reason=reason, rpc_timeout=RPC_WAIT)

    async def open_turns(self) -> AsyncIterator[str]:
        """Yield the ids of the runs whose workflows are open, a little late (Temporal's list lags by moments)."""
        with reported():
            async for workflow in self._client.list_workflows(OPEN_TURNS, rpc_timeout=RPC_WAIT):
                yield workflow.id
