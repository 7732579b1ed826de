"""Overrides of runs, stored once by digest."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from sqlalchemy import bindparam, select, text

from turngate.domain.agents.overrides import RunOverrides
from turngate.domain.errors import UnreadableContentError
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
    """Return the overrides of this digest; None for a run that has none, or whose content was erased.

    Raises UnreadableContentError: the store doesn't have them, or not as they were stored. Then no one knows what the run may do.
    """
    if not digest:
        return None
    overrides = read((await of_digests(conn, [digest])).get(digest, ""))
    if overrides is None or overrides.digest != digest:
        raise UnreadableContentError(
            f"the store does not have what a run has of its own ({digest}), or not as it was stored: is this another database?"
        )
    return overrides


async def of_digests(conn: Connection, digests: Sequence[str]) -> dict[str, str]:
    """Return digest → stored content, of those that there are."""
    # A list: of an encrypted store, it also finds what was stored before.
    query = select(worlds.c.digest, worlds.c.content).where(worlds.c.digest.in_(digests))
    return {row.digest: row.content for row in await conn.execute(query)}


def read(content: str) -> RunOverrides | None:
    """Return stored overrides; None: the text isn't any."""
    try:
        return RunOverrides.model_validate_json(content)
    except ValidationError:
        return None
