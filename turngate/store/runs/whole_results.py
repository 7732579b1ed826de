"""Whole results: what was too large to show to a model, once by digest."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select, text

from turngate.domain.conversation.clipping import result_digest
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import whole_results

# Both databases know this form, and SQLAlchemy has it only per dialect. Two calls may find the same whole at once.
_KEEP = text(
    "INSERT INTO whole_results (digest, text, created_at) VALUES (:digest, :whole, :at) ON CONFLICT DO NOTHING"
)
_KEEP = _KEEP.bindparams(
    bindparam("digest", type_=whole_results.c.digest.type), bindparam("whole", type_=whole_results.c.text.type)
)


async def keep(conn: Connection, whole: str) -> str:
    """Store a text unless it is there already, and return its digest."""
    digest = result_digest(whole)
    await conn.execute(_KEEP, {"digest": digest, "whole": whole, "at": as_text(now())})
    return digest


async def of_digests(conn: Connection, digests: Sequence[str]) -> dict[str, str]:
    """Return digest → stored text, of those that there are."""
    query = select(whole_results.c.digest, whole_results.c.text).where(whole_results.c.digest.in_(digests))
    return {row.digest: row.text for row in await conn.execute(query)}


async def text_of(conn: Connection, digest: str) -> str | None:
    """Return a stored text, or None."""
    return (await of_digests(conn, [digest])).get(digest)
