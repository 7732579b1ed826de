"""Rows that a test changes in the database, and that are as they were after it: its stack's log says what they are (I15)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Table, select, update
from support.event_guards import writable_events

from turngate.domain.runs.event_chain import chain_hash
from turngate.store.database import Connection, Database
from turngate.store.events.row_digests import row_digest
from turngate.store.runs import calls, runs
from turngate.store.tables import calls as calls_table
from turngate.store.tables import events, requests
from turngate.store.tables import runs as run_rows

OPENED = {"content": "request", "terms": "terms"}
"""Digests in the event that opens a request, and the kinds that they are of."""


@asynccontextmanager
async def changed(database: Database, table: Table, row: dict[str, Any], **values: Any) -> AsyncIterator[None]:
    """Change columns of one row inside the block. ``row``: columns that no other row has.

    A request is changed as if it had been opened and decided like that: inside the block its events say so, too.
    """
    this = [table.c[name] == value for name, value in row.items()]
    async with database.write() as conn:
        before = (await conn.execute(table.select().where(*this))).mappings().one()
        await conn.execute(update(table).where(*this).values(**values))
        logged = await _log_again(conn, {**before, **values}) if table is requests else []
    yield
    async with database.write() as conn:
        await conn.execute(update(table).where(*this).values(**{name: before[name] for name in values}))
        await _write_payloads(conn, {each: each.payload for each in logged})


async def _log_again(conn: Connection, request: Mapping[str, Any]) -> list[Row[Any]]:
    """Let the events that opened and decided a request say what its row is now; returns these events as they were."""
    mentions = events.c.payload.contains(f'"request_id":"{request["id"]}"')
    kinds = events.c.type.in_(("request.opened", "request.decided"))
    logged = list((await conn.execute(select(events).where(kinds, mentions).order_by(events.c.seq))).all())
    of_kind = {
        "request.opened": {kind: row_digest(of, request, request["nonce"] or "") for kind, of in OPENED.items()},
        "request.decided": {"at": request["decided_at"]},
    }
    changed_payloads = {each: json.loads(each.payload) | of_kind[each.type] for each in logged}
    await _write_payloads(
        conn, {each: json.dumps(payload, separators=(",", ":")) for each, payload in changed_payloads.items()}
    )
    return logged


async def _write_payloads(conn: Connection, payloads: Mapping[Row[Any], str]) -> None:
    """Change events of one run, and compute the hashes of its chain again."""
    if not payloads:
        return
    run_id = next(iter(payloads)).run_id
    await runs.hold(conn, run_id)
    by_seq, previous = {each.seq: payload for each, payload in payloads.items()}, ""
    async with writable_events(conn):
        for each in (
            await conn.execute(select(events).where(events.c.run_id == run_id).order_by(events.c.run_seq))
        ).all():
            payload = by_seq.get(each.seq, each.payload)
            own = chain_hash(previous, run_id, each.run_seq, each.type, payload, each.created_at)
            row = {"payload": payload, "previous_hash": previous, "hash": own}
            await conn.execute(update(events).where(events.c.seq == each.seq).values(**row))
            previous = own
    await conn.execute(update(run_rows).where(run_rows.c.id == run_id).values(event_hash=previous))


@asynccontextmanager
async def planted_calls(database: Database, planted: Sequence[calls.Call]) -> AsyncIterator[None]:
    """Add calls that no model made, inside the block."""
    async with database.write() as conn:
        await calls.insert_planned(conn, planted)
    yield
    async with database.write() as conn:
        ids = [each.tool_call_id for each in planted]
        await conn.execute(calls_table.delete().where(calls_table.c.tool_call_id.in_(ids)))
