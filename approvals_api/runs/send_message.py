"""Sending a message to a conversation: the next run answers it, or the live run takes it as its agent declares."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import start
from turngate.approvals_api.runs.dry_run import refuse_dry
from turngate.approvals_api.runs.order import CheckedOrder, checked_order
from turngate.approvals_api.runs.overrides import require_policy_right
from turngate.approvals_api.runs.ownership import own_run, require_bounds, require_own_conversation
from turngate.approvals_api.services import Services
from turngate.domain.digest import derived_id, framed_sha256
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.requests import WhileRunning
from turngate.domain.tools import results
from turngate.domain.tools.external import is_external
from turngate.store import agents
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.live import sent_messages
from turngate.store.requests import requests
from turngate.store.runs import calls, overrides, queued_messages, runs
from turngate.store.runs.queued_messages import QueuedMessage
from turngate.store.runs.runs import Run
from turngate.wire.orders import MessageOrder, StartOrder

ATTEMPTS: Final = 5
"""How often to look for a live run: each time another run has started or ended in between."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Where a message went. ``message`` None: a run was started with it; else it waits for ``run``, or ``run`` took it."""

    run: Run
    message: QueuedMessage | None


async def send(
    services: Services,
    principal: Principal,
    run_id: str,
    message: MessageOrder,
    *,
    idempotency_key: str | None = None,
) -> Sent:
    """Send a message into a run's conversation.

    Without a live run it starts the next one, with this run's agent, model, workspace and overrides. A live run takes it as
    the message says, or as its agent declares. The same ``idempotency_key`` with the same content is one message.

    Raises:
        NotFoundError: no such run.
        InvalidInputError: the text does not fit.
        ConflictError: ``idempotency_key_reused``; ``run_live``: a sub-agent's run, which has no next run to wait for;
            ``dry_replay``.
        ForbiddenError: the principal may not start runs, not under this run's own policy, or not of its agent (``beyond_token``).
        UnavailableError: Temporal or the store is away; a message that was stored is not lost.
    """
    principal.require("runs:write")
    async with services.database.read() as conn:
        before = await own_run(conn, principal, run_id)
        run_overrides = await overrides.get(conn, before.world)
    refuse_dry(before, "to continue, fork it from one of its steps")
    if is_external(before.agent):
        raise ConflictError("this run is an external call: it takes no messages", code="external_call")
    following = StartOrder(
        agent=before.agent,
        input=message.input,
        conversation_id=before.conversation_id,
        workspace=before.workspace,
        model=before.chosen_model or None,
        unattended=None if before.attended else before.unattended_asks,
    )
    order = replace(
        await checked_order(following, principal, idempotency_key=idempotency_key), run_overrides=run_overrides
    )
    for _ in range(ATTEMPTS - 1):
        try:
            sent = await _once(services, principal, before.agent, order, message.while_running)
            break
        except IntegrityError:  # the same key twice at the same moment: now the first message is there
            continue
        except ConflictError as conflict:  # no run was live, and now one is: someone else was faster
            if conflict.error_code != "run_live":
                raise
    else:
        sent = await _once(services, principal, before.agent, order, message.while_running)
    if sent.message is not None and sent.message.while_running == "supersede" and sent.message.taken_at is None:
        await supersede(services, sent.message)
    return sent


async def supersede(services: Services, message: QueuedMessage) -> None:
    """End what waits for a person in the run, because of this message, and tell the run. Safe to repeat.

    A message that a run took meanwhile, or that no one sent, ends nothing. Whether a call happened has to be said all the
    same, so those requests stay. A response that is being planned meanwhile is looked after by its planner.
    """
    async with services.database.write() as conn:
        run, at = await runs.get(conn, message.run_id), now()
        if run is None or message not in await sent_messages.waiting(conn, run):
            return
        ended = await requests.supersede(conn, message.run_id, at=at)
        for request in ended:
            closing = results.superseded(message.sent_by)
            digest = await calls.settle(conn, message.run_id, request.tool_call_id, closing, nonce=request.nonce)
            payload = {"request_id": request.id, "tool_call_id": request.tool_call_id, "by": message.sent_by}
            payload["at"] = as_text(at)
            digests = events.digests(result={request.tool_call_id: digest})
            await events.append(conn, message.run_id, [("request.superseded", {**payload, **digests})])
    for request in ended:
        services.gateway.tell_decided(message.run_id, request.id)


async def _once(
    services: Services, principal: Principal, agent: str, order: CheckedOrder, while_running: WhileRunning | None
) -> Sent:
    """Give the message to the live run, or start one with it."""
    queued = await _queue(services, principal, order, while_running)
    if queued is not None:
        return queued
    require_policy_right(principal, order.run_overrides)
    return Sent(run=await start.start_ordered(services, principal, agent, order), message=None)


async def _queue(
    services: Services, principal: Principal, order: CheckedOrder, while_running: WhileRunning | None
) -> Sent | None:
    """Queue the message for the conversation's live run, once; None: no run is live, so the message starts one."""
    message_id = f"msg_{secrets.token_hex(12)}" if order.key is None else derived_id("msg", order.key)
    async with services.database.write() as conn:
        earlier = await queued_messages.get(conn, message_id)
        if earlier is not None:
            return await _sent_before(conn, earlier, order, while_running)
        if order.key is not None and await runs.by_idempotency_key(conn, order.key) is not None:
            return None  # it started a run: starting again returns that one, or says that the key was used
        live = await runs.hold_live(conn, order.conversation_id or "")
        if live is None:
            return None
        await require_own_conversation(conn, principal, live.conversation_id)
        await require_bounds(principal, live.agent, live.workspace)
        mode = while_running or await _declared(conn, live)
        if mode == "queue":
            require_policy_right(principal, await overrides.get(conn, live.world))
        if mode == "queue" and live.parent_run_id is not None:
            raise ConflictError(
                "this run answers another run's call and ends with that answer: inject the message, or wait",
                code="run_live",
                run_id=live.id,
            )
        queued = QueuedMessage(
            id=message_id,
            run_id=live.id,
            text=order.text,
            while_running=mode,
            sent_by=principal.name,
            fingerprint=_fingerprint(order, while_running),
        )
        await queued_messages.add(conn, queued, live.nonce)
        return Sent(run=live, message=await queued_messages.get(conn, message_id))


async def _sent_before(
    conn: Connection, earlier: QueuedMessage, order: CheckedOrder, while_running: WhileRunning | None
) -> Sent:
    if earlier.fingerprint != _fingerprint(order, while_running):
        raise ConflictError(
            "this Idempotency-Key was used for another message: send this one under a new key",
            code="idempotency_key_reused",
        )
    run = await runs.get(conn, earlier.run_id)
    if run is None:
        raise NotFoundError(f"the run {earlier.run_id!r} that took this message is gone")
    return Sent(run=run, message=earlier)


async def _declared(conn: Connection, run: Run) -> WhileRunning:
    published = await agents.get(conn, run.agent)
    return "queue" if published is None else published.while_running


def _fingerprint(order: CheckedOrder, while_running: WhileRunning | None) -> str:
    return framed_sha256(order.fingerprint, while_running or "")
