"""Overrides of runs, stored once by digest."""

from __future__ import annotations

from sqlalchemy import bindparam, select, text

from turngate.domain.agents.overrides import RunOverrides
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import worlds

# Both databases know this form, and SQLAlchemy has it only per dialect.
_KEEP = text(
    "INSERT INTO worlds (digest, content, created_at) VALUES (:digest, :content, :at) ON CONFLICT DO NOTHING"
).bindparams(bindparam("digest", type_=worlds.c.digest.type), bindparam("content", type_=worlds.c.content.type))


async def keep(conn: Connection, overrides: RunOverrides | None) -> str | None:
    """Store overrides unless they are stored already, and return their digest; None for a run without overrides."""
    if overrides is None or overrides.is_plain:
        return None
    row = {"digest": overrides.digest, "content": overrides.model_dump_json(), "at": as_text(now())}
    await conn.execute(_KEEP, row)
    return overrides.digest


async def get(conn: Connection, digest: str | None) -> RunOverrides | None:
    """Return the overrides of this digest, or None."""
    if digest is None:
        return None
    # A list: of an encrypted store, it also finds what was stored before.
    content = (await conn.execute(select(worlds.c.content).where(worlds.c.digest.in_([digest])))).scalars().first()
    return None if content is None else RunOverrides.model_validate_json(content)
