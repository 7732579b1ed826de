"""What an administrator of the database could do to the event log: remove its guards, then change rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from turngate.store.database import Connection

SQLITE_TRIGGERS = ("events_no_update", "events_no_delete", "events_no_replace")


async def take_guards_away(conn: Connection) -> None:
    """Drop the triggers that refuse changes and removals of events in this database."""
    dialect = await conn.run_sync(lambda sync: sync.dialect.name)
    if dialect == "postgresql":
        await conn.execute(text("DROP TRIGGER events_append_only ON events"))
        return
    for name in SQLITE_TRIGGERS:
        await conn.execute(text(f"DROP TRIGGER {name}"))


@asynccontextmanager
async def writable_events(conn: Connection) -> AsyncIterator[None]:
    """Let events be changed inside the block, which is part of a transaction."""
    if await conn.run_sync(lambda sync: sync.dialect.name) == "postgresql":
        await conn.execute(text("ALTER TABLE events DISABLE TRIGGER events_append_only"))
        yield
        await conn.execute(text("ALTER TABLE events ENABLE TRIGGER events_append_only"))
        return
    query = text("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = 'events_no_update'")
    trigger = (await conn.execute(query)).scalar_one()
    await conn.execute(text("DROP TRIGGER events_no_update"))
    yield
    await conn.execute(text(trigger.replace(":", r"\:")))
