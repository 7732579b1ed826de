"""The tests' own PostgreSQL: a database that was used before is as good as a new one."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select, text
from support.recycled_postgres import Recycled

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


async def test_a_database_is_given_again_as_if_it_were_new(recycled: Recycled) -> None:
    """Rows, the counter and the chains of events are as after the migrations, also where triggers refuse a deletion."""
    first = await recycled.take()
    new, made = await contents(first), recycled.made
    await write(first)
    assert await contents(first) != new
    again = await recycled.take()
    assert (recycled.made, again.url) == (made, first.url)
    assert await contents(again) == new
    await write(again)


CHANGES = [
    "DROP TRIGGER events_append_only ON events",
    "ALTER TABLE agents ADD COLUMN extra TEXT",
    "DROP INDEX ix_requests_pending",
    "ALTER TABLE events DISABLE TRIGGER events_append_only",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_a_database_whose_schema_was_changed_is_not_given_again(recycled: Recycled, change: str) -> None:
    """What a test did to tables, indexes and triggers would be met by the next."""
    changed = await recycled.take()
    async with changed.write() as conn:
        await conn.execute(text(change))
    assert (await recycled.take()).url != changed.url


async def test_a_database_that_is_still_worked_with_is_not_given_again(recycled: Recycled) -> None:
    """A task that a test left behind keeps its database to itself."""
    busy = await recycled.take()
    async with busy.read() as conn:
        await conn.execute(text("SELECT 1"))
        other = await recycled.take()
        assert other.url != busy.url
