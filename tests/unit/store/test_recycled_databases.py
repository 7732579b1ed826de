"""The tests' own PostgreSQL: a database that was used before is as good as a new one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text
from support.stores.recycled_postgres import Recycled

from turngate.store.access import access
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import messages
from turngate.store.tables import metadata


async def contents(database: Database) -> dict[str, list[Any]]:
    async with database.read() as conn:
        return {table.name: (await conn.execute(select(table))).all() for table in metadata.sorted_tables}


async def write(database: Database) -> None:
    async with database.write() as conn:
        await messages.create_conversation(conn, "a")
        await access.issue_link(conn, "ann")
        await events.append(conn, events.SYSTEM, [("user.added", {"name": "ann"})])


async def test_a_recycled_database_is_like_new(recycled: Recycled) -> None:
    """Rows, counter and event chains are as after the migrations, even where triggers refuse a deletion."""
    first = await recycled.take()
    new, created = await contents(first), recycled.created
    await write(first)
    assert await contents(first) != new
    again = await recycled.take()
    assert (recycled.created, again.url) == (created, first.url)
    assert await contents(again) == new
    await write(again)


CHANGES = [
    "DROP TRIGGER events_append_only ON events",
    "ALTER TABLE agents ADD COLUMN extra TEXT",
    "DROP INDEX ix_requests_pending",
    "ALTER TABLE events DISABLE TRIGGER events_append_only",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_database_with_a_changed_schema_is_not_recycled(recycled: Recycled, change: str) -> None:
    """The next test would meet changed tables, indexes or triggers."""
    changed = await recycled.take()
    async with changed.write() as conn:
        await conn.execute(text(change))
    assert (await recycled.take()).url != changed.url


async def test_a_database_in_use_is_not_recycled(recycled: Recycled) -> None:
    """A task that outlives its test keeps its database to itself."""
    busy = await recycled.take()
    async with busy.read() as conn:
        await conn.execute(text("SELECT 1"))
        other = await recycled.take()
        assert other.url != busy.url
