"""The order for a new run: checked as far as possible without the store, recorded as a run, and removed if it didn't start."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.retention.erase import require_content
from turngate.approvals_api.runs.overrides import own_facts
from turngate.approvals_api.runs.ownership import require_own_conversation
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.agents.model_profiles import PROFILE_NAME
from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from turngate.domain.requests import UnattendedAsks
from turngate.domain.runs.outcomes import end_payload
from turngate.store.agents import PublishedAgent
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import external_calls, messages, new_run, overrides, runs, summaries
from turngate.store.runs.external_calls import ExternalCall
from turngate.store.runs.new_run import NewRun, open_run
from turngate.store.runs.runs import Run
from turngate.store.tables import conversations
from turngate.wire.orders import StartOrder

MAX_TEXT_CHARS = 100_000
MAX_MODEL_CHARS = 200
MAX_KEY_CHARS = 255


@dataclass(frozen=True, kw_only=True)
class ForkPoint:
    """Where a fork leaves another run: after its closed step ``step``, whose last message is ``message_id``."""

    run_id: str
    step: int
    message_id: str


@dataclass(frozen=True, kw_only=True)
class CheckedOrder:
    """A checked order. ``fingerprint``: equal for the same content from the same person.

    ``key``: what no other order may have, made from the Idempotency-Key and the credential that sent it.

    ``forked_from``: the past that a new conversation begins with; None: it begins empty. ``continues``: it continues in the
    same conversation where that run ended, without a new message. ``unattended``: what happens to its requests; None: the run
    is attended. ``run_overrides``: None: it has none. ``begins_at``: the message that a new conversation begins with,
    without a new one. ``replay_of``: the run of which it is a dry run. ``model_is_fixed``: a person chose ``model``
    for every step.
    """

    text: str
    conversation_id: str | None
    workspace: str | None
    model: str | None
    key: str | None
    fingerprint: str
    forked_from: ForkPoint | None = None
    continues: bool = False
    unattended: UnattendedAsks | None = None
    run_overrides: RunOverrides | None = None
    begins_at: str | None = None
    replay_of: str | None = None
    summarise: bool = False
    model_is_fixed: bool = False
    external: ExternalCall | None = None
    """The external call of the run, without the run's id."""


async def checked_order(
    wanted: StartOrder, principal: Principal, *, idempotency_key: str | None = None, text_at: str = "/input"
) -> CheckedOrder:
    """Return the order. Raises InvalidInputError with what does not fit. ``text_at``: pointer to the text."""
    return CheckedOrder(
        text=_checked_text(wanted.input, text_at),
        conversation_id=wanted.conversation_id,
        workspace=await _checked_workspace(wanted.workspace),
        model=None if wanted.model is None else checked_model(wanted.model),
        key=_stored_key(principal, idempotency_key),
        fingerprint=wanted.fingerprint(principal.name),
        unattended=wanted.unattended,
    )


def _checked_text(text: str, pointer: str) -> str:
    if not text.strip():
        raise _invalid(pointer, "the text is empty: write what the agent should do")
    if len(text) > MAX_TEXT_CHARS:
        raise _invalid(pointer, f"at most {MAX_TEXT_CHARS:,} characters, not {len(text):,}")
    require_storable(text, pointer)
    return text


async def _checked_workspace(workspace: str | None) -> str | None:
    if workspace is None:
        return None
    require_storable(workspace, "/workspace")
    path = Path(workspace)
    if not path.is_absolute() or not await asyncio.to_thread(path.is_dir):
        raise _invalid("/workspace", f"{workspace!r} is not the absolute path of a directory that exists here")
    return workspace


async def require_workspace(services: Services, workspace: str | None) -> None:
    """Raise InvalidInputError ``workspace_refused``, with the fix, unless runs may work in this directory."""
    if workspace is None:
        return
    why = await asyncio.to_thread(services.settings.workspaces.refusal, workspace)
    if why is not None:
        errors = [{"pointer": "/workspace", "message": why}]
        raise InvalidInputError(why, code="workspace_refused", errors=errors)


def checked_model(model: str) -> str:
    """Return the spec; raises InvalidInputError for what is neither ``provider:name`` nor could be a profile's name."""
    provider, _colon, name = model.partition(":")
    formed = bool(PROFILE_NAME.fullmatch(model)) or bool(provider and name)
    if not formed or len(model) > MAX_MODEL_CHARS or not model.isprintable():
        raise _invalid(
            "/model",
            "write a model as provider:name, such as openai:gpt-5, or as a profile's name; at most 200 characters",
        )
    return model


def _stored_key(principal: Principal, key: str | None) -> str | None:
    """Return what the run is stored under: a key belongs to the credential that sent it, and no other one can use it up."""
    if key is None:
        return None
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        raise _invalid("", f"Idempotency-Key: 1 to {MAX_KEY_CHARS} printable characters")
    return f"key:{framed_sha256(principal.credential, key)}"


def _invalid(pointer: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, errors=[{"pointer": pointer, "message": message}])


# A checked order in the store.


SUMMARISED = {"summarise": True}
"""In a fork's first event: a summary replaces the past."""
RETRIED = {"retry": True}
"""In a retry's first event: it continues in the same conversation."""


async def record(conn: Connection, principal: Principal, agent: PublishedAgent, order: CheckedOrder) -> Run:
    """Write conversation, input message, run and its first event, and return the run.

    Nothing may follow in the transaction. Raises NotFoundError when there is no such conversation, ConflictError ``run_live``
    or ``conversation_moved_on``, and sqlalchemy's IntegrityError when another run was first.
    """
    fork = order.forked_from
    if order.conversation_id is None:
        conversation_id, head = f"conv_{secrets.token_hex(12)}", None
    else:
        conversation_id = order.conversation_id
        await require_own_conversation(conn, principal, conversation_id)
        head = await _head_of_idle(conn, conversation_id)
    if fork is not None and not order.continues:
        head = fork.message_id
    input_message_id = _input_already_there(order, head)
    run_id = f"run_{secrets.token_hex(12)}"
    if order.summarise and input_message_id is None:
        await summaries.want(conn, run_id)
    new = NewRun(
        id=run_id,
        conversation_id=conversation_id,
        agent=agent.name,
        agent_version=agent.version,
        model=order.model or agent.model,
        workspace=order.workspace,
        task=order.text,
        input_message_id=input_message_id or f"msg_{secrets.token_hex(12)}",
        started_by=principal.name,
        idempotency_key=order.key,
        request_fingerprint=order.fingerprint,
        forked_from_run_id=None if fork is None else fork.run_id,
        forked_from_step=None if fork is None else fork.step,
        is_retry=order.continues,
        attended=order.unattended is None,
        unattended_asks=order.unattended or "park",
        world=await overrides.keep(conn, order.run_overrides),
        replay_of_run_id=order.replay_of,
        model_chosen_by=principal.name if order.model_is_fixed else None,
        traceparent=principal.traceparent,
    )
    message = new.input_after(head, user_message(order.text)) if input_message_id is None else None
    return await open_run(
        conn,
        new,
        message,
        details=_event_payload(order, new.nonce),
        external=order.external,
        begins_conversation=order.conversation_id is None,
        last=True,
    )


async def keep(conn: Connection, run: Run) -> None:
    """Note that a run which was recorded before has been started by a repeat of its order: it isn't taken back any more.

    The first attempt may still wait for Temporal, and give up after the repeat has succeeded. Raises UnavailableError when it
    has given up before.
    """
    now = await runs.hold(conn, run.id)
    if now is None:
        raise UnavailableError("Temporal was away, and the run was taken back. Send it again.")
    if not _has_begun(now):
        await events.append(conn, run.id, [("run.start_repeated", {})])


async def take_back(conn: Connection, run: Run, order: CheckedOrder) -> bool:
    """Remove a run that did not start; False, and nothing is removed, if anything has happened to it since.

    Its events stay: the log is append-only, and it says how the run ended. If the workflow did start, it finds no run in the
    store, and no call can run for it.
    """
    now = await runs.hold(conn, run.id)
    if now is None or _has_begun(now):
        return False
    parent_id = (await messages.path_to(conn, run.input_message_id))[-1].parent_id
    why = "Temporal was away; the run did not start"
    ended = end_payload(status="failed", reason=why, error_class="not_started")
    await events.append(conn, run.id, [("run.ended", ended)])
    await events.store_head(conn, run.id)
    await external_calls.remove(conn, run.id)
    await new_run.remove_unstarted(conn, run.id)
    if order.continues:
        return True
    if order.conversation_id is None:
        await conn.execute(conversations.delete().where(conversations.c.id == run.conversation_id))
    elif parent_id is not None:
        await messages.set_head(conn, run.conversation_id, parent_id)
    return True


def _has_begun(run: Run) -> bool:
    """Tell whether anything has happened to a run since it was recorded, with its one event."""
    return run.step > 0 or run.event_count > 1


def run_live(run: Run) -> ConflictError:
    """Return the error that names the live run of a conversation."""
    return ConflictError(
        f"run {run.id} of this conversation is still live: wait for its end, or interrupt it",
        code="run_live",
        run_id=run.id,
    )


async def _head_of_idle(conn: Connection, conversation_id: str) -> str | None:
    """Return the newest message of a conversation that exists and has no live run. Raises as :func:`record`."""
    end = await messages.end_of(conn, conversation_id)
    if end is None:
        raise NotFoundError(f"there is no conversation {conversation_id!r}")
    await require_content(conn, end.erasure_id, "a new run in it")
    live = await runs.live_of_conversation(conn, conversation_id)
    if live is not None:
        raise run_live(live)
    return end.head_message_id


def _input_already_there(order: CheckedOrder, head: str | None) -> str | None:
    """Return the message that the run begins with, if it gets no new one."""
    if order.begins_at is not None:
        return order.begins_at
    if not order.continues:
        return None
    if order.forked_from is None or head != order.forked_from.message_id:
        raise ConflictError(
            "the conversation has continued since: fork the run from one of its steps instead",
            code="conversation_moved_on",
        )
    return head


def _event_payload(order: CheckedOrder, nonce: str) -> dict[str, object]:
    """Return what the run's first event has besides the usual. ``nonce``: the run's."""
    fork, payload = order.forked_from, dict[str, object]()
    if order.unattended is not None:
        payload["unattended"] = order.unattended
    if order.run_overrides is not None and not order.run_overrides.is_plain:
        payload["own"] = own_facts(order.run_overrides, nonce)
    if fork is not None:
        origin: dict[str, object] = {"run_id": fork.run_id, "step": fork.step}
        if order.continues:
            origin |= RETRIED
        payload["forked_from"] = origin | (SUMMARISED if order.summarise else {})
    if order.replay_of is not None:
        payload["replay_of"] = {"run_id": order.replay_of, "step": 0 if fork is None else fork.step}
    return payload
