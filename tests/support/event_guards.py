"""What an administrator of the database could do to the event log: remove its guards, then change rows."""

from __future__ import annotations

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
