"""Who looked at a request: each person's first look is an event; presence lasts a minute."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import update
from support.stores.stored_requests import request_row

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import presence, requests
from turngate.store.runs import runs
from turngate.store.tables import views as views_table


async def test_only_a_persons_first_look_is_an_event(database: Database, run: runs.Run) -> None:
    """However often and from however many windows a person looks, there is one event in the run's chain."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq")])

    async def look(viewer: str) -> bool:
        async with database.write() as conn:
            return await presence.note_first(conn, run_id=run.id, request_id="rq", viewer=viewer)

    assert sum(await asyncio.gather(*(look("ann") for _ in range(8)))) == 1
    assert await look("bob")
    async with database.read() as conn:
        assert await presence.was_seen(conn, "rq", "ann")
        assert not await presence.was_seen(conn, "rq", "eve")
        viewed = [(event.type, event.payload) for event in await events.after(conn, 0)]
        assert await events.chain_break(conn, run.id) is None
    assert viewed == [("request.viewed", {"request_id": "rq", "by": name}) for name in ("ann", "bob")]


async def test_a_person_is_present_for_a_minute(database: Database, run: runs.Run) -> None:
    """Others see them by name, they don't see themselves; a minute later they are gone until their next sign."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq"), request_row(run, "other")])
        for viewer, request_id in (("bob", "rq"), ("ann", "rq"), ("eve", "other")):
            await presence.note_presence(conn, run_id=run.id, request_id=request_id, viewer=viewer)
        assert [each.name for each in await presence.viewers(conn, "rq", except_for="me")] == ["ann", "bob"]
        assert [each.name for each in await presence.viewers(conn, "rq", except_for="ann")] == ["bob"]
        await conn.execute(update(views_table).values(last_at=as_text(now() - timedelta(seconds=61))))
        assert await presence.viewers(conn, "rq", except_for="ann") == []
        await presence.note_presence(conn, run_id=run.id, request_id="rq", viewer="bob")
        assert [each.name for each in await presence.viewers(conn, "rq", except_for="ann")] == ["bob"]
    async with database.read() as conn:
        assert len(await events.after(conn, 0)) == 3  # presence is no event
