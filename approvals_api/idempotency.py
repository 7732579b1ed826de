"""``Idempotency-Key``: a repeated change happens once and gets the first answer. Decisions and runs keep their own keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.store.access import idempotent_answers
from turngate.store.database import Connection
from turngate.wire.people import AS_STORED

MAX_KEY_CHARS: Final = 255

Result = TypeVar("Result", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class KeyedChange(Generic[Result]):
    """A change that a repeat under the same key makes once.

    ``key``: 1 to 255 printable characters; None: every call is a change of its own. ``content``: what identifies this change:
    its kind, its target and its content. ``answer``: the model that answers are. ``act``: makes the change on the connection.
    """

    key: str | None
    content: Sequence[str]
    answer: type[Result]
    act: Callable[[Connection], Awaitable[Result]]


async def once(services: Services, principal: Principal, change: KeyedChange[Result]) -> Result:
    """Make a change in one write transaction and return its answer; a repeat under the same key returns the first answer.

    Answer and change are one transaction, so no crash leaves one without the other. A key belongs to the credential
    that sent it. A change that fails keeps no answer: the same key may be used for it again.

    Args:
        services: the process's services.
        principal: who makes the change.
        change: its key, its content, and how to make it.

    Raises:
        ConflictError: ``idempotency_key_reused``: the key was used for something else.
        InvalidInputError: the key is not 1 to 255 printable characters.
        Exception: whatever ``change.act`` raises; nothing was changed.
    """
    key = change.key
    if key is None:
        async with services.database.write() as conn:
            return await change.act(conn)
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        message = f"Idempotency-Key: 1 to {MAX_KEY_CHARS} printable characters"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    fingerprint = framed_sha256(*change.content)
    try:
        async with services.database.write() as conn:
            first = await _first(conn, principal, key, fingerprint, change.answer)
            if first is not None:
                return first
            fresh = await change.act(conn)
            stored_text = fresh.model_dump_json(context=AS_STORED)
            await idempotent_answers.keep(
                conn,
                credential=principal.credential,
                key=key,
                fingerprint=fingerprint,
                answer=stored_text,
            )
            return fresh
    except IntegrityError:
        # The same key at the same moment: one of the two was kept, and this one's change was rolled back.
        async with services.database.read() as conn:
            first = await _first(conn, principal, key, fingerprint, change.answer)
        if first is None:
            raise
        return first


async def _first(
    conn: Connection, principal: Principal, key: str, fingerprint: str, answer: type[Result]
) -> Result | None:
    stored = await idempotent_answers.get(conn, principal.credential, key)
    if stored is None:
        return None
    if stored.fingerprint != fingerprint:
        raise ConflictError(
            "this Idempotency-Key was used for something else: send this under a new key",
            code="idempotency_key_reused",
        )
    return answer.model_validate_json(stored.answer)
