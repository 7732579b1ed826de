"""How the gateway's modules call Temporal: what its transport errors mean, and starting a run's workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from temporalio.client import Client, RPCError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCStatusCode

from turngate.approvals_api.gateway.labels import LabelOptions
from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput
from turngate.domain.errors import UnavailableError

AWAY = "Temporal cannot be reached; nothing was changed. Try again when it is back (`turngate doctor` checks it)."


@contextmanager
def reported(absent: Exception | None = None) -> Iterator[None]:
    """Turn Temporal's transport errors into ours. ``absent``: the error when there is no such workflow or schedule."""
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise absent or LookupError(error.message) from error
        raise UnavailableError(AWAY, cause=error.message[:200]) from error
    except (RuntimeError, TimeoutError) as error:
        # A lazy client that cannot connect raises RuntimeError: the SDK has no type of its own for it.
        raise UnavailableError(AWAY) from error


async def start_turn(
    client: Client,
    start: AgentTurnInput,
    task_queue: str,
    labels: LabelOptions,
    *,
    reuse: WorkflowIDReusePolicy,
    conflict: WorkflowIDConflictPolicy,
    wait: timedelta,
    eager: bool = False,
) -> bool:
    """Start the workflow of a run; False when these policies leave an earlier one as it is.

    ``wait``: for the server's answer. ``eager``: as of :class:`turngate.approvals_api.gateway.client.Gateway`. Raises what
    :func:`reported` turns into ours.
    """

    async def send(options: dict[str, Any]) -> None:
        await client.start_workflow(
            contract.AGENT_TURN,
            start,
            id=start.run_id,
            task_queue=task_queue,
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            rpc_timeout=wait,
            request_eager_start=eager,
            **options,
        )

    try:
        async with asyncio.timeout(wait.total_seconds()):
            await labels.sent_with(send)
    except WorkflowAlreadyStartedError:
        return False
    return True
