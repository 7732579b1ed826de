"""Stored users for tests, and what the audit log records about people."""

from __future__ import annotations

from typing import Any

from turngate.store.access import users
from turngate.store.database import Database
from turngate.store.events import events


async def audit_events(database: Database, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    """The system's events of these types, in order; all of them without types."""
    async with database.read() as conn:
        rows = await events.after(conn, 0, run_id=events.SYSTEM, limit=100_000)
    return [(each.type, each.payload) for each in rows if not kinds or each.type in kinds]


async def added(database: Database, name: str, role: str = "operator", password_hash: str | None = None) -> users.User:
    async with database.write() as conn:
        return await users.add(conn, users.User(name=name, role=role, password_hash=password_hash), by="boss")
