"""First answers to changes that carried an Idempotency-Key, so that a repeat gets them again."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import insert, select

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import idempotent_answers


@dataclass(frozen=True, kw_only=True)
class FirstAnswer:
    """What was answered.

    ``principal``: the credential that sent the key; ``fingerprint``: of what was asked for; ``answer``: JSON text.
    """

    principal: str
    key: str
    fingerprint: str
    answer: str
    created_at: str


async def get(conn: Connection, credential: str, key: str) -> FirstAnswer | None:
    """Return the first answer under this key of a credential, or None."""
    query = select(idempotent_answers).where(
        idempotent_answers.c.principal == credential, idempotent_answers.c.key == key
    )
    row = (await conn.execute(query)).mappings().one_or_none()
    return FirstAnswer(**row) if row else None


async def keep(conn: Connection, *, credential: str, key: str, fingerprint: str, answer: str) -> None:
    """Keep an answer, in the transaction of the change it is about. Raises IntegrityError when the key was used."""
    row = FirstAnswer(principal=credential, key=key, fingerprint=fingerprint, answer=answer, created_at=as_text(now()))
    await conn.execute(insert(idempotent_answers).values(**vars(row)))
