"""The way to the workflows: start runs, tell them what the store has decided, and say what Temporal's errors mean.

Only this package imports temporalio; the rest of the API knows a :class:`Gateway`.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, RPCError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from turngate.approvals_api.gateway.calls import reported, start_turn
from turngate.approvals_api.gateway.expedite import expedite_model
from turngate.approvals_api.gateway.labels import Labels, LabelSettings
from turngate.approvals_api.gateway.recovery import WorkflowRecovery
from turngate.approvals_api.gateway.schedules import TemporalSchedules
from turngate.approvals_api.gateway.task_queues import (
    Build,
    QueueLook,
    known_builds,
    look_at_queue,
    oldest_activity,
    stopping_workers,
    worker_clocks,
)
from turngate.approvals_api.gateway.workflow_status import FailingWorkflows, WorkflowLook, list_failing, look_at
from turngate.domain import contract
from turngate.domain.contract import AgentTurnInput
from turngate.domain.errors import ConflictError, GoneError, TurngateError
from turngate.domain.runs.labels import RunLabels

logger = logging.getLogger(__name__)

RPC_WAIT = timedelta(seconds=3)
LOOK_WAIT = timedelta(seconds=2)
BUILDS_LOOKED_AT = 20
READY_WAIT = timedelta(seconds=1)
HEALTH_ATTEMPTS = 3
HEALTH_PAUSE_SECONDS = 0.2
"""A broken connection is reopened by the next call, so one failure says little; a server that is gone fails them all."""
BUSY_WAIT = timedelta(seconds=5)
"""How long a busy server may take to answer before nothing is started with it."""


class Gateway:
    """The workflows, as the API sees them.

    ``recovery`` and ``schedules``: the same for recovery and for schedules. ``eager``: a worker of this very client runs in
    this process, and gets a new run's first task with the answer to its start. Not for workers with a build: the server would
    not choose the build. ``labels``: what runs are labelled with; None: with what the server takes.
    """

    def __init__(self, client: Client, *, eager: bool = False, labels: LabelSettings | None = None) -> None:
        self._client = client
        self._eager = eager
        self._telling: set[asyncio.Task[None]] = set()
        """Signals on their way: asyncio itself holds a task only weakly."""
        self._answered_at = float("-inf")
        self.labels = Labels(client, labels)
        self.recovery = WorkflowRecovery(client, self.labels)
        self.schedules = TemporalSchedules(client, self.labels)

    @property
    def place(self) -> str:
        """Return the options with which Temporal's own commands find this server and namespace."""
        address, namespace = self._client.service_client.config.target_host, self._client.namespace
        return f"--address {shlex.quote(address)} --namespace {shlex.quote(namespace)}"

    async def ready(self, within: timedelta = READY_WAIT) -> bool:
        """Tell whether Temporal answers in time, or has answered within the last second.

        It takes half a second to see that a server is gone.
        """
        if time.monotonic() - self._answered_at < READY_WAIT.total_seconds():
            return True
        try:
            async with asyncio.timeout(within.total_seconds()):
                for attempt in range(1, HEALTH_ATTEMPTS + 1):
                    if await self._healthy(within):
                        self._answered_at = time.monotonic()
                        return True
                    if attempt < HEALTH_ATTEMPTS:
                        await asyncio.sleep(HEALTH_PAUSE_SECONDS)
        except TimeoutError:
            logger.warning("Temporal did not say within %s s whether it is healthy", within.total_seconds())
        return False

    async def _healthy(self, within: timedelta) -> bool:
        try:
            healthy = await self._client.service_client.check_health(timeout=within)
        except (RPCError, RuntimeError) as error:
            logger.warning("Temporal could not be asked whether it is healthy: %s", error)
            return False
        if not healthy:
            logger.warning("Temporal says that it is not healthy")
        return healthy

    async def start_run(self, start: AgentTurnInput, task_queue: str, labels: RunLabels | None = None) -> None:
        """Start the run's workflow; safe to repeat: a workflow of this id that runs or ran is left as it is.

        Raises UnavailableError when Temporal is away.
        """
        with _reported():
            await start_turn(
                self._client,
                start,
                task_queue,
                self.labels.of(labels),
                reuse=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                conflict=WorkflowIDConflictPolicy.USE_EXISTING,
                wait=RPC_WAIT,
                eager=self._eager,
            )

    def tell_decided(self, run_id: str, request_id: str) -> None:
        """Tell the run, soon, that the store has news of a request. Never raises and never waits.

        What could not be delivered is logged, and delivered again by :mod:`turngate.approvals_api.recovery.redelivery`.
        """
        self._tell_soon(run_id, contract.DECIDED, request_id)

    async def tell_decided_again(self, run_id: str, request_id: str) -> None:
        """Tell the run that the store has news of a request; a run that knows it already changes nothing.

        Raises ConflictError (code ``run_ended``) when it has ended, UnavailableError when Temporal is away.
        """
        await self._tell(run_id, contract.DECIDED, request_id)

    async def look(self, run_id: str) -> WorkflowLook:
        """Return what Temporal says of the run's workflow now; never raises for a server that is away."""
        return await look_at(self._client, run_id)

    async def failing_workflows(self) -> FailingWorkflows | None:
        """Return the workflows that can't continue; None: this server can't list them. Raises UnavailableError."""
        with _reported():
            return await list_failing(self._client)

    async def look_at_queue(self, task_queue: str) -> QueueLook:
        """Return who polls the task queue, and how long its oldest task waits. Raises UnavailableError."""
        with _reported():
            look, activity = await asyncio.gather(
                look_at_queue(self._client, task_queue, wait=LOOK_WAIT),
                oldest_activity(self._client, task_queue, wait=LOOK_WAIT),
            )
        return replace(look, waiting=max(look.waiting, activity))

    async def stopping_workers(self, queues: Iterable[str]) -> dict[str, dict[str, datetime]]:
        """Return the workers of these queues that are stopping, by queue and identity. Raises UnavailableError."""
        with _reported():
            return await stopping_workers(self._client, queues, now=datetime.now(UTC), wait=LOOK_WAIT)

    async def worker_clocks(self) -> dict[str, datetime]:
        """Return the last heartbeat of each worker by its own clock: identity → instant. Raises UnavailableError."""
        with _reported():
            return await worker_clocks(self._client, wait=LOOK_WAIT)

    async def look_at_builds(self, deployment_name: str) -> list[Build]:
        """Return the newest builds of the workers, newest first. Raises UnavailableError."""
        with _reported():
            return await known_builds(self._client, deployment_name, limit=BUILDS_LOOKED_AT, wait=LOOK_WAIT)

    async def expedite_model(self, run_id: str) -> bool:
        """Send a model request that waits for its next attempt now; never raises. True: it waited."""
        return await expedite_model(self._client, run_id)

    def tell_changed(self, run_id: str) -> None:
        """Tell the run, soon, that someone has interrupted, paused or resumed it. Never raises, as :meth:`tell_decided`."""
        self._tell_soon(run_id, contract.CHANGED)

    async def tell_changed_again(self, run_id: str) -> None:
        """Tell the run that there is an order for it in the store. Raises as :meth:`tell_decided_again`."""
        await self._tell(run_id, contract.CHANGED)

    async def tell_external(self, run_id: str, call: str) -> None:
        """Tell the run that something happened to its external call. Raises as :meth:`tell_decided_again`."""
        await self._tell(run_id, contract.EXTERNAL_CALL, call)

    def _tell_soon(self, run_id: str, signal: str, name: str | None = None) -> None:
        task = asyncio.create_task(self._tell_quietly(run_id, signal, name))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_quietly(self, run_id: str, signal: str, name: str | None) -> None:
        try:
            await self._tell(run_id, signal, name)
        except TurngateError as error:
            logger.warning(
                "run %s does not know yet that it was %s (%s): %s",
                run_id,
                signal,
                name,
                error,
                extra={"run_id": run_id},
            )

    async def _tell(self, run_id: str, signal: str, name: str | None = None) -> None:
        """Send a signal that carries an id, or nothing. ``name``: the id."""
        values = [] if name is None else [name]
        try:
            with _reported():
                async with asyncio.timeout(RPC_WAIT.total_seconds()):
                    handle = self._client.get_workflow_handle(run_id)
                    await handle.signal(signal, args=values, rpc_timeout=RPC_WAIT)
        except GoneError:
            raise ConflictError("the run has ended, or its workflow is gone", code="run_ended") from None


def _reported() -> AbstractContextManager[None]:
    """Turn Temporal's transport errors into ours, about a run that may have ended."""
    return reported(GoneError("the run has ended, and its requests ended with it", code="run_ended"))
