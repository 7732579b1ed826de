"""``Idempotency-Key``: the same change again gets the first answer, and happens once. Decisions and runs keep their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from approvals_api.principal import Principal
from approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConflictError, InvalidInputError
from turngate.store.access import idempotent_answers
from turngate.store.database import Connection

MAX_KEY_CHARS: Final = 255

Answer = TypeVar("Answer", bound=BaseModel)


async def once(
    services: Services,
    principal: Principal,
    key: str | None,
    *,
    asked: Sequence[str],
    answer: type[Answer],
    act: Callable[[Connection], Awaitable[Answer]],
) -> Answer:
    """Make a change in one write transaction and return its answer; a repeat under the same key returns the first one.

    Answer and change are one transaction: there is no moment at which a crash could leave one without the other. A key is
    the principal's own; what fails is not kept, so the same key may be used again for it.

    Args:
        services: the process's services.
        principal: who asks.
        key: 1 to 255 printable characters; None: every call is a change of its own.
        asked: everything that makes this change what it is: what kind, of what, with which content.
        answer: the model that answers are.
        act: makes the change on the connection.

    Raises:
        ConflictError: ``idempotency_key_reused``: the key was used for something else.
        InvalidInputError: the key is not 1 to 255 printable characters.
        Exception: whatever ``act`` raises; nothing was changed.
    """
    if key is None:
        async with services.database.write() as conn:
            return await act(conn)
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isprintable()):
        message = f"Idempotency-Key: 1 to {MAX_KEY_CHARS} printable characters"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    fingerprint = framed_sha256(*asked)
    try:
        async with services.database.write() as conn:
            first = await _first(conn, principal, key, fingerprint, answer)
            if first is not None:
                return first
            made = await act(conn)
            await idempotent_answers.keep(
                conn, principal=principal.name, key=key, fingerprint=fingerprint, answer=made.model_dump_json()
            )
            return made
    except IntegrityError:
        # The same key at the same moment: one of the two was kept, and this one's change was rolled back.
        async with services.database.read() as conn:
            first = await _first(conn, principal, key, fingerprint, answer)
        if first is None:
            raise
        return first


async def _first(
    conn: Connection, principal: Principal, key: str, fingerprint: str, answer: type[Answer]
) -> Answer | None:
    kept = await idempotent_answers.get(conn, principal.name, key)
    if kept is None:
        return None
    if kept.fingerprint != fingerprint:
        raise ConflictError(
            "this Idempotency-Key was used for something else: send this under a key of its own",
            code="idempotency_key_reused",
        )
    return answer.model_validate_json(kept.answer)
