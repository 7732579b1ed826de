"""What the store has decided and a run may have missed: told again, so that nothing is lost (I5).

The store ends a request without the run's workflow, which gets a signal with the request's id afterwards. If Temporal is away
then, or the sending process dies first, the workflow waits for news that does not come. Another signal repairs that, and a run
that knows already finds nothing new.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Final

from turngate.approvals_api.runs.send_message import supersede
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConflictError, UnavailableError
from turngate.domain.requests import runs_the_call
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, queued_messages, runs, steps

logger = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)
"""How long a run has to act on a decision before it gets another signal."""
PAUSE_SECONDS = 2.0
ORDERED: Final = frozenset({"run.interrupted", "run.paused", "run.resumed"})
ENDED: Final = frozenset({"request.decided", "request.superseded"})


async def keep_redelivering(
    services: Services, *, grace: timedelta = GRACE, pause_seconds: float = PAUSE_SECONDS
) -> None:
    """Check every end of a request once: first those from before this process, then each ``grace`` after it was made.

    Runs until it is cancelled. While Temporal or the store is away, it waits and then continues where it was.
    """
    seq: int | None = None
    while True:
        try:
            if seq is None:
                seq = await redeliver_earlier(services)
            seq = await redeliver_after(services, seq, grace)
        except UnavailableError as error:
            logger.warning("decisions that their runs may have missed are checked later: %s", error)
        await asyncio.sleep(pause_seconds)


async def redeliver_earlier(services: Services) -> int:
    """Check every decision of the live runs; returns the event from which to continue. Safe to repeat.

    Raises UnavailableError when Temporal or the store is away.
    """
    async with services.database.read() as conn:
        seq = await events.last_seq(conn)
        ended = await requests.ended_in_live_runs(conn)
        superseding = await queued_messages.superseding_in_live_runs(conn)
        ordered = await runs.with_unseen_orders(conn)
    for run_id in ordered:
        await redeliver_order(services, run_id)
    for request_id in ended:
        await redeliver(services, request_id)
    for message in superseding:
        await supersede(services, message)
    return seq


async def redeliver_after(services: Services, seq: int, grace: timedelta = GRACE) -> int:
    """Check the decisions after event ``seq`` that are old enough; returns the last event seen. Raises as above."""
    async with services.database.glance() as conn:
        upto = await events.before(conn, seq, now() - grace)
        # Most runs have ended by then, and others' events are no decision: nothing of these is read.
        missed = await events.of_live_runs(conn, ENDED | ORDERED, after=seq, upto=upto)
    for event in missed:
        if event.type in ENDED:
            await redeliver(services, str(event.payload["request_id"]))
        else:
            await redeliver_order(services, event.run_id)
    return upto


async def redeliver(services: Services, request_id: str) -> bool:
    """Tell the run again that this request has ended, unless it has acted on it; returns whether a signal was sent.

    Raises UnavailableError when Temporal or the store is away.
    """
    run_id = await is_missed(services, request_id)
    if run_id is None:
        return False
    try:
        # The run may not even know that this request replaced another one: it learns that when it acts on the other one's end.
        for each in await _replaced_by(services, request_id):
            await services.gateway.tell_decided_again(run_id, each)
        await services.gateway.tell_decided_again(run_id, request_id)
    except ConflictError:
        return False
    logger.info(
        "told run %s again about request %s: it had not acted on it",
        run_id,
        request_id,
        extra={"run_id": run_id, "request_id": request_id},
    )
    return True


async def _replaced_by(services: Services, request_id: str) -> list[str]:
    """Return the requests that this one replaced, one after the other, oldest first: taken back, superseded, or lost calls."""
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
        if request is None:
            return []
        of_call = await requests.of_call(conn, request.run_id, request.tool_call_id)
    return [each.id for each in of_call[: [each.id for each in of_call].index(request_id)]]


async def redeliver_order(services: Services, run_id: str) -> bool:
    """Tell the run again that it was interrupted, paused or resumed, unless it knows. Raises as :func:`redeliver`."""
    async with services.database.read() as conn:
        run = await runs.get(conn, run_id)
    if run is None or run.status != "running" or run.control_seen >= run.control:
        return False
    try:
        await services.gateway.tell_changed_again(run_id)
    except ConflictError:
        return False
    logger.info("told run %s again about an order: it had not acted on it", run_id, extra={"run_id": run_id})
    return True


async def is_missed(services: Services, request_id: str) -> str | None:
    """Return the run of a request that has ended without that the store shows that the run knows; None: all is well."""
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
        return request.run_id if request is not None and await _is_missed(conn, request) else None


async def _is_missed(conn: Connection, request: Request) -> bool:
    """Tell whether a request has ended and the store does not show that its run knows."""
    run = await runs.get(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if request.status == "pending" or run is None or run.status != "running" or call is None:
        return False
    content = None if request.decision_id is None else await requests.decision(conn, request.decision_id)
    if request.verb is not None and runs_the_call(request.kind, request.verb, content.outcome if content else None):
        execution = await executions.get(conn, request.run_id, request.tool_call_id)
        started = execution is not None and (request.kind == "approval" or execution.decision_id == request.decision_id)
        return not started and call.result is None
    if request.status == "superseded" and call.result is None:
        return await requests.get(conn, requests.again_id(request)) is None  # the door asks about an edited call
    # Its result was stored with its end, so only a closed step shows that the run continued.
    step = await steps.get(conn, request.run_id, call.step)
    return step is not None and step.closed_at is None
