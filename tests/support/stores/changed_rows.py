"""Rows that a test changes in the database, and that are as they were after it: its stack's log says what they are (I15)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, Table, func, select, update
from support.stores.event_guards import writable_events

from turngate.domain.runs.event_chain import chain_hash
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection, Database
from turngate.store.events.row_digests import DIGEST_CHARS, row_digest
from turngate.store.runs import calls, runs
from turngate.store.tables import calls as calls_table
from turngate.store.tables import events, requests
from turngate.store.tables import runs as run_rows


@asynccontextmanager
async def changed(database: Database, table: Table, row: dict[str, Any], **values: Any) -> AsyncIterator[None]:
    """Change columns of one row inside the block. ``row``: columns that no other row has.

    A request is changed as if it had been opened and decided like that: inside the block its events say so, too.
    """
    this = [table.c[name] == value for name, value in row.items()]
    async with database.write() as conn:
        before = (await conn.execute(table.select().where(*this))).mappings().one()
        await _change(conn, table, this, values)
    yield
    async with database.write() as conn:
        await _change(conn, table, this, {name: before[name] for name in values})


async def change_request(database: Database, request_id: str, **values: Any) -> None:
    """Change a request for good, as if it had been opened and decided like that."""
    async with database.write() as conn:
        await _change(conn, requests, [requests.c.id == request_id], values)


async def log_requests_again(conn: Connection) -> None:
    """Let the events of all requests say what their rows are now."""
    for each in (await conn.execute(select(requests))).mappings().all():
        await _log_again(conn, each)


async def _change(conn: Connection, table: Table, this: Sequence[ColumnElement[bool]], values: dict[str, Any]) -> None:
    await conn.execute(update(table).where(*this).values(**values))
    if table is requests:
        await _log_again(conn, (await conn.execute(select(requests).where(*this))).mappings().one())


async def _log_again(conn: Connection, request: Mapping[str, Any]) -> None:
    """Let the events that opened and decided a request say what its row is now."""
    mentions = events.c.payload.contains(f'"request_id":"{request["id"]}"')
    kinds = events.c.type.in_(("request.opened", "request.decided", "request.approved_once"))
    logged = (await conn.execute(select(events).where(kinds, mentions).order_by(events.c.seq))).all()
    content, terms = (row_digest(kind, request, request["nonce"] or "") for kind in ("request", "terms"))
    decided = {"shown": content[:DIGEST_CHARS], "terms": terms}
    of_kind = {
        "request.opened": {"content": content, "terms": terms},
        "request.approved_once": decided,
        "request.decided": {**decided, "at": request["decided_at"]},
    }
    payloads = {each: json.loads(each.payload) | of_kind[each.type] for each in logged}
    await _write_payloads(
        conn, {each: json.dumps(payload, separators=(",", ":")) for each, payload in payloads.items()}
    )


async def _write_payloads(conn: Connection, payloads: Mapping[Row[Any], str]) -> None:
    """Change events of one run, and compute the hashes of its chain again."""
    if not payloads:
        return
    async with writable_events(conn):
        for each, payload in payloads.items():
            await conn.execute(update(events).where(events.c.seq == each.seq).values(payload=payload))
        await _chain_again(conn, next(iter(payloads)).run_id)


async def _chain_again(conn: Connection, run_id: str) -> None:
    """Compute the hashes of a run's events again. Its events are writable."""
    await runs.hold(conn, run_id)
    previous = ""
    for each in (await conn.execute(select(events).where(events.c.run_id == run_id).order_by(events.c.run_seq))).all():
        own = chain_hash(previous, run_id, each.run_seq, each.type, each.payload, each.created_at)
        await conn.execute(update(events).where(events.c.seq == each.seq).values(previous_hash=previous, hash=own))
        previous = own
    await conn.execute(update(run_rows).where(run_rows.c.id == run_id).values(event_hash=previous))


@asynccontextmanager
async def aged(database: Database, run_id: str, by: timedelta) -> AsyncIterator[None]:
    """Let a run, and what its log says so far, be older inside the block."""
    async with database.write() as conn:
        newest = await conn.execute(select(func.max(events.c.run_seq)).where(events.c.run_id == run_id))
        last = newest.scalar_one()
        await _move(conn, run_id, last, -by)
    yield
    async with database.write() as conn:
        await _move(conn, run_id, last, by)


async def _move(conn: Connection, run_id: str, last: int, by: timedelta) -> None:
    def moved(instant: str) -> str:
        return as_text(from_text(instant) + by)

    [row] = await conn.execute(select(run_rows.c.created_at).where(run_rows.c.id == run_id))
    await conn.execute(update(run_rows).where(run_rows.c.id == run_id).values(created_at=moved(row.created_at)))
    async with writable_events(conn):
        of_run = events.c.run_id == run_id, events.c.run_seq <= last
        for each in (await conn.execute(select(events).where(*of_run))).all():
            at = moved(each.created_at)
            await conn.execute(update(events).where(events.c.seq == each.seq).values(created_at=at))
        await _chain_again(conn, run_id)


@asynccontextmanager
async def planted_calls(database: Database, planted: Sequence[calls.Call]) -> AsyncIterator[None]:
    """Add calls that no model made, inside the block."""
    async with database.write() as conn:
        await calls.insert_planned(conn, planted)
    yield
    async with database.write() as conn:
        ids = [each.tool_call_id for each in planted]
        await conn.execute(calls_table.delete().where(calls_table.c.tool_call_id.in_(ids)))
