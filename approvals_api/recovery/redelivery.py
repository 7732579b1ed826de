"""Decisions that the store has and their run may have missed: sent again, so that none is lost (I5).

The workflow writes a decision into the store before the workflow task that took it is complete, so that the person who
decided reads their own write. If Temporal's server dies in between, the update is gone (only an accepted update is durable,
https://docs.temporal.io/handling-messages), and the request is closed for everyone while its run waits at the gate.
A Signal with the same decision id repairs that; a run that knows the decision ignores it.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from approvals_api.runs.send_message import supersede
from approvals_api.services import Services
from turngate.domain.contract import DecideInput
from turngate.domain.errors import GoneError, UnavailableError
from turngate.domain.requests import runs_the_call
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import calls, executions, queued_messages, runs, steps

logger = logging.getLogger(__name__)

GRACE = timedelta(seconds=5)
"""How long a run has to act on a decision before it is sent again. An update is answered or given up within 3 s."""
PAUSE_SECONDS = 2.0
BATCH = 500


async def keep_redelivering(services: Services) -> None:
    """Check every decision once: first those from before this process, then each a few seconds after it was made.

    Runs until it is cancelled. While Temporal or the store is away, it waits and then continues where it was.
    """
    seq: int | None = None
    while True:
        try:
            if seq is None:
                seq = await redeliver_earlier(services)
            seq = await redeliver_after(services, seq)
        except UnavailableError as error:
            logger.warning("decisions that their runs may have missed are checked later: %s", error)
        await asyncio.sleep(PAUSE_SECONDS)


async def redeliver_earlier(services: Services) -> int:
    """Check every decision of the live runs; returns the event from which to continue. Safe to repeat.

    Raises UnavailableError when Temporal or the store is away.
    """
    async with services.database.read() as conn:
        seq = await events.last_seq(conn)
        decided = await requests.decided_in_live_runs(conn)
        superseding = await queued_messages.superseding_in_live_runs(conn)
    for request_id in decided:
        await redeliver(services, request_id)
    for message in superseding:
        await supersede(services, message)
    return seq


async def redeliver_after(services: Services, seq: int) -> int:
    """Check the decisions after event ``seq`` that are old enough; returns the last event seen. Raises as above."""
    while True:
        async with services.database.read() as conn:
            batch = await events.after(conn, seq, limit=BATCH)
        old_enough = as_text(now() - GRACE)
        for event in batch:
            if event.created_at > old_enough:
                return seq
            if event.type == "request.decided":
                await redeliver(services, str(event.payload["request_id"]))
            seq = event.seq
        if len(batch) < BATCH:
            return seq


async def redeliver(services: Services, request_id: str) -> bool:
    """Send the decision to its run again unless the run has acted on it; returns whether it was sent.

    Raises UnavailableError when Temporal or the store is away.
    """
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
        decision = None if request is None else await _missed(conn, request)
    if request is None or decision is None:
        return False
    try:
        await services.gateway.tell_decision(request.run_id, decision)
    except GoneError:
        return False
    logger.info("sent decision %s to run %s again: it had not acted on it", decision.decision_id, request.run_id)
    return True


async def _missed(conn: Connection, request: Request) -> DecideInput | None:
    """Return the decision that won the request, unless the store shows that its run knows it."""
    if request.decision_id is None or request.verb is None or request.decided_by is None or request.decided_at is None:
        return None
    run = await runs.get(conn, request.run_id)
    call = await calls.get(conn, request.run_id, request.tool_call_id)
    if run is None or run.status != "running" or call is None:
        return None
    content = await requests.decision(conn, request.decision_id)
    outcome = content.outcome if content else None
    if runs_the_call(request.kind, request.verb, outcome):
        execution = await executions.get(conn, request.run_id, request.tool_call_id)
        started = execution is not None and (request.kind == "approval" or execution.decision_id == request.decision_id)
        known = started or call.result is not None
    else:  # its result was stored with the decision, so only a closed step shows that the run continued
        step = await steps.get(conn, request.run_id, call.step)
        known = step is None or step.closed_at is not None
    if known:
        return None
    return DecideInput(
        decision_id=request.decision_id,
        request_id=request.id,
        verb=request.verb,
        digest=request.digest,
        by=request.decided_by,
        outcome=outcome,
        sent_at=from_text(request.decided_at),
    )
