"""The part of the gateway that recovery and reconciling need: which workflows there are, what they hold, starting anew.

Like ``approvals_api.gateway.client``, it knows Temporal and what its errors mean, and nothing else of ours does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final, Literal

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from approvals_api.gateway.calls import reported, start_turn
from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput
from turngate.domain.errors import UnavailableError
from turngate.domain.runs.turn_state import Gate

RPC_WAIT: Final = timedelta(seconds=5)
"""Longer than the API waits: many runs are looked at, and nobody has clicked on anything."""
QUERY_WAIT: Final = timedelta(seconds=10)
OPEN_TURNS: Final = f"WorkflowType = '{contract.AGENT_TURN}' AND ExecutionStatus = 'Running'"

WorkflowStanding = Literal["open", "closed", "absent"]
"""``closed``: ended in whatever way, and still known to Temporal. ``absent``: Temporal does not know it (any more)."""


async def standing_of(client: Client, run_id: str) -> WorkflowStanding:
    """Return how the run's workflow stands. Raises UnavailableError when Temporal is away."""
    try:
        with reported():
            async with asyncio.timeout(RPC_WAIT.total_seconds()):
                found = await client.get_workflow_handle(run_id).describe(rpc_timeout=RPC_WAIT)
    except LookupError:
        return "absent"
    return "open" if found.close_time is None else "closed"


async def start_anew(client: Client, start: AgentTurnInput, task_queue: str) -> bool:
    """Start a workflow for a run whose own is gone; False when there is an open one, which is left as it is.

    Two that try at once cannot both succeed: the server holds one open workflow per id. Raises UnavailableError when
    Temporal is away.
    """
    with reported():
        return await start_turn(
            client,
            start,
            task_queue,
            # Also after one that completed: the store says that the run lives, and the store is asked last.
            reuse=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            conflict=WorkflowIDConflictPolicy.FAIL,
            wait=RPC_WAIT,
        )


async def open_turns(client: Client) -> AsyncIterator[str]:
    """Give the ids of the runs whose workflows are open, a little late (Temporal's list lags by moments).

    Raises UnavailableError when Temporal is away.
    """
    with reported():
        async for found in client.list_workflows(OPEN_TURNS, rpc_timeout=RPC_WAIT):
            yield found.id


async def gates_of(client: Client, run_id: str) -> dict[str, Gate] | None:
    """Ask a run's workflow for the gates it holds, request id → gate; None when no worker answers, or it has gone.

    Raises UnavailableError when Temporal is away.
    """
    handle = client.get_workflow_handle(run_id)
    try:
        with reported():
            async with asyncio.timeout(QUERY_WAIT.total_seconds()):
                gates: dict[str, Gate] = await handle.query(
                    contract.GATES, result_type=dict[str, Gate], rpc_timeout=QUERY_WAIT
                )
                return gates
    except (LookupError, WorkflowQueryFailedError):  # it ended meanwhile; its worker cannot answer
        return None
    except UnavailableError:
        await standing_of(client, run_id)  # a server that is there: then it is the worker that does not answer
        return None
