"""Sending from the outbox: claimed by one process, sent at least once, and every outcome recorded."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest
from support.servers.notification_receivers import Receiver, answer, webhook_channel

from turngate.notifications import send_delivery
from turngate.notifications.items import Item, Payload
from turngate.notifications.send_delivery import claim_due, send_claimed, send_test
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Delivery

ITEM = Item(seq=1, name="run.failed", at="2026-03-01T12:00:00+00:00", run_id="run_1", agent="a")


async def add(database: Database, *, age: timedelta = timedelta(), payload: str | None = None) -> Delivery:
    delivery = Delivery(
        id=deliveries.new_id(),
        channel="ops",
        first_seq=1,
        last_seq=1,
        payload=payload or Payload(items=(ITEM,)).model_dump_json(exclude_defaults=True),
        status="waiting",
        next_attempt_at=as_text(now() - age),
        created_at=as_text(now() - age),
    )
    async with database.write() as conn:
        await deliveries.add(conn, [delivery])
    return delivery


async def look(database: Database, delivery: Delivery) -> tuple[Delivery, list[str]]:
    async with database.read() as conn:
        stored = await deliveries.get(conn, delivery.id)
        tries = (await deliveries.attempts_of(conn, [delivery.id])).get(delivery.id, [])
    assert stored is not None
    assert [each.n for each in tries] == list(range(1, len(tries) + 1))
    return stored, [each.answer for each in tries]


async def due_now(database: Database, delivery: Delivery) -> None:
    async with database.write() as conn:
        assert await deliveries.send_again(conn, delivery.id, at=now())


async def test_a_delivery_is_done_once_delivered(database: Database, receiver: Receiver):
    """Status, answer and time are in the log, and none is open."""
    delivery = await add(database)
    claimed = await claim_due(database, "ops")
    await send_claimed(database, webhook_channel(receiver), claimed)
    stored, answers = await look(database, delivery)
    assert (stored.status, stored.attempts, answers) == ("delivered", 1, ["204 No Content"])
    assert stored.ended_at is not None
    assert await claim_due(database, "ops") is None
    assert receiver.received[0].headers["webhook-id"] == delivery.id


async def test_one_of_two_processes_claims(database: Database):
    """The other one gets when to look again: when the claim ends."""
    await add(database)
    other = Database(database.url)
    claims = await asyncio.gather(claim_due(database, "ops"), claim_due(other, "ops"))
    assert sum(isinstance(each, Delivery) for each in claims) == 1
    later = await claim_due(other, "ops")
    await other.close()
    assert isinstance(later, datetime)
    assert timedelta(seconds=50) < later - now() <= send_delivery.CLAIM_FOR


async def test_of_two_that_see_a_dead_senders_claim_one_gets_it(database: Database):
    """Both look before either takes it."""
    await add(database)
    async with database.write() as conn:
        dead = await deliveries.claim(conn, await deliveries.next_due(conn, "ops"), at=now(), until=now())
    other = Database(database.url)

    async def take(one: Database) -> Delivery | None:
        async with one.write() as conn:
            return await deliveries.claim(conn, dead, at=now(), until=now() + send_delivery.CLAIM_FOR)

    taken = await asyncio.gather(take(database), take(other))
    await other.close()
    assert [each.attempts for each in taken if each is not None] == [2]


async def test_a_sender_that_dies_loses_nothing(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """Killed between claim and send: after the claim another sends it, with the same id; the log has both attempts."""
    delivery = await add(database)
    monkeypatch.setattr(send_delivery, "CLAIM_FOR", timedelta(0))
    dead = await claim_due(database, "ops")
    other = Database(database.url)
    again = await claim_due(other, "ops")
    assert (dead.id, again.id, again.attempts) == (delivery.id, delivery.id, 2)
    await send_claimed(other, webhook_channel(receiver), again)
    await other.close()
    stored, answers = await look(database, delivery)
    assert (stored.status, answers) == ("delivered", ["", "204 No Content"])
    assert receiver.received[0].headers["webhook-id"] == delivery.id


async def test_a_sender_killed_while_sending_loses_nothing(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """The receiver may have it: it is sent again with the same id, never dropped."""
    delivery = await add(database)
    monkeypatch.setattr(send_delivery, "CLAIM_FOR", timedelta(0))
    receiver.answers = [None]
    task = asyncio.create_task(send_claimed(database, webhook_channel(receiver), await claim_due(database, "ops")))
    await receiver.got(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await send_claimed(database, webhook_channel(receiver), await claim_due(database, "ops"))
    assert [each.headers["webhook-id"] for each in receiver.received] == [delivery.id, delivery.id]
    assert (await look(database, delivery))[0].status == "delivered"


async def test_a_late_failure_does_not_undo_a_newer_attempt(
    database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """A sender was stopped past its claim: its failure changes nothing, its success counts."""
    monkeypatch.setattr(send_delivery, "CLAIM_FOR", timedelta(0))
    channel = webhook_channel(receiver)
    for late, newer, status in ((500, 204, "delivered"), (500, 410, "failed"), (204, 410, "delivered")):
        delivery = await add(database)
        first, second = await claim_due(database, "ops"), await claim_due(database, "ops")
        receiver.answers = [answer(newer), answer(late)]
        await send_claimed(database, channel, second)
        await send_claimed(database, channel, first)
        stored, answers = await look(database, delivery)
        assert (stored.status, answers) == (status, [f"{late} Said", f"{newer} Said"])


async def test_a_failing_receiver_is_retried(database: Database, receiver: Receiver):
    """The next attempt is due after the pause, or after the receiver's Retry-After."""
    delivery = await add(database)
    channel = webhook_channel(receiver)
    receiver.answers = [answer(500), answer(503, Retry_After="900")]
    for attempt, low, high in ((1, 4, 7), (2, 898, 901)):
        await send_claimed(database, channel, await claim_due(database, "ops"))
        stored, _answers = await look(database, delivery)
        wait = (datetime.fromisoformat(stored.next_attempt_at) - now()).total_seconds()
        assert (stored.status, stored.attempts) == ("waiting", attempt)
        assert low < wait < high
        assert isinstance(await claim_due(database, "ops"), datetime)
        await due_now(database, delivery)
    await send_claimed(database, channel, await claim_due(database, "ops"))
    assert (await look(database, delivery))[0].status == "delivered"


async def test_a_message_that_is_refused_five_times_is_given_up(database: Database, receiver: Receiver):
    """Then a person can send it again, one attempt each time; a delivered one cannot be sent again."""
    delivery = await add(database)
    channel = webhook_channel(receiver)
    receiver.answer = answer(400)
    for attempt in range(1, 6):
        await send_claimed(database, channel, await claim_due(database, "ops"))
        stored, _answers = await look(database, delivery)
        assert stored.status == ("waiting" if attempt < 5 else "failed")
        await due_now(database, delivery)
    receiver.answer = answer(200)
    await send_claimed(database, channel, await claim_due(database, "ops"))
    stored, answers = await look(database, delivery)
    assert (stored.status, stored.attempts, len(answers)) == ("delivered", 6, 6)
    async with database.write() as conn:
        assert not await deliveries.send_again(conn, delivery.id, at=now())
        assert not await deliveries.send_again(conn, "ntf_unknown", at=now())


@pytest.mark.parametrize(("status", "age"), [(410, timedelta()), (500, timedelta(hours=25))])
async def test_a_gone_or_too_old_delivery_fails_at_once(
    database: Database, receiver: Receiver, status: int, age: timedelta
):
    """410 means never again; after 24 hours no one waits for it any more."""
    delivery = await add(database, age=age)
    receiver.answer = answer(status)
    await send_claimed(database, webhook_channel(receiver), await claim_due(database, "ops"))
    stored, _answers = await look(database, delivery)
    assert (stored.status, stored.attempts) == ("failed", 1)


async def test_a_claimed_delivery_is_not_sent_again_by_hand(database: Database):
    """It is being sent already."""
    delivery = await add(database)
    await claim_due(database, "ops")
    async with database.write() as conn:
        assert not await deliveries.send_again(conn, delivery.id, at=now())


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ('{"items": 7}', "a later release of Turngate wrote this"),
        ("{not json", "a later release of Turngate wrote this"),
    ],
)
async def test_an_unreadable_delivery_fails_for_good(
    database: Database, receiver: Receiver, payload: str, problem: str
):
    """The deliveries after it are sent."""
    delivery = await add(database, payload=payload)
    await send_claimed(database, webhook_channel(receiver), await claim_due(database, "ops"))
    stored, answers = await look(database, delivery)
    assert stored.status == "failed"
    assert answers[0].startswith(problem)


async def test_a_sender_that_takes_too_long_is_stopped(
    sqlite: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """Before its claim ends, so that no two send at once."""
    assert send_delivery.SEND_WITHIN < send_delivery.CLAIM_FOR
    monkeypatch.setattr(send_delivery, "SEND_WITHIN", timedelta(seconds=0.1))
    receiver.answer = None
    delivery = await add(sqlite)
    await send_claimed(sqlite, webhook_channel(receiver), await claim_due(sqlite, "ops"))
    stored, answers = await look(sqlite, delivery)
    assert (stored.status, answers) == ("waiting", ["it took longer than 0.1 s"])


async def test_a_test_message_is_sent_once_and_logged(sqlite: Database, receiver: Receiver):
    """No other process claims it, and a failure is final, because its sender watches."""
    receiver.answers = [answer(200), answer(500)]
    channel = webhook_channel(receiver)
    for status in ("delivered", "failed"):
        delivery, _outcome = await send_test(sqlite, channel)
        stored, answers = await look(sqlite, delivery)
        assert (stored.status, stored.attempts, len(answers)) == (status, 1, 1)
    assert receiver.received[0].json["type"] == "notifications.test"


async def test_deliveries_of_forgotten_channels_end(database: Database):
    """Once they are as old as a delivery may get; those of existing channels, and newer ones, stay."""
    old, new = await add(database, age=timedelta(hours=25)), await add(database)
    at = now()
    async with database.write() as conn:
        assert await deliveries.fail_forgotten(conn, ["ops"], before=at - timedelta(hours=24), at=at) == 0
        assert await deliveries.fail_forgotten(conn, ["else"], before=at - timedelta(hours=24), at=at) == 1
    assert [(await look(database, each))[0].status for each in (old, new)] == ["failed", "waiting"]


async def test_pages_are_newest_first(database: Database):
    """By channel and status, continuing after the last one seen."""
    added = [await add(database, age=timedelta(minutes=n)) for n in range(5)]
    async with database.write() as conn:
        taken = await deliveries.next_due(conn, "ops")
        assert taken.id == added[4].id
        await deliveries.claim(conn, taken, at=now(), until=now())
    async with database.read() as conn:
        first = await deliveries.page(conn, limit=2)
        rest = await deliveries.page(conn, limit=9, before=(first[-1].created_at, first[-1].id))
        sending_now = await deliveries.page(conn, limit=9, status="sending", channel="ops")
        nothing = await deliveries.page(conn, limit=9, channel="else")
    assert [each.id for each in [*first, *rest]] == [each.id for each in added]
    assert ([each.id for each in sending_now], nothing) == ([added[4].id], [])
    assert first[0].created_at <= as_text(now())
