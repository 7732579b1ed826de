"""A checked order in the store: recorded as a run that is about to begin, and taken back when it could not."""

from __future__ import annotations

import secrets

from approvals_api.http.authentication import Principal
from approvals_api.runs.order import Order
from approvals_api.runs.overrides import own_facts
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConflictError, NotFoundError
from turngate.domain.runs.outcomes import end_told
from turngate.store.agents import PublishedAgent
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import external_calls, messages, new_run, overrides, runs, summaries
from turngate.store.runs.new_run import NewRun, open_run
from turngate.store.runs.runs import Run
from turngate.store.tables import conversations

SUMMARISED = {"summarise": True}
"""Of a fork's beginning: a summary stands in place of the past it shares."""


async def record(conn: Connection, principal: Principal, agent: PublishedAgent, order: Order) -> Run:
    """Write conversation, input message, run and its first event, and return the run.

    Raises NotFoundError when there is no such conversation, ConflictError ``run_live`` or ``conversation_moved_on``, and
    sqlalchemy's IntegrityError when another run was first.
    """
    fork = order.forked_from
    if order.conversation_id is None:
        conversation_id, head = f"conv_{secrets.token_hex(12)}", None
        await messages.create_conversation(conn, conversation_id)
    else:
        conversation_id = order.conversation_id
        head = await _head_of_idle(conn, conversation_id)
    if fork is not None and not order.continues:
        head = fork.message_id
    said_already = _said_already(order, head)
    run_id = f"run_{secrets.token_hex(12)}"
    if order.summarise and said_already is None:
        await summaries.want(conn, run_id)
    new = NewRun(
        id=run_id,
        conversation_id=conversation_id,
        agent=agent.name,
        agent_version=agent.version,
        model=order.model or agent.model,
        workspace=order.workspace,
        task=order.text,
        input_message_id=said_already or f"msg_{secrets.token_hex(12)}",
        started_by=principal.name,
        idempotency_key=order.key,
        request_fingerprint=order.fingerprint,
        forked_from_run_id=None if fork is None else fork.run_id,
        forked_from_step=None if fork is None else fork.step,
        attended=order.unattended is None,
        unattended_asks=order.unattended or "park",
        world=await overrides.keep(conn, order.world),
        replay_of_run_id=order.replay_of,
        model_chosen_by=principal.name if order.model_is_fixed else None,
    )
    says = user_message(order.text) if said_already is None else None
    await open_run(conn, new, says=says, behind=head, told=_told(order), external=order.external)
    run = await runs.get(conn, run_id)
    if run is None:  # pragma: no cover - inserted above, in this transaction
        raise RuntimeError(f"run {run_id} vanished")
    return run


async def take_back(conn: Connection, run: Run, order: Order) -> None:
    """Remove a run that did not start. Its events stay: the log is append-only, and it says how the run ended.

    Should the workflow have started after all, it finds no run in the store, and nothing can run in its name.
    """
    now = await runs.get(conn, run.id)
    if now is None or now.step > 0:
        return
    parent_id = (await messages.path_to(conn, run.input_message_id))[-1].parent_id
    why = "Temporal was away; the run did not start"
    ended = end_told(status="failed", reason=why, error_class="not_started")
    await events.append(conn, run.id, [("run.ended", ended)])
    await events.keep_head(conn, run.id)
    await external_calls.remove(conn, run.id)
    await new_run.remove_unstarted(conn, run.id)
    if order.continues:
        return
    if order.conversation_id is None:
        await conn.execute(conversations.delete().where(conversations.c.id == run.conversation_id))
    elif parent_id is not None:
        await messages.set_head(conn, run.conversation_id, parent_id)


def run_live(run: Run) -> ConflictError:
    """Return the error that names the live run of a conversation."""
    return ConflictError(
        f"run {run.id} of this conversation is still live: wait for its end, or interrupt it",
        code="run_live",
        run_id=run.id,
    )


async def _head_of_idle(conn: Connection, conversation_id: str) -> str | None:
    """Return the newest message of a conversation that is there and has no live run. Raises as :func:`record` does."""
    if not await messages.conversation_exists(conn, conversation_id):
        raise NotFoundError(f"there is no conversation {conversation_id!r}")
    live = await runs.live_of_conversation(conn, conversation_id)
    if live is not None:
        raise run_live(live)
    return await messages.head_of(conn, conversation_id)


def _said_already(order: Order, head: str | None) -> str | None:
    """Return the message which the run begins with, if nothing new is said to it."""
    if order.begins_at is not None:
        return order.begins_at
    if not order.continues:
        return None
    if order.forked_from is None or head != order.forked_from.message_id:
        raise ConflictError(
            "the conversation has gone on since: fork the run from one of its steps instead",
            code="conversation_moved_on",
        )
    return head


def _told(order: Order) -> dict[str, object]:
    """Return what the run's first event says of the order."""
    fork, told = order.forked_from, dict[str, object]()
    if order.unattended is not None:
        told["unattended"] = order.unattended
    if order.world is not None and not order.world.is_plain:
        told["own"] = own_facts(order.world)
    if fork is not None:
        told["forked_from"] = {"run_id": fork.run_id, "step": fork.step} | (SUMMARISED if order.summarise else {})
    if order.replay_of is not None:
        told["replay_of"] = {"run_id": order.replay_of, "step": 0 if fork is None else fork.step}
    return told
