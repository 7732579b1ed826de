"""The loop of notifications: events into the outbox, the outbox to its receivers. Any number of API processes may run it.

Nothing waits for this loop: no request does, and each channel has its own senders, so a receiver that hangs holds up its own
messages only. What is in memory may be lost at any moment; the store has everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from turngate.approvals_api.events.deliveries import RETRIED
from turngate.approvals_api.events.feed import EventFeed
from turngate.domain.errors import UnavailableError
from turngate.domain.runs.trace import RunTrace, SpanRef
from turngate.notifications.configuration import Channel
from turngate.notifications.outbox_reader import OutboxReader
from turngate.notifications.send_delivery import claim_due, send_claimed
from turngate.notifications.send_results import GIVE_UP_AFTER
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Delivery
from turngate.store.events.events import Event

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = timedelta(seconds=5)
"""How often to read the store although nothing woke us: for what another process left unsent."""
SENDERS: Final = 3
"""Messages of one channel in flight at once, in one process."""
TIDY_EVERY: Final = timedelta(hours=1)
PAUSE_AFTER_FAILURE: Final = timedelta(seconds=2)


async def keep_notifying(
    database: Database,
    feed: EventFeed,
    channels: tuple[Channel, ...],
    *,
    name_span: Callable[[RunTrace, SpanRef], str] | None = None,
) -> None:
    """Send each channel its notifications, until cancelled. Returns at once when there is no channel.

    ``name_span``: as of :class:`turngate.notifications.outbox_reader.OutboxReader`.
    """
    if not channels:
        return
    notifier = Notifier(database, feed, OutboxReader(database, channels, name_span=name_span), channels)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_for_ever(notifier.listen))
        tasks.create_task(_for_ever(notifier.read))
        tasks.create_task(_for_ever(notifier.tidy))
        for channel in channels:
            for _each in range(SENDERS):
                tasks.create_task(_for_ever(notifier.sender(channel)))


class Notifier:
    """What the tasks of one process share: signals that wake them, and a turn at claiming for each channel."""

    def __init__(
        self,
        database: Database,
        feed: EventFeed,
        reader: OutboxReader,
        channels: tuple[Channel, ...],
    ) -> None:
        self._database = database
        self._feed = feed
        self._channels = channels
        self._reader = reader
        self._happened = asyncio.Event()
        self._to_send = {channel.name: asyncio.Event() for channel in channels}
        self._claiming = {channel.name: asyncio.Lock() for channel in channels}

    async def listen(self) -> None:
        """Wake the reader on every event, and the senders when a person sends a delivery again."""
        async for event in self._feed.follow(await self._feed.last_seq(), with_progress=False):
            self._happened.set()
            if isinstance(event, Event) and event.type == RETRIED:
                for news in self._to_send.values():
                    news.set()
        await asyncio.Event().wait()  # the feed was closed: the process stops

    async def read(self) -> None:
        """Read what is new, then wait for more."""
        self._happened.clear()  # before reading: what comes in between wakes us again
        batch = await self._reader.read()
        for name in batch.channels:
            self._to_send[name].set()
        if not batch.more:
            await _wait(self._happened, LOOK_EVERY)

    def sender(self, channel: Channel) -> Callable[[], Awaitable[None]]:
        """Return what one of a channel's senders repeats: send what is due, else wait."""

        async def send_next() -> None:
            news = self._to_send[channel.name]
            async with self._claiming[
                channel.name
            ]:  # ours take turns; those of other processes are held off by the claim
                news.clear()
                due = await claim_due(self._database, channel.name)
            if isinstance(due, Delivery):
                news.set()  # there may be more, for those who wait
                await send_claimed(self._database, channel, due)
            else:
                await _wait(news, _until(due))

        return send_next

    async def tidy(self) -> None:
        """End deliveries to channels that are no longer configured, once they are older than any delivery may get."""
        at, names = now(), [channel.name for channel in self._channels]
        async with self._database.write() as conn:
            ended = await deliveries.fail_forgotten(conn, names, before=at - GIVE_UP_AFTER, at=at)
        if ended:
            logger.warning("gave up %d notification(s) to channels that are no longer configured", ended)
        await asyncio.sleep(TIDY_EVERY.total_seconds())


async def _for_ever(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat it forever: wait for a store that is away, and log a bug instead of ending the notifications."""
    while True:
        try:
            await work()
        except UnavailableError as error:
            logger.warning("notifications pause: %s", error)
            await asyncio.sleep(PAUSE_AFTER_FAILURE.total_seconds())
        except Exception:
            logger.exception("notifications failed once, and continue")
            await asyncio.sleep(PAUSE_AFTER_FAILURE.total_seconds())


def _until(due: datetime | None) -> timedelta:
    return LOOK_EVERY if due is None else min(max(due - now(), timedelta()), LOOK_EVERY)


async def _wait(event: asyncio.Event, at_most: timedelta) -> None:
    try:
        async with asyncio.timeout(at_most.total_seconds()):
            await event.wait()
    except TimeoutError:
        pass
