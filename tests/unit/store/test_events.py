"""Events: one sequence without surprises for readers, and a hash chain that shows when a row was changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from sqlalchemy import delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from support.engine.stack import until
from support.stores.event_guards import take_guards_away
from support.stores.stored_requests import live_run

from turngate.domain.runs.event_chain import chain_hash
from turngate.store.access.users import lock_identities
from turngate.store.clock import now
from turngate.store.database import Connection, Database
from turngate.store.events import events
from turngate.store.runs import new_run as opening
from turngate.store.runs import orders, runs
from turngate.store.sequences import Numbered
from turngate.store.tables import event_counter
from turngate.store.tables import events as events_table
from turngate.store.tables import runs as runs_table
from turngate.store.together import Together, Writes


async def tell(database: Database, run: runs.Run, *kinds: str) -> None:
    async with database.write() as conn:
        await events.append(conn, run.id, [(kind, {"kind": kind, "é": 1.0}) for kind in kinds])


async def test_numbers_have_no_gaps(database: Database, new_run) -> None:
    """``run_seq`` counts from 1 within each run and ``seq`` over all; a transaction that rolls back leaves no hole."""
    one, two = await new_run(), await new_run()
    await tell(database, one, "a", "b")
    await tell(database, two, "c")
    with contextlib.suppress(ZeroDivisionError):
        async with database.write() as conn:
            await events.append(conn, one.id, [("never", {})])
            raise ZeroDivisionError
    await tell(database, one, "d")
    await tell(database, one)
    async with database.read() as conn:
        rows = await events.after(conn, 0)
        assert await events.last_seq(conn) == 4
    assert [(event.seq, event.run_id, event.run_seq, event.type) for event in rows] == [
        (1, one.id, 1, "a"),
        (2, one.id, 2, "b"),
        (3, two.id, 1, "c"),
        (4, one.id, 3, "d"),
    ]
    assert rows[0].payload == {"kind": "a", "é": 1.0}


async def test_numbers_go_beyond_32_bits(database: Database, new_run) -> None:
    """A million runs a day take eight million numbers a day, which 32 bits hold for nine months."""
    run = await new_run()
    first = 2**31 - 1
    async with database.write() as conn:
        of_events = event_counter.c.id == Numbered.EVENTS.value
        await conn.execute(update(event_counter).where(of_events).values(last_seq=first - 1))
    await tell(database, run, "a", "b")
    async with database.read() as conn:
        assert [event.seq for event in await events.after(conn, first - 1)] == [first, first + 1]
        assert [event.seq for event in await events.after(conn, first)] == [first + 1]
        assert await events.last_seq(conn) == first + 1


async def started_and_waiting(database: Database, write: Callable[[Connection], Awaitable[None]]) -> asyncio.Task[None]:
    """Start a transaction on PostgreSQL, and return it once it waits for a lock."""
    backend = asyncio.get_running_loop().create_future()

    async def transaction() -> None:
        async with database.write() as conn:
            backend.set_result((await conn.execute(text("SELECT pg_backend_pid()"))).scalar_one())
            await write(conn)

    async def waits() -> bool:
        lock = text("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = :backend")
        async with database.glance() as conn:
            return bool((await conn.execute(lock, {"backend": await backend})).scalar_one())

    started = asyncio.create_task(transaction())
    await until(waits, "a transaction that waits for a lock")
    return started


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_an_interrupt_of_several_runs_and_an_event_of_one_do_not_deadlock(database: Database) -> None:
    """The order waits for the run that the other one holds before it takes the counter; both are stored."""
    async with database.write() as conn:
        for name in ("run_below", "run_above"):
            await live_run(conn, name)

    async def interrupt(conn: Connection) -> None:
        await orders.interrupt(conn, ["run_below", "run_above"], by="ann", reason="enough")

    async with database.write() as conn:
        await runs.hold(conn, "run_above")
        interrupting = await started_and_waiting(database, interrupt)
        await events.append(conn, "run_above", [("request.commented", {})])
    await interrupting
    async with database.read() as conn:
        assert [each.type for each in await events.after(conn, 0, run_id="run_above")] == [
            "request.commented",
            "run.interrupted",
        ]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_login_and_another_event_of_the_system_do_not_deadlock(database: Database) -> None:
    """The login holds the counter and appends while the other one waits; both are stored. SQLite has one writer."""

    async def append_another(conn: Connection) -> None:
        await events.append(conn, events.SYSTEM, [("notification.retried", {})])

    async with database.write() as conn:
        await lock_identities(conn)
        appending = await started_and_waiting(database, append_another)
        await events.append(conn, events.SYSTEM, [("session.opened", {})])
    await appending
    async with database.read() as conn:
        assert [each.type for each in await events.after(conn, 0)] == ["session.opened", "notification.retried"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_an_event_waits_for_no_row_that_refers_to_its_run(database: Database, new_run) -> None:
    """A transaction that added such a row appends an event next; each would wait for the other. SQLite has one writer."""
    run = await new_run()
    adds_a_row = text("SELECT 1 FROM runs WHERE id = :run FOR KEY SHARE")  # as its foreign key does
    async with database.write() as adding:
        await adding.execute(adds_a_row, {"run": run.id})
        async with database.write() as interrupting:
            await interrupting.execute(text("SET LOCAL lock_timeout = '5s'"))
            assert await runs.interrupt(interrupting, run.id, by="ada", reason="", at=now())
            await events.append(interrupting, run.id, [("run.interrupted", {})])
        await events.append(adding, run.id, [("a", {})])
    async with database.read() as conn:
        assert [event.type for event in await events.after(conn, 0)] == ["run.interrupted", "a"]


async def test_after_is_exclusive_and_limited(database: Database, new_run) -> None:
    """A reader continues after the last event it saw, of all runs or of one, a page at a time."""
    one, two = await new_run(), await new_run()
    await tell(database, one, "a", "b")
    await tell(database, two, "c", "d")
    async with database.read() as conn:
        assert [event.type for event in await events.after(conn, 1)] == ["b", "c", "d"]
        assert [event.type for event in await events.after(conn, 1, limit=2)] == ["b", "c"]
        assert [event.type for event in await events.after(conn, 0, run_id=two.id)] == ["c", "d"]
        assert await events.after(conn, 4) == []
        assert [event.type for event in await events.after(conn, 1, upto=3)] == ["b", "c"]


async def test_old_events_of_live_runs(database: Database, new_run) -> None:
    """Up to the first event that is too young; of some types, and of no run that has ended."""
    one, two = await new_run(), await new_run()
    await tell(database, one, "a", "b")
    await tell(database, two, "a")
    between = now()
    await tell(database, one, "a")
    async with database.write() as conn:
        await runs.end(conn, two.id, runs.Ending(status="completed", reason="", error_class=""))
    async with database.read() as conn:
        assert await events.before(conn, 0, between) == 3
        assert await events.before(conn, 3, between) == 3
        assert await events.before(conn, 0, now()) == 4
        assert [event.seq for event in await events.of_live_runs(conn, {"a"}, after=0, upto=4)] == [1, 4]
        assert [event.seq for event in await events.of_live_runs(conn, {"a"}, after=0, upto=3)] == [1]


async def test_readers_never_see_a_smaller_number_after_a_larger_one(database: Database, new_run) -> None:
    """With 20 concurrent writers, a reader that continues from its last number misses no event and repeats none."""
    written = [await new_run() for _ in range(20)]
    finished = asyncio.Event()
    seen: list[events.Event] = []

    async def follow() -> None:
        while True:
            last_look = finished.is_set()
            async with database.read() as conn:
                seen.extend(await events.after(conn, seen[-1].seq if seen else 0, limit=7))
                more = bool(await events.after(conn, seen[-1].seq if seen else 0, limit=1))
            if last_look and not more:
                return
            await asyncio.sleep(0)

    async def write(run: runs.Run) -> None:
        for number in range(4):
            await tell(database, run, f"{number}a", f"{number}b")

    reader = asyncio.create_task(follow())
    try:
        await asyncio.gather(*(write(run) for run in written))
    finally:
        finished.set()
        await asyncio.wait_for(reader, 30)
    assert [event.seq for event in seen] == list(range(1, 161))
    for run in written:
        assert [event.run_seq for event in seen if event.run_id == run.id] == list(range(1, 9))
    async with database.read() as conn:
        assert [await events.chain_break(conn, run.id) for run in written] == [None] * 20


async def test_writers_of_one_chain_take_turns(database: Database, new_run) -> None:
    """Twenty transactions that append to the same run at once leave one chain without gap, fork or duplicate."""
    run = await new_run()
    await asyncio.gather(*(tell(database, run, f"{number}a", f"{number}b") for number in range(20)))
    async with database.read() as conn:
        rows = await events.after(conn, 0, run_id=run.id)
        assert await events.chain_break(conn, run.id) is None
    assert [event.run_seq for event in rows] == list(range(1, 41))
    assert [event.type[-1] for event in rows] == ["a", "b"] * 20


ENDS: Final = events.Change(", status = 'completed', ended_at = :at")


async def end_unless_changed(database: Database, run: runs.Run, *, seen: int) -> bool:
    async with database.write() as conn:
        writes = Writes(Together(), {}, {"at": "2026-01-01"})
        ended = [("run.ended", {"n": 1}), ("run.ended", {"n": 2})]
        return await events.append_unless_changed(conn, run.id, ended, seen=seen, change=ENDS, writes=writes)


async def test_events_come_with_a_change_of_their_run(database: Database, run: runs.Run) -> None:
    """The run's row gets both in one statement on PostgreSQL, and the chain is intact."""
    await tell(database, run, "a")
    assert await end_unless_changed(database, run, seen=1)
    async with database.read() as conn:
        ended = await runs.get(conn, run.id)
        assert ended is not None
        assert (ended.status, ended.ended_at, ended.event_count) == ("completed", "2026-01-01", 3)
        assert await events.chain_break(conn, run.id) is None


@pytest.mark.parametrize("what", ["event", "interrupt", "end"])
async def test_a_run_that_has_changed_gets_neither(database: Database, run: runs.Run, what: str) -> None:
    """An event that the caller has not seen, an order to stop or an end: nothing is written."""
    await tell(database, run, "a")
    async with database.write() as conn:
        if what == "event":
            await events.append(conn, run.id, [("b", {})])
        elif what == "interrupt":
            assert await runs.interrupt(conn, run.id, by="ann", reason="", at=now())
        else:
            assert await runs.end(conn, run.id, runs.Ending(status="failed"))
    async with database.read() as conn:
        before = await runs.get(conn, run.id), await events.last_seq(conn)
    assert not await end_unless_changed(database, run, seen=1)
    async with database.read() as conn:
        assert (await runs.get(conn, run.id), await events.last_seq(conn)) == before
        assert await events.chain_break(conn, run.id) is None


async def test_of_two_that_saw_the_same_one_changes_the_run(database: Database, run: runs.Run) -> None:
    """The other one waits for the first, and then finds the run changed."""
    won = await asyncio.gather(*(end_unless_changed(database, run, seen=0) for _ in range(8)))
    assert won.count(True) == 1
    async with database.read() as conn:
        assert await events.last_seq(conn) == 2


async def test_an_event_needs_an_existing_chain(database: Database) -> None:
    """Events of a run that does not exist are an error, and take no number."""
    with pytest.raises(LookupError, match="no chain of events 'run_none'"):
        async with database.write() as conn:
            await events.append(conn, "run_none", [("a.b", {})])
    async with database.read() as conn:
        assert await events.last_seq(conn) == 0


async def swap(conn: Connection, run: runs.Run, column: str, one: int, other: int) -> None:
    """Swap a column's values between two events without breaking a unique constraint on the way."""
    rows = (await conn.execute(select(events_table).where(events_table.c.run_id == run.id))).mappings().all()
    held = {row["run_seq"]: row[column] for row in rows}
    hashes = {row["run_seq"]: row["hash"] for row in rows}
    free = -1 if isinstance(held[one], int) else "free"
    for run_seq, value in ((one, free), (other, held[one]), (one, held[other])):
        # By its hash: `run_seq` may be the very column that moves.
        row = events_table.c.hash == hashes[run_seq]
        await conn.execute(update(events_table).where(row).values({column: value}))


async def change(conn: Connection, run: runs.Run, run_seq: int, **values: Any) -> None:
    query = update(events_table).where(events_table.c.run_id == run.id, events_table.c.run_seq == run_seq)
    await conn.execute(query.values(**values))


async def remove(conn: Connection, run: runs.Run, *run_seqs: int) -> None:
    query = delete(events_table).where(events_table.c.run_id == run.id, events_table.c.run_seq.in_(run_seqs))
    await conn.execute(query)


TAMPERINGS = {
    "payload changed": (lambda conn, run: change(conn, run, 3, payload='{"kind":"other"}'), 3),
    "payload re-spelled": (lambda conn, run: change(conn, run, 2, payload='{"kind": "b", "é": 1.0}'), 2),
    "type changed": (lambda conn, run: change(conn, run, 1, type="other"), 1),
    "time changed": (lambda conn, run: change(conn, run, 4, created_at="2026-01-01T00:00:00.000000+00:00"), 4),
    "hash changed": (lambda conn, run: change(conn, run, 2, hash="0" * 64), 2),
    "moved to another run": (lambda conn, run: change(conn, run, 4, run_id="other"), 4),
    "first removed": (lambda conn, run: remove(conn, run, 1), 1),
    "one in the middle removed": (lambda conn, run: remove(conn, run, 3), 3),
    "last removed": (lambda conn, run: remove(conn, run, 5), 5),
    "all removed": (lambda conn, run: remove(conn, run, 1, 2, 3, 4, 5), 1),
    "payloads swapped": (lambda conn, run: swap(conn, run, "payload", 2, 4), 2),
    "places swapped": (lambda conn, run: swap(conn, run, "run_seq", 2, 4), 2),
    "told in another order": (lambda conn, run: swap(conn, run, "seq", 2, 3), 3),
}


@pytest.mark.parametrize("tampering", list(TAMPERINGS))
async def test_the_chain_shows_which_row_was_changed(database: Database, new_run, tampering: str) -> None:
    """A changed, removed or reordered row breaks the run's chain at that row, and no other run's."""
    tamper, place = TAMPERINGS[tampering]
    one, two = await new_run(), await new_run()
    await tell(database, one, "a", "b", "c")
    await tell(database, two, "x")
    await tell(database, one, "d", "e")
    async with database.read() as conn:
        assert await events.chain_break(conn, one.id) is None
    async with database.write() as conn:
        await take_guards_away(conn)
        await tamper(conn, one)
    async with database.read() as conn:
        broken = await events.chain_break(conn, one.id)
        assert broken is not None
        assert (broken.run_id, broken.run_seq) == (one.id, place), broken
        assert await events.chain_break(conn, two.id) is None


async def test_a_chain_rewritten_after_the_change_does_not_match_its_run(database: Database, run: runs.Run) -> None:
    """Hashes computed again for a changed event still differ from the one that its run keeps."""
    await tell(database, run, "a")
    async with database.write() as conn:
        await take_guards_away(conn)
        row = (await conn.execute(select(events_table))).mappings().one()
        forged = chain_hash("", run.id, 1, "other", row["payload"], row["created_at"])
        await change(conn, run, 1, type="other", hash=forged)
    async with database.read() as conn:
        broken = await events.chain_break(conn, run.id)
        assert broken is not None
        assert (broken.run_seq, broken.problem) == (1, "its hash is not the one kept as the newest of the chain")
    async with database.write() as conn:
        await conn.execute(update(runs_table).values(event_hash=forged))
    async with database.read() as conn:
        assert (
            await events.chain_break(conn, run.id) is None
        )  # someone who may write every row can do this: the chain is no signature


async def test_an_empty_chain_is_intact(database: Database, run: runs.Run) -> None:
    """A run without events has no break; nor has a run that does not exist."""
    async with database.read() as conn:
        assert await events.chain_break(conn, run.id) is None
        assert await events.chain_break(conn, "no_such_run") is None


async def test_i9_any_text_can_be_in_an_event(database: Database, run: runs.Run) -> None:
    """I9: unencodable text of a provider or tool is corrected before it is hashed, so the chain stays intact."""
    async with database.write() as conn:
        await events.append(conn, run.id, [("model.retrying", {"message": "a\x00b\ud800c"})])
    async with database.read() as conn:
        assert [event.payload for event in await events.after(conn, 0)] == [{"message": "a\x00b\ufffdc"}]
        assert await events.chain_break(conn, run.id) is None


GUARDED = (
    "UPDATE events SET type = 'other' WHERE run_seq = 1",
    "UPDATE events SET type = type WHERE run_seq > 0",
    "UPDATE events SET words = 'other' WHERE run_seq = 1",
    "DELETE FROM events WHERE run_seq = 2",
)
# SQLite removes the replaced row without a DELETE; PostgreSQL empties a table without one.
ALSO_GUARDED = {
    "sqlite": "INSERT OR REPLACE INTO events SELECT seq, run_id, run_seq, 'other', payload, created_at, previous_hash, hash, "
    "words FROM events WHERE run_seq = 1",
    "postgresql": "TRUNCATE events",
}


async def test_the_database_itself_refuses_to_change_events(database: Database, run: runs.Run) -> None:
    """An update, a delete, a replacement and a truncation of events all fail; appending still works."""
    await tell(database, run, "a", "b")
    for attempt in (*GUARDED, ALSO_GUARDED["sqlite" if "sqlite" in database.url else "postgresql"]):
        with pytest.raises(DBAPIError, match="append-only"):
            async with database.write() as conn:
                await conn.execute(text(attempt))
    await tell(database, run, "c")
    async with database.read() as conn:
        assert [event.type for event in await events.after(conn, 0)] == ["a", "b", "c"]
        assert await events.chain_break(conn, run.id) is None


async def test_an_event_written_twice_is_refused(database: Database, run: runs.Run) -> None:
    """A place in a chain, and a number, can be taken only once."""
    await tell(database, run, "a")
    async with database.read() as conn:
        row = dict((await conn.execute(select(events_table))).mappings().one())
    for again in ({"seq": 9}, {"run_seq": 9}):
        with pytest.raises(DBAPIError):
            async with database.write() as conn:
                await conn.execute(insert(events_table).values(**{**row, **again}))


async def test_events_of_a_removed_run_can_still_be_checked(database: Database, run: runs.Run) -> None:
    """A run that never started is removed but its events stay: the stored head still reveals a cut-off tail."""
    await tell(database, run, "a", "b")
    async with database.write() as conn:
        await events.store_head(conn, run.id)
        await opening.remove_unstarted(conn, run.id)
    async with database.read() as conn:
        assert await runs.get(conn, run.id) is None
        assert await events.chain_break(conn, run.id) is None
    async with database.write() as conn:
        await take_guards_away(conn)
        await remove(conn, run, 2)
    async with database.read() as conn:
        assert str(await events.chain_break(conn, run.id)) == (
            f"chain {run.id}, event 2: it is missing: 1 of the chain's 2 event(s) are here"
        )
