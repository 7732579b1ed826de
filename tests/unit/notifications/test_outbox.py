"""From events to deliveries, at once or gathered: each event is in each channel's outbox exactly once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from support.servers.notification_receivers import item, new_run, opened, webhook_channel

from turngate.domain.policy.terms import AskTerms
from turngate.domain.runs.outcomes import end_payload
from turngate.notifications import outbox_reader
from turngate.notifications.items import Payload, item_of
from turngate.notifications.outbox_reader import OutboxReader
from turngate.store.clock import as_text
from turngate.store.database import Database
from turngate.store.events import deliveries, events
from turngate.store.events.events import SYSTEM

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(seconds=10)


def after(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


async def put(database: Database, *seqs: int, at: datetime, window: timedelta = WINDOW) -> bool:
    async with database.read() as conn:
        seen = await deliveries.cursor(conn, "ops")
    async with database.write() as conn:
        if seen is None:
            await deliveries.begin(conn, "ops", 0)
            seen = await deliveries.cursor(conn, "ops")
        items = [item(seq=seq) for seq in seqs]
        return await outbox_reader.put(conn, seen, items, last_seq=max(seqs), window=window, at=at)


async def claim(database: Database, at: datetime) -> deliveries.Delivery | None:
    async with database.write() as conn:
        due = await deliveries.next_due(conn, "ops")
        if due is None or due.next_attempt_at > as_text(at):
            return None
        return await deliveries.claim(conn, due, at=at, until=at + timedelta(hours=9))


async def stored(database: Database) -> list[tuple[list[int], str, datetime]]:
    """Return every delivery, oldest first: its seqs, status, and when it is due."""
    async with database.read() as conn:
        page = await deliveries.page(conn, limit=100)
    rows = [
        (
            [each.seq for each in Payload.model_validate_json(delivery.payload).items],
            delivery.status,
            datetime.fromisoformat(delivery.next_attempt_at),
        )
        for delivery in page
    ]
    return sorted(rows, key=lambda row: row[0])


async def test_the_first_goes_at_once_and_what_follows_together(database: Database):
    """One message, then one digest per window until it is quiet, then the next one at once again."""
    await put(database, 1, 2, at=AT)
    await put(database, 3, at=after(4))
    await put(database, 4, 5, at=after(9))
    assert await stored(database) == [([1], "waiting", AT), ([2, 3, 4, 5], "gathering", after(10))]
    assert (await claim(database, AT)).first_seq == 1
    assert await claim(database, after(9.9)) is None
    assert (await claim(database, after(10))).last_seq == 5
    await put(database, 6, at=after(11))  # within the window that the digest began
    assert (await stored(database))[2] == ([6], "gathering", after(20))
    await claim(database, after(20))
    await put(database, 7, at=after(31))  # quiet again
    assert (await stored(database))[3] == ([7], "waiting", after(31))


async def test_an_unsent_digest_takes_new_events(database: Database):
    """While no process sends, one digest grows, instead of one per window."""
    await put(database, 1, 2, at=AT)
    await put(database, 3, at=after(500))
    assert await stored(database) == [([1], "waiting", AT), ([2, 3], "gathering", after(10))]


async def test_without_a_window_every_event_is_a_message(database: Database):
    """``digest_seconds = 0``."""
    await put(database, 1, 2, at=AT, window=timedelta(0))
    await put(database, 3, at=after(1), window=timedelta(0))
    assert await stored(database) == [([1], "waiting", AT), ([2], "waiting", AT), ([3], "waiting", after(1))]


async def test_a_digest_is_bounded(database: Database):
    """Fifty events are stored, the others counted, over any number of writes."""
    await put(database, *range(1, 102), at=AT)
    await put(database, *range(102, 202), at=after(1))
    async with database.write() as conn:
        digest = await deliveries.gathering(conn, "ops")
    payload = Payload.model_validate_json(digest.payload)
    assert (len(payload.items), payload.more) == (50, 150)
    assert (digest.first_seq, digest.last_seq) == (2, 201)


async def test_of_two_processes_one_writes(database: Database):
    """Both saw the same cursor; the slower one writes nothing, whichever it is."""
    other = Database(database.url)
    async with database.write() as conn:
        await deliveries.begin(conn, "ops", 0)
        seen = await deliveries.cursor(conn, "ops")

    async def tell(one: Database) -> bool:
        async with one.write() as conn:
            return await outbox_reader.put(conn, seen, [item(seq=1), item(seq=2)], last_seq=2, window=WINDOW, at=AT)

    assert sorted(await asyncio.gather(tell(database), tell(other))) == [False, True]
    await other.close()
    assert [seqs for seqs, _status, _due in await stored(database)] == [[1], [2]]


async def test_a_claimed_digest_takes_no_more_events(database: Database):
    """The next event begins a new digest; none is lost between the two."""
    await put(database, 1, 2, at=AT)
    await claim(database, AT)
    taken = await claim(database, after(10))
    await put(database, 3, at=after(10))
    assert taken.last_seq == 2
    assert [seqs for seqs, _status, _due in await stored(database)] == [[1], [2], [3]]


async def test_a_new_channel_starts_with_new_events(database: Database, receiver):
    """It gets no events from before its configuration, but those from while no process ran."""
    async with database.write() as conn:
        await new_run(conn, "run_1")
    await opened(database, "run_1", "req_old")
    await OutboxReader(database, [webhook_channel(receiver)]).read()
    await opened(database, "run_1", "req_1", "req_2")
    written = await OutboxReader(database, [webhook_channel(receiver)]).read()  # another process, later
    assert written.channels == {"ops"}
    async with database.read() as conn:
        page = await deliveries.page(conn, limit=10)
    assert sorted(Payload.model_validate_json(each.payload).items[0].request_id for each in page) == ["req_1", "req_2"]


async def test_each_channel_reads_for_itself(database: Database, receiver):
    """By its own selection and cursor; the reader reads once for all."""
    channels = [
        webhook_channel(receiver, "all"),
        webhook_channel(receiver, "grave", risk_at_least="high"),
        webhook_channel(receiver, "runs", events=["run.*"]),
    ]
    reader = OutboxReader(database, channels)
    async with database.write() as conn:
        await new_run(conn, "run_1")
    await reader.read()
    await opened(database, "run_1", "req_low", risk="low")
    await opened(database, "run_1", "req_high", risk="high")
    async with database.write() as conn:
        ended = end_payload(status="failed", error_class="model_error", reason="AGENT-WORDS")
        await events.append(conn, "run_1", [("step.responded", {}), ("run.ended", ended)])
    written = await reader.read()
    assert written.channels == {"all", "grave", "runs"}
    assert await reader.read() == type(written)(frozenset(), more=False)
    async with database.read() as conn:
        by_channel = {
            channel.name: [each.first_seq for each in await deliveries.page(conn, limit=9, channel=channel.name)]
            for channel in channels
        }
    assert {name: len(seqs) for name, seqs in by_channel.items()} == {"all": 3, "grave": 1, "runs": 1}


async def test_unwanted_events_cost_no_write(database: Database, receiver):
    """A cursor may lag; when it lags too far, it is written."""
    reader = OutboxReader(database, [webhook_channel(receiver)])
    await reader.read()
    for count, cursor in ((300, 0), (300, 600)):
        async with database.write() as conn:
            await events.append(conn, SYSTEM, [("session.opened", {})] * count)
        while (await reader.read()).more:
            pass
        async with database.read() as conn:
            assert (await deliveries.cursor(conn, "ops")).last_seq == cursor


async def test_no_id_of_a_person_is_cut(database: Database):
    """Half an id could not be given a name: of many who may decide, the first are named and the others counted."""
    people = [f"p-{number:016x}" for number in range(30)]
    async with database.write() as conn:
        await new_run(conn, "run_1")
    await opened(database, "run_1", "req_1", terms=AskTerms(people=people).model_dump_json())
    async with database.read() as conn:
        [opening] = [await item_of(conn, event) for event in await events.after(conn, 0)]
    assert opening.deciders == f"{', '.join(people[:5])} or 25 more"


async def test_an_item_has_nothing_that_an_agent_wrote(database: Database):
    """The stored payload has no arguments, preview, agent's words, reasons or task."""
    async with database.write() as conn:
        await new_run(conn, "run_1", path="writer/support")
    await opened(database, "run_1", "req_1", tool_name="x" * 999, path="writer/support", not_by="bob")
    async with database.write() as conn:
        ended = end_payload(status="failed", error_class="model_error", reason="AGENT-WORDS")
        await events.append(conn, "run_1", [("run.ended", ended)])
    async with database.read() as conn:
        items = [await item_of(conn, event) for event in await events.after(conn, 0)]
    payload = Payload().with_items(items).model_dump_json()
    for secret in ("ARGUMENTS", "AGENT-WORDS", "THE-REASON", "PREVIEW", "own words", "call_req_1"):
        assert secret not in payload
    assert len(items[0].tool) == 200
    assert (items[0].deciders, items[0].not_by, items[0].risk) == ("any operator", "bob", "high")
    assert (items[1].name, items[1].agent, items[1].outcome) == ("run.failed", "writer/support", "error")
    assert (items[1].error_class, items[1].ended_by) == ("model_error", None)


async def test_events_without_their_request_give_no_message(database: Database):
    """An unknown request id, and event types that are internal."""
    async with database.write() as conn:
        await events.append(conn, SYSTEM, [("request.opened", {"request_id": "gone"}), ("policy.changed", {})])
    async with database.read() as conn:
        assert [await item_of(conn, event) for event in await events.after(conn, 0)] == [None, None]
