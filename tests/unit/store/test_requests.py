"""The inbox: paged without skipping, ended once, and decisions stored only if they win."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError
from support.stores.stored_requests import AT, request_row

from turngate.domain.runs.inbox import InboxFilter
from turngate.store.clock import as_text
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.evidence import decision_digest
from turngate.store.requests import claims, requests
from turngate.store.runs import runs
from turngate.wire.orders import MAX_LOOKED_MS, DecisionOrder


def decided(request_id: str, decision_id: str = "dec_1", by: str = "ann", **changes: Any) -> requests.Decision:
    members = {"verb": "edit", "digest": "d", "args": '{ "cents" : 2.0 }', "message": "é", **changes}
    order = DecisionOrder.model_validate(members)
    return requests.new_decision(order, decision_id=decision_id, request_id=request_id, by=by)


async def test_pages_are_oldest_first_and_skip_nothing_with_equal_times(database: Database, run: runs.Run) -> None:
    """Requests opened in the same microsecond are sorted by id: paging by any size shows each once, in order."""
    opened = [
        *(request_row(run, f"rq_{letter}") for letter in "dbcea"),
        request_row(run, "rq_0", created_at=as_text(AT + timedelta(microseconds=1))),
        request_row(run, "rq_9", created_at=as_text(AT - timedelta(microseconds=1))),
    ]
    async with database.write() as conn:
        await requests.insert_all(conn, opened)
        await requests.insert_all(conn, [])
    expected = ["rq_9", "rq_a", "rq_b", "rq_c", "rq_d", "rq_e", "rq_0"]
    async with database.read() as conn:
        for limit in (1, 2, 3, 7, 50):
            seen: list[str] = []
            after = None
            while page := await requests.page(conn, limit=limit, after=after):
                seen.extend(request.id for request in page)
                after = requests.key_of(requests.PENDING, page[-1])
            assert seen == expected
        assert [request.id for request in await requests.of_run(conn, run.id)] == expected


async def test_a_page_stays_in_place_while_requests_are_decided(database: Database, run: runs.Run) -> None:
    """A cursor names the last request seen: deciding that one between two pages neither repeats nor skips any."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, f"rq_{number}") for number in range(4)])
        first = await requests.page(conn, limit=2)
        for request in first:
            await requests.settle(conn, request.id, requests.Ending(status="approved", at=AT))
        after = (first[-1].created_at, first[-1].id)
        second = await requests.page(conn, limit=2, after=after)
    assert [request.id for request in (*first, *second)] == ["rq_0", "rq_1", "rq_2", "rq_3"]


async def test_i6_a_request_comes_back_as_it_was_opened(database: Database, run: runs.Run) -> None:
    """I6: the stored text is the text that was shown, and nothing is filled in."""
    request = request_row(run, "rq_1", preview_kind="diff", preview="-a\n+é\n", not_by="ann", expires_at=as_text(AT))
    async with database.write() as conn:
        await requests.insert_all(conn, [request])
    async with database.read() as conn:
        assert await requests.get(conn, "rq_1") == request
        assert await requests.get(conn, "rq_2") is None


async def test_i4_a_request_ends_once(database: Database, run: runs.Run) -> None:
    """I4: of ten endings at once one is recorded, and only its writer learns that it won."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq_1")])

    async def settle(number: int) -> bool:
        async with database.write() as conn:
            return await requests.settle(
                conn,
                "rq_1",
                requests.Ending(status="approved", at=AT, decision_id=f"dec_{number}", verb="approve", by=f"p{number}"),
            )

    won = await asyncio.gather(*(settle(number) for number in range(10)))
    assert won.count(True) == 1
    async with database.read() as conn:
        request = await requests.get(conn, "rq_1")
    assert request is not None
    winner = won.index(True)
    assert (request.decision_id, request.decided_by, request.decided_at) == (
        f"dec_{winner}",
        f"p{winner}",
        as_text(AT),
    )


async def claim(conn: Connection, request: requests.Request) -> None:
    await claims.claim(conn, request.id, by="bob", seconds=60, take_over=False)


async def climb(conn: Connection, request: requests.Request) -> None:
    await requests.climb(conn, request, rungs=1, terms=request.terms)


async def new_terms(conn: Connection, request: requests.Request) -> None:
    await requests.climb(conn, request, rungs=request.rungs_climbed, terms='{"people":["bob"]}')


async def park(conn: Connection, request: requests.Request) -> None:
    await requests.park(conn, request, at=AT)


async def approve_once(conn: Connection, request: requests.Request) -> None:
    approval = requests.Approval(
        request_id=request.id, decided_by="bob", decision_id="dec_b", message="", created_at=as_text(AT)
    )
    await requests.add_approval(conn, approval)


async def reject(conn: Connection, request: requests.Request) -> None:
    await requests.settle(conn, request.id, requests.Ending(status="rejected", at=AT, decision_id="dec_b"))


@pytest.mark.parametrize("change", [None, claim, climb, new_terms, park, approve_once, reject])
async def test_i4_what_changes_a_pending_request_stops_a_decision_that_did_not_see_it(
    database: Database, run: runs.Run, change: Callable[[Connection, requests.Request], Awaitable[None]] | None
) -> None:
    """I4: a decision about the request as it was is neither stored nor does it end it; if nothing changed, it does both."""
    seen = request_row(run, "rq_1", urgent_at="2026-01-01")
    async with database.write() as conn:
        await requests.insert_all(conn, [seen])
        if change is not None:
            await change(conn, seen)
        before = await requests.get(conn, "rq_1")
    ending = requests.Ending(status="approved", at=AT, decision_id="dec_1", verb="approve", by="ann")
    writes = requests.decision_writes_as_seen(seen, ending, decided("rq_1", verb="approve", args=None))
    async with database.write() as conn:
        counts = await events.append(conn, run.id, [("request.decided", {})], writes=writes, last=True)
    async with database.read() as conn:
        after = await requests.get(conn, "rq_1")
        stored = await requests.decision(conn, "dec_1")
        happened = [each.type for each in await events.after(conn, 0, run_id=run.id)]
    assert after is not None
    if change is None:
        assert (counts, after.status, after.decided_by) == ([1, 1], "approved", "ann")
        assert stored is not None
        assert happened == ["request.decided"]
    else:
        assert (counts, stored, after) == ([0, 0], None, before)
        assert "request.decided" not in happened


async def test_a_run_that_ends_cancels_only_its_pending_requests(database: Database, new_run) -> None:
    """Decided requests and those of other runs stay as they are."""
    one, two = await new_run(), await new_run()
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(one, "rq_1"), request_row(one, "rq_2"), request_row(two, "rq_3")])
        await requests.settle(conn, "rq_1", requests.Ending(status="approved", at=AT))
        assert await requests.cancel_pending(conn, one.id, at=AT) == ["rq_2"]
        assert await requests.cancel_pending(conn, one.id, at=AT) == []
        statuses = [each.status for each in await requests.page(conn, InboxFilter(status="all"), limit=9)]
    assert statuses == ["pending", "cancelled", "approved"]


async def test_a_retried_plan_cannot_open_a_request_twice(database: Database, run: runs.Run) -> None:
    """A request's id comes from its call, so a second row is refused; another question about the call is accepted."""
    same_call = {"tool_call_id": "c1"}
    async with database.write() as conn:
        opened = [request_row(run, "rq_1", **same_call), request_row(run, "rq_2", kind="outcome", **same_call)]
        await requests.insert_all(conn, [*opened, request_row(run, "rq_3", kind="outcome", **same_call)])
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await requests.insert_all(conn, [request_row(run, "rq_1", **same_call)])


async def test_i4_a_decision_decides_one_request(database: Database, new_run) -> None:
    """I4: an id that won a request cannot win another, of this run or any; undecided requests share no id."""
    one, two = await new_run(), await new_run()
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(one, "rq_1"), request_row(one, "rq_2"), request_row(two, "rq_3")])
        await requests.settle(
            conn, "rq_1", requests.Ending(status="approved", at=AT, decision_id="dec_1", verb="approve", by="ann")
        )
    for request_id in ("rq_2", "rq_3"):
        with pytest.raises(IntegrityError):
            async with database.write() as conn:
                await requests.settle(conn, request_id, requests.Ending(status="approved", at=AT, decision_id="dec_1"))
    async with database.write() as conn:
        won = await requests.by_decision(conn, "dec_1")
        assert won is not None
        assert won.id == "rq_1"
        assert await requests.by_decision(conn, "dec_2") is None
        assert await requests.count(conn) == 2


async def test_i6_a_decisions_content_is_stored_to_the_byte(database: Database, run: runs.Run) -> None:
    """I6: edited arguments read back as the operator sent them; an id is used once."""
    async with database.write() as conn:
        await requests.insert_all(conn, [request_row(run, "rq_1")])
        edit = decided("rq_1")
        await requests.add_decision(conn, edit)
        assert await requests.decision(conn, "dec_1") == edit
        assert await requests.decision(conn, "dec_2") is None
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await requests.add_decision(conn, decided("rq_1", verb="reject"))


@pytest.mark.parametrize("look", [{}, {"looked_ms": 0, "seen_percent": 0}, {"looked_ms": MAX_LOOKED_MS}])
async def test_how_a_request_was_looked_at_is_stored_with_its_decision(
    database: Database, run: runs.Run, look: dict[str, int]
) -> None:
    """The two numbers, or none, read back as they were sent, whichever way the decision is stored, and the digest agrees."""
    plain = decided("rq_1", verb="approve", args=None, **look)
    full = decided("rq_2", decision_id="dec_2", **look)
    ending = requests.Ending(status="approved", at=AT, decision_id="dec_1", verb="approve", by="ann")
    async with database.write() as conn:
        seen = request_row(run, "rq_1")
        await requests.insert_all(conn, [seen, request_row(run, "rq_2")])
        writes = requests.decision_writes_as_seen(seen, ending, plain)
        await events.append(conn, run.id, [("request.decided", {})], writes=writes)
        await requests.add_decision(conn, full)
    async with database.read() as conn:
        stored = [await requests.decision(conn, each) for each in ("dec_1", "dec_2")]
    assert stored == [plain, full]
    assert [each and decision_digest(each, "n") for each in stored] == [
        decision_digest(plain, "n"),
        decision_digest(full, "n"),
    ]


def test_i15_a_look_is_part_of_a_decisions_digest() -> None:
    """I15: how long someone looked, and how much of it they saw."""
    plain = decided("rq_1")
    looks = [{"looked_ms": 0}, {"looked_ms": 1}, {"seen_percent": 0}, {"seen_percent": 1}]
    assert len({decision_digest(replace(plain, **each), "n") for each in ({}, *looks)}) == 5
