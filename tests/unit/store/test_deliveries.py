"""What the outbox has not delivered, by channel."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.store.clock import as_text
from turngate.store.database import Database
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Backlog, Delivery

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def delivery(channel: str, status: DeliveryStatus, *, minutes_old: int, attempts: int = 0, due_in: int = 0) -> Delivery:
    created = NOW - timedelta(minutes=minutes_old)
    return Delivery(
        id=deliveries.new_id(), channel=channel, first_seq=1, last_seq=1, payload="{}", status=status, attempts=attempts,
        created_at=as_text(created), next_attempt_at=as_text(NOW + timedelta(minutes=due_in)),
    )  # fmt: skip


async def test_each_channel_says_what_it_has_not_delivered(database: Database) -> None:
    """Open and retried deliveries count, and recent failures; what arrived and what failed long ago does not."""
    rows = [
        delivery("mail", "delivered", minutes_old=9),
        delivery("mail", "failed", minutes_old=60 * 30),
        delivery("ops", "failed", minutes_old=60),
        delivery("ops", "waiting", minutes_old=30, attempts=2, due_in=5),
        delivery("ops", "sending", minutes_old=3, attempts=1, due_in=-7),
        delivery("pager", "gathering", minutes_old=1, due_in=1),
    ]
    async with database.write() as conn:
        await deliveries.add(conn, rows)
    async with database.read() as conn:
        backlogs = await deliveries.backlogs(conn, failed_since=NOW - timedelta(hours=24))
    minutes = {at: as_text(NOW + timedelta(minutes=at)) for at in (-30, -7, -1, 1)}
    assert backlogs == [
        Backlog(channel="ops", retried=2, failed=1, oldest_at=minutes[-30], due_since=minutes[-7]),
        Backlog(channel="pager", retried=0, failed=0, oldest_at=minutes[-1], due_since=minutes[1]),
    ]


async def test_only_a_database_server_has_a_clock_of_its_own(database: Database) -> None:
    """A file on this machine has none; a server's is read there."""
    before = datetime.now(UTC)
    at = await database.server_time()
    if at is None:
        assert database.url.startswith("sqlite")
    else:
        assert abs(at - before) < timedelta(minutes=1)
