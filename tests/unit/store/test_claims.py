"""Claims: one person at a time holds a request, for a while; an expired claim holds nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from support.stores.stored_requests import request_row

from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.requests import claims, requests
from turngate.store.requests.claims import Claimed, Lease
from turngate.store.runs import runs
from turngate.store.tables import requests as requests_table


@pytest.fixture
async def opened(database: Database, run: runs.Run) -> runs.Run:
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq")])
    return run


async def take(database: Database, by: str, *, seconds: int = 600, take_over: bool = False) -> Claimed:
    async with database.write() as conn:
        return await claims.claim(conn, "rq", by=by, seconds=seconds, take_over=take_over)


async def run_out(database: Database) -> None:
    async with database.write() as conn:
        await conn.execute(update(requests_table).values(claimed_until=as_text(now() - timedelta(seconds=1))))


async def event_list(database: Database) -> list[tuple[str, dict[str, Any]]]:
    async with database.read() as conn:
        return [(event.type, event.payload) for event in await events.after(conn, 0)]


async def test_of_many_who_claim_at_once_one_does(database: Database, opened: runs.Run) -> None:
    """Of twenty people at the same moment one gets the claim, the others get its holder, and there is one event."""
    answers = await asyncio.gather(*(take(database, f"p{number}") for number in range(20)))
    won = [answer for answer in answers if answer.how is not None]
    assert [answer.how for answer in won] == ["claimed"]
    assert {answer.lease for answer in answers} == {won[0].lease}
    assert won[0].lease is not None
    assert await event_list(database) == [
        ("request.claimed", {"request_id": "rq", "by": won[0].lease.claimed_by, "until": won[0].lease.claimed_until})
    ]
    async with database.read() as conn:
        assert await events.chain_break(conn, opened.id) is None


async def test_ones_own_claim_is_renewed_and_never_shortened(database: Database, opened: runs.Run) -> None:
    """The holder renews it for as long or longer, without new events."""
    first = (await take(database, "ann", seconds=600)).lease
    shorter = await take(database, "ann", seconds=30)
    longer = await take(database, "ann", seconds=3_600)
    assert first is not None
    assert (shorter.how, shorter.lease) == ("renewed", first)
    assert longer.lease is not None
    assert from_text(longer.lease.claimed_until) > from_text(first.claimed_until)
    assert [kind for kind, _payload in await event_list(database)] == ["request.claimed"]


async def test_a_claim_is_taken_over_only_on_request(database: Database, opened: runs.Run) -> None:
    """Otherwise another person's claim stays; a takeover's event says whose it was."""
    await take(database, "ann")
    assert (await take(database, "bob")).how is None
    taken = await take(database, "bob", take_over=True)
    assert taken.how == "taken_over"
    kind, payload = (await event_list(database))[-1]
    assert (kind, payload["by"], payload["from"]) == ("request.claim_taken_over", "bob", "ann")


async def test_an_expired_claim_is_free(database: Database, opened: runs.Run) -> None:
    """Anyone may claim the request then, and that is no takeover."""
    await take(database, "ann")
    await run_out(database)
    async with database.read() as conn:
        request = await requests.get(conn, "rq")
    assert request is not None
    assert (request.claimed_by, claims.live_lease(request)) == ("ann", None)
    assert (await take(database, "bob")).how == "claimed"


async def test_a_claim_is_released_by_its_holder(database: Database, opened: runs.Run) -> None:
    """Other people get its holder; releasing nothing is fine; the caller says who may end anyone's claim."""
    lease = (await take(database, "ann")).lease

    async def give_back(by: str, *, anyones: bool = False) -> Lease | None:
        async with database.write() as conn:
            return await claims.release(conn, "rq", by=by, anyones=anyones)

    assert await give_back("bob") == lease
    assert await give_back("ann") is None
    assert await give_back("ann") is None
    await take(database, "ann")
    assert await give_back("admin", anyones=True) is None
    assert [(kind, payload["by"]) for kind, payload in await event_list(database)] == [
        ("request.claimed", "ann"),
        ("request.released", "ann"),
        ("request.claimed", "ann"),
        ("request.released", "admin"),
    ]


async def test_a_claim_delays_neither_expiry_nor_the_end_of_the_run(database: Database, opened: runs.Run) -> None:
    """A claimed request ends as any other, and an ended one can't be claimed."""
    await take(database, "ann")
    async with database.write() as conn:
        assert await requests.settle(conn, "rq", requests.Ending(status="expired", at=now()))
        request = await requests.get(conn, "rq")
    assert request is not None
    assert claims.live_lease(request) is None
    assert await take(database, "ann") == Claimed(lease=None, how=None)


async def test_an_unknown_request_cannot_be_claimed(database: Database) -> None:
    """It is a LookupError, which the caller turns into its own error."""
    for attempt in (
        lambda conn: claims.claim(conn, "rq", by="ann", seconds=60, take_over=False),
        lambda conn: claims.release(conn, "rq", by="ann", anyones=True),
    ):
        with pytest.raises(LookupError):
            async with database.write() as conn:
                await attempt(conn)
