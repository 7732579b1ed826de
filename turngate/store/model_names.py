"""What a model may be called, as the workers published it, so that the API knows without their settings and keys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import select, text

from turngate.domain.agents.model_profiles import Profiles
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.tables import model_names

NameKind = Literal["profile", "provider"]

# Both databases know this form, and SQLAlchemy has it only per dialect.
_PUT = text(
    "INSERT INTO model_names (name, kind, model, published_at) VALUES (:name, :kind, :model, :published_at) "
    "ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, model = excluded.model, published_at = excluded.published_at"
)


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """A profile, with the ``model`` it stands for, or a provider, whose ``name`` stands before a colon."""

    name: str
    kind: NameKind
    model: str
    published_at: str


async def publish(conn: Connection, profiles: Profiles, providers: Iterable[str]) -> None:
    """Add these names, or replace what they stood for. Several workers may do so at once: each adds its own."""
    rows = [(name, "profile", profiles[name].model) for name in profiles]
    rows += [(name, "provider", "") for name in providers if name not in profiles]
    for name, kind, model in sorted(rows):  # in one order, or two workers could wait for each other
        put = {"name": name, "kind": kind, "model": model, "published_at": as_text(now())}
        await conn.execute(_PUT, put)


async def every(conn: Connection) -> list[ModelName]:
    """Return all of them, profiles first, by name."""
    query = select(model_names).order_by(model_names.c.kind, model_names.c.name)
    return [ModelName(**row) for row in (await conn.execute(query)).mappings()]
