"""Rows that a test changes in the database, and that are as they were after it: its stack's log says what they are (I15)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Table, update

from turngate.store.database import Database
from turngate.store.runs import calls
from turngate.store.tables import calls as calls_table


@asynccontextmanager
async def changed(database: Database, table: Table, row: dict[str, Any], **values: Any) -> AsyncIterator[None]:
    """Change columns of one row inside the block. ``row``: columns that no other row has."""
    this = [table.c[name] == value for name, value in row.items()]
    async with database.write() as conn:
        before = (await conn.execute(table.select().where(*this))).mappings().one()
        await conn.execute(update(table).where(*this).values(**values))
    yield
    async with database.write() as conn:
        await conn.execute(update(table).where(*this).values(**{name: before[name] for name in values}))


@asynccontextmanager
async def planted_calls(database: Database, planted: Sequence[calls.Call]) -> AsyncIterator[None]:
    """Add calls that no model made, inside the block."""
    async with database.write() as conn:
        await calls.insert_planned(conn, planted)
    yield
    async with database.write() as conn:
        ids = [each.tool_call_id for each in planted]
        await conn.execute(calls_table.delete().where(calls_table.c.tool_call_id.in_(ids)))
