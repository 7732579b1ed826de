"""Reading the log: filtered pages with bounded scans, a position by time, and all of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.stores.stored_requests import AT

from turngate.domain.runs.event_chain import LogCheck
from turngate.store.clock import as_text
from turngate.store.database import Connection, Database
from turngate.store.events import audit, events
from turngate.store.runs import runs
from turngate.store.tables import event_counter
from turngate.store.tables import events as events_table
from turngate.wire.events import AuditFilter


async def pages(conn: Connection, wanted: AuditFilter, *, limit: int) -> list[list[int]]:
    """Return every page's numbers, to the end."""
    numbers_by_page, before = [], None
    while True:
        page = await audit.page(conn, wanted, limit=limit, before=before)
        numbers_by_page.append([event.seq for event in page.events])
        if page.next_before is None:
            return numbers_by_page
        before = page.next_before


async def test_the_log_under_each_filter_newest_first(
    database: Database, new_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each matching event is on one page, whatever the page's size and however small each scan."""
    one, two = await new_run(), await new_run()
    async with database.write() as conn:
        for number in range(10):
            by = ("ann", "Ann", 'a"n', "ann%")[number % 4]
            await events.append(conn, one.id, [("request.viewed", {"by": by, "text": '"by":"ann"'})])
            await events.append(conn, two.id, [("run.ended", {"by": None}), ("runs_ended", {})])
        await events.append(conn, events.SYSTEM, [("user.added", {"by": "ann"})])
    expected = {
        AuditFilter(): list(range(31, 0, -1)),
        AuditFilter(run_id=one.id): list(range(28, 0, -3)),
        AuditFilter(run_id=events.SYSTEM): [31],
        AuditFilter(type="run.*"): list(range(29, 0, -3)),
        AuditFilter(type="*_ended"): list(range(30, 0, -3)),
        AuditFilter(type="request.viewed", actor="ann"): [25, 13, 1],
        AuditFilter(actor="ann"): [31, 25, 13, 1],
        AuditFilter(actor="Ann"): [28, 16, 4],
        AuditFilter(actor='a"n'): [19, 7],
        AuditFilter(actor="ann%"): [22, 10],
        AuditFilter(actor="eve"): [],
        AuditFilter(run_id="no_such_run"): [],
    }
    for scanned, limit in ((audit.SCANNED_AT_ONCE, 3), (4, 1), (4, 3), (1, 50)):
        monkeypatch.setattr(audit, "SCANNED_AT_ONCE", scanned)
        async with database.read() as conn:
            for wanted, numbers in expected.items():
                numbers_by_page = await pages(conn, wanted, limit=limit)
                assert [number for page in numbers_by_page for number in page] == numbers, wanted
                assert all(len(page) <= limit for page in numbers_by_page)


async def dated(conn: Connection, run: runs.Run, *minutes: float) -> None:
    """Insert events at these minutes from :data:`AT`; their hashes do not matter here."""
    for seq, minute in enumerate(minutes, start=1):
        row: dict[str, Any] = {"seq": seq, "run_id": run.id, "run_seq": seq, "type": "t", "payload": "{}"}
        at = as_text(AT + timedelta(minutes=minute))
        await conn.execute(insert(events_table).values(**row, created_at=at, previous_hash="", hash=""))
    await conn.execute(update(event_counter).where(event_counter.c.id == 1).values(last_seq=len(minutes)))


def at(minute: float) -> datetime:
    return AT + timedelta(minutes=minute)


async def test_times_are_right_though_clocks_differ(database: Database, run: runs.Run) -> None:
    """A slow clock's event follows a fast clock's: a time between the two includes both."""
    minutes = [*range(0, 100, 2), 98 + 4, 98 + 1, *range(110, 200, 2)]
    async with database.write() as conn:
        await dated(conn, run, *minutes)
    async with database.read() as conn:
        for since, until in ((0, 300), (101.5, 300), (50, 99.5), (98, 99), (103, 105), (300, 400), (-9, 0)):
            wanted = AuditFilter(since=at(since), until=at(until))
            fitting = [seq for seq, minute in enumerate(minutes, start=1) if since <= minute < until]
            numbers_by_page = await pages(conn, wanted, limit=7)
            assert sorted(number for page in numbers_by_page for number in page) == fitting, (since, until)
        assert await audit.seq_at(conn, at(101.5)) == 51
        assert await audit.seq_at(conn, at(99)) == 51
        assert await audit.seq_at(conn, at(-5)) == 1
        assert await audit.seq_at(conn, at(999)) == len(minutes) + 1


async def test_all_of_it_in_batches_is_what_was_written(
    database: Database, new_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event once, in order, with every chain's head: the export verifies whole, from a number on, and for one run."""
    monkeypatch.setattr(audit, "READ_AT_ONCE", 2)
    runs_with_events = [await new_run() for _ in range(5)]
    async with database.write() as conn:
        for number in range(3):
            for run in runs_with_events[: 5 - number]:
                await events.append(conn, run.id, [("thing.happened", {"number": number})])
        await events.append(conn, events.SYSTEM, [("user.added", {})])
    async with database.read() as conn:
        for since, run_id, count, chains in (
            (1, None, 13, 6),
            (10, None, 4, 4),
            (13, None, 1, 1),
            (1, runs_with_events[0].id, 3, 1),
        ):
            check = LogCheck(since=since, only=run_id)
            async for event in audit.every(conn, since=since, run_id=run_id):
                assert check.add(event) is None
            heads = [head async for head in audit.stored_heads(conn, since=since) if run_id in {None, head.run_id}]
            assert [check.close(head) for head in heads] == [None] * chains
            assert check.end(last_seq=13 if run_id is None else None) is None
            assert check.events == count
