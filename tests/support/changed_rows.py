"""Rows that a test changes in the database, and that are as they were after it: its stack's log says what they are (I15)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Table, select, update
from support.event_guards import writable_events

from turngate.store.database import Connection, Database
from turngate.store.events.row_digests import row_digest
from turngate.store.runs import calls
from turngate.store.tables import calls as calls_table
from turngate.store.tables import events, requests


@asynccontextmanager
async def changed(database: Database, table: Table, row: dict[str, Any], **values: Any) -> AsyncIterator[None]:
    """Change columns of one row inside the block. ``row``: columns that no other row has.

    A request is changed as if it had been opened like that: inside the block its event says so, too.
    """
    this = [table.c[name] == value for name, value in row.items()]
    async with database.write() as conn:
        before = (await conn.execute(table.select().where(*this))).mappings().one()
        await conn.execute(update(table).where(*this).values(**values))
        opened = await _open_again(conn, {**before, **values}) if table is requests else None
    yield
    async with database.write() as conn:
        await conn.execute(update(table).where(*this).values(**{name: before[name] for name in values}))
        if opened is not None:
            await _write_payload(conn, opened, opened.payload)


async def _open_again(conn: Connection, request: Mapping[str, Any]) -> Row[Any]:
    """Let the event that opened a request have the digests of its row as it is now; returns the event as it was."""
    mentions = events.c.payload.contains(f'"request_id":"{request["id"]}"')
    opening = select(events).where(events.c.type == "request.opened", mentions)
    event = (await conn.execute(opening)).one()
    digests = {"content": row_digest("request", request, request["nonce"] or "")}
    digests["terms"] = row_digest("terms", request, request["nonce"] or "")
    payload = json.dumps(json.loads(event.payload) | digests, separators=(",", ":"))
    await _write_payload(conn, event, payload)
    return event


async def _write_payload(conn: Connection, event: Row[Any], payload: str) -> None:
    async with writable_events(conn):
        await conn.execute(update(events).where(events.c.seq == event.seq).values(payload=payload))


@asynccontextmanager
async def planted_calls(database: Database, planted: Sequence[calls.Call]) -> AsyncIterator[None]:
    """Add calls that no model made, inside the block."""
    async with database.write() as conn:
        await calls.insert_planned(conn, planted)
    yield
    async with database.write() as conn:
        ids = [each.tool_call_id for each in planted]
        await conn.execute(calls_table.delete().where(calls_table.c.tool_call_id.in_(ids)))
