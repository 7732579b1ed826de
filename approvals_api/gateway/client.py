"""The way to the workflows: start runs, send decisions and interrupts, and say what Temporal's errors mean.

Only this package imports temporalio; the rest of the API knows a :class:`Gateway`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import AbstractContextManager
from datetime import timedelta

from temporalio.client import Client, RPCError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCStatusCode

from approvals_api.gateway.calls import AWAY, reported, start_turn
from approvals_api.gateway.expedite import expedite_model
from approvals_api.gateway.recovery import WorkflowRecovery
from approvals_api.gateway.schedules import TemporalSchedules
from approvals_api.gateway.workflow_status import WorkflowLook, look_at
from turngate.domain import contract
from turngate.domain.contract import (
    AgentTurnInput,
    DecideInput,
    DecideResult,
    ExternalCallInput,
    InterruptInput,
    PauseInput,
    ResumeInput,
    SupersedeInput,
)
from turngate.domain.digest import derived_id
from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    TurngateError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

RPC_WAIT = timedelta(seconds=3)
READY_WAIT = timedelta(seconds=1)
HEALTH_ATTEMPTS = 3
HEALTH_PAUSE_SECONDS = 0.2
"""A broken connection is reopened by the next call, so one failure says little; a server that is gone fails them all."""
BUSY_WAIT = timedelta(seconds=5)
"""How long a busy server may take to answer before nothing is started with it."""


class Gateway:
    """The workflows, as the API sees them. ``update_wait``: how long a decision waits for a worker to answer.

    ``recovery`` and ``schedules``: the same for recovery and for schedules.
    """

    def __init__(self, client: Client, *, update_wait: timedelta = timedelta(seconds=3)) -> None:
        self._client = client
        self._update_wait = update_wait
        self._answered_at = float("-inf")
        self.recovery = WorkflowRecovery(client)
        self.schedules = TemporalSchedules(client)

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

    async def start_run(self, start: AgentTurnInput, task_queue: str) -> None:
        """Start the run's workflow; safe to repeat: a workflow of this id that runs or ran is left as it is.

        Raises UnavailableError when Temporal is away.
        """
        with _reported():
            await start_turn(
                self._client,
                start,
                task_queue,
                reuse=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                conflict=WorkflowIDConflictPolicy.USE_EXISTING,
                wait=RPC_WAIT,
            )

    async def decide(self, run_id: str, decision: DecideInput, *, content: str = "") -> DecideResult | None:
        """Send a decision to its run. None: recorded as a Signal, because no worker answered in time.

        ``content``: what of the decision only the store keeps, as one text; empty when there is nothing.

        An update whose wait was given up may still arrive; the Signal carries the same decision id, so whichever comes
        second is the same decision again.

        Raises:
            GoneError: the run has ended.
            ConflictError: someone else was first (``winner`` is their decision id), or the digest differs.
            ForbiddenError: this person may not decide it.
            InvalidInputError: the edit or answer does not fit, or the verb does not.
            UnavailableError: Temporal or the store is away.
        """
        with _reported():
            try:
                async with asyncio.timeout(self._update_wait.total_seconds()):
                    return await self._updated(run_id, decision, content)
            except WorkflowUpdateFailedError as failed:
                raise _refused(failed.cause) from None
            except (WorkflowUpdateRPCTimeoutOrCancelledError, TimeoutError):
                pass
            except RPCError as error:
                # The server holds ten updates per workflow at a time, and refuses more as exhausted: a Signal has no such bound.
                if error.status is not RPCStatusCode.RESOURCE_EXHAUSTED:
                    raise
            # No answer means no worker or no server; the second is an error at once, not after another wait.
            if not await self.ready():
                raise UnavailableError(AWAY)
        await self.tell_decision(run_id, decision)
        return None

    async def _updated(self, run_id: str, decision: DecideInput, content: str) -> DecideResult:
        """Send the Update; again under another id if the answer is that the store was away.

        The server keeps an update's answer under its id and repeats it to everyone who sends that id. So the id covers the
        whole decision: after a worker refused an edit, a corrected one may have the same decision id. And a store that was
        away once would be away for this decision forever. The run knows a decision by its own id, not by the update's.
        """
        handle = self._client.get_workflow_handle(run_id)
        whole = (decision.decision_id, decision.by, decision.verb, decision.digest, decision.outcome or "", content)
        first = derived_id("upd", *whole)
        again = f"{first} again {secrets.token_hex(6)}"
        for update_id in (first, again):
            try:
                result: DecideResult = await handle.execute_update(
                    contract.DECIDE, decision, id=update_id, result_type=DecideResult
                )
            except WorkflowUpdateFailedError as failed:
                cause = failed.cause
                away = isinstance(cause, ApplicationError) and cause.type == contract.ERROR_STORE_UNAVAILABLE
                if not away or update_id == again:
                    raise
            else:
                return result
        raise RuntimeError("the last update neither answered nor failed")  # pragma: no cover - it does one of both

    async def tell_decision(self, run_id: str, decision: DecideInput) -> None:
        """Send a decision as a Signal, durable from then on; one that the run knows already changes nothing.

        Raises GoneError when the run has ended, UnavailableError when Temporal is away.
        """
        with _reported():
            async with asyncio.timeout(RPC_WAIT.total_seconds()):
                handle = self._client.get_workflow_handle(run_id)
                await handle.signal(contract.DECIDE, decision, rpc_timeout=RPC_WAIT)

    async def look(self, run_id: str) -> WorkflowLook:
        """Return what Temporal says of the run's workflow now; never raises for a server that is away."""
        return await look_at(self._client, run_id)

    async def expedite_model(self, run_id: str) -> bool:
        """Send a model request that waits for its next attempt now; never raises. True: it waited."""
        return await expedite_model(self._client, run_id)

    async def interrupt(self, run_id: str, interrupt: InterruptInput) -> None:
        """Tell the run to stop. Raises ConflictError (code ``run_ended``) when it has ended, UnavailableError when away."""
        await self._tell(run_id, contract.INTERRUPT, interrupt)

    async def pause(self, run_id: str, pause: PauseInput) -> None:
        """Tell the run to hold. Raises as :meth:`interrupt`."""
        await self._tell(run_id, contract.PAUSE, pause)

    async def resume(self, run_id: str, resume: ResumeInput) -> None:
        """Tell the run to continue. Raises as :meth:`interrupt`."""
        await self._tell(run_id, contract.RESUME, resume)

    async def supersede(self, run_id: str, supersede: SupersedeInput) -> None:
        """Tell the run that a newer message ends what waits in it. Raises as :meth:`interrupt`."""
        await self._tell(run_id, contract.SUPERSEDE, supersede)

    async def tell_external(self, run_id: str, news: ExternalCallInput) -> None:
        """Tell the run that something happened to its external call. Raises as :meth:`interrupt`."""
        await self._tell(run_id, contract.EXTERNAL_CALL, news)

    async def _tell(
        self,
        run_id: str,
        signal: str,
        payload: InterruptInput | PauseInput | ResumeInput | SupersedeInput | ExternalCallInput,
    ) -> None:
        try:
            with _reported():
                async with asyncio.timeout(RPC_WAIT.total_seconds()):
                    await self._client.get_workflow_handle(run_id).signal(signal, payload, rpc_timeout=RPC_WAIT)
        except GoneError:
            raise ConflictError(f"the run has ended, so there is nothing to {signal}", code="run_ended") from None


def _reported() -> AbstractContextManager[None]:
    """Turn Temporal's transport errors into ours, about a run that may have ended."""
    return reported(GoneError("the run has ended, and its requests ended with it", code="run_ended"))


def _refused(cause: BaseException) -> TurngateError:
    """Return the error that a refused update means, by the contract's error types."""
    if not isinstance(cause, ApplicationError):
        return UnavailableError(f"the run did not answer the decision: {cause}")
    winner = cause.details[0] if cause.details else None
    match cause.type:
        case "request_not_pending":
            return ConflictError(cause.message, code="already_decided", winner=winner)
        case "unknown_request" | "digest_differs" | "already_approved" as code:
            return ConflictError(cause.message, code=code)
        case "not_eligible":
            return ForbiddenError(cause.message, code="not_eligible")
        case "verb_not_allowed":
            return InvalidInputError(
                cause.message, code="verb_not_allowed", errors=[{"pointer": "/decision", "message": cause.message}]
            )
        case contract.ERROR_INVALID_EDIT:
            return InvalidInputError(
                cause.message, code="invalid_edit", errors=[{"pointer": "/args", "message": cause.message}]
            )
        # The last one is the server's own: the update was accepted, and the workflow ended before it answered.
        case "run_ended" | "AcceptedUpdateCompletedWorkflow":
            return GoneError(cause.message, code="run_ended")
        case contract.ERROR_STORE_UNAVAILABLE:
            return UnavailableError(cause.message)
        case _:
            return TurngateError(f"the run refused the decision in a way we do not know: {cause.type}: {cause.message}")
