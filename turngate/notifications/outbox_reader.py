"""Reads the newest events and writes what a channel wants into the outbox. One read serves all channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.exc import IntegrityError

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.domain.runs.trace import RunTrace, SpanRef
from turngate.notifications.configuration import Channel
from turngate.notifications.items import Item, Payload, item_of
from turngate.notifications.selection import name_of
from turngate.store.clock import as_text, from_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import deliveries, events
from turngate.store.events.deliveries import Cursor
from turngate.store.runs import runs

# From events to deliveries: the first of a quiet channel goes out at once, what follows within the window goes together.
#
# A digest is a row from its first event on (status ``gathering``), so what has been read is never only in memory.


async def put(
    conn: Connection, seen: Cursor, items: Sequence[Item], *, last_seq: int, window: timedelta, at: datetime
) -> bool:
    """Write what the channel has to send and move its cursor to ``last_seq``, in the caller's write transaction.

    ``items``: what it wants of the events after ``seen``, in order. Returns False, and writes nothing, when another process
    has moved the cursor since it was seen.
    """
    digest = await deliveries.gathering(conn, seen.channel) if items else None
    since = seen.gathering_since
    window_ends = at if since is None else from_text(since) + window
    alone: Sequence[Item] = ()
    if not window:
        alone = items
    elif items and digest is None and at >= window_ends:
        alone, since, window_ends = items[:1], as_text(at), at + window
    together = items[len(alone) :]
    if together and digest is None:
        since = as_text(window_ends)  # it leaves then, and the next window begins
    if not await deliveries.move(conn, seen, last_seq=last_seq, gathering_since=since):
        return False
    new = [_delivery(seen.channel, [item], "waiting", due=at, at=at) for item in alone]
    if together and digest is None:
        new.append(_delivery(seen.channel, together, "gathering", due=window_ends, at=at))
    await deliveries.add(conn, new)
    if together and digest is not None:
        grown = Payload.model_validate_json(digest.payload).with_items(together)
        await deliveries.extend(conn, digest.id, payload=grown.stored, last_seq=together[-1].seq)
    return True


def _delivery(
    channel: str, items: Sequence[Item], status: DeliveryStatus, *, due: datetime, at: datetime
) -> deliveries.Delivery:
    return deliveries.Delivery(
        id=deliveries.new_id(),
        channel=channel,
        first_seq=items[0].seq,
        last_seq=items[-1].seq,
        payload=Payload().with_items(items).stored,
        status=status,
        next_attempt_at=as_text(due),
        created_at=as_text(at),
    )


BATCH: Final = 500
KEEP_WITHIN: Final = 500
"""Events that a cursor may lag after what was read and not wanted: a write for each of them would buy nothing."""


@dataclass(frozen=True)
class ReadResult:
    """The result of one look: which channels have something new to send, and whether there may be more to read."""

    channels: frozenset[str]
    more: bool


class OutboxReader:
    """Reads events for some channels. What it keeps in memory may be lost: the cursors in the store are what counts.

    ``name_span``: the ``traceparent`` of a span of a run's trace; None: traces are not exported.
    """

    def __init__(
        self,
        database: Database,
        channels: Sequence[Channel],
        *,
        name_span: Callable[[RunTrace, SpanRef], str] | None = None,
    ) -> None:
        self._database = database
        self._name_span = name_span
        self._channels = channels
        self._read_to: dict[str, int] = {}

    async def read(self) -> ReadResult:
        """Read what is new and write what has to be sent. Raises UnavailableError when the store is away."""
        if not self._read_to:
            await self._begin()
        after = min(self._read_to.values())
        async with self._database.read() as conn:
            batch = await events.after(conn, after, limit=BATCH)
            items = await self._items(conn, batch) if batch else {}
        if not batch:
            return ReadResult(frozenset(), more=False)
        channels: set[str] = set()
        for channel in self._channels:
            wanted = [
                item
                for item in items.values()
                if item.seq > self._read_to[channel.name]
                and channel.selection.wants(item.name, agent=item.agent, tool=item.tool, risk=item.risk, rule=item.rule)
            ]
            if await self._tell(channel, wanted, last_seq=batch[-1].seq):
                channels.add(channel.name)
        lags = min(self._read_to.values(), default=0) < batch[-1].seq  # another process was faster, with a part of it
        return ReadResult(frozenset(channels), more=lags or len(batch) == BATCH)

    async def _begin(self) -> None:
        """Take up every channel where it was; a new one from now on."""
        for channel in self._channels:
            try:
                async with self._database.write() as conn:
                    await deliveries.begin(conn, channel.name, await events.last_seq(conn))
            except IntegrityError:  # another API process began it in the same moment
                pass
        async with self._database.read() as conn:
            cursors = {channel.name: await deliveries.cursor(conn, channel.name) for channel in self._channels}
        self._read_to = {name: cursor.last_seq for name, cursor in cursors.items() if cursor is not None}

    async def _items(self, conn: Connection, batch: Sequence[events.Event]) -> dict[int, Item]:
        """Return seq → what is sent of it, of the events that any channel may want."""
        items: dict[int, Item] = {}
        for event in batch:
            name = name_of(event.type, event.payload)
            if name is None or not any(channel.selection.wants_name(name) for channel in self._channels):
                continue
            item = await item_of(conn, event)
            if item is not None:
                items[event.seq] = await self._traced(conn, item)
        return items

    async def _traced(self, conn: Connection, item: Item) -> Item:
        """Return the item with the span that it is about: the wait for an answer, or the run."""
        run = None if self._name_span is None or item.run_id is None else await runs.get(conn, item.run_id)
        if run is None or self._name_span is None:
            return item
        trace = RunTrace.of(run.id, run.traceparent)
        span = trace.run if item.request_id is None else trace.request(item.request_id)
        return item.model_copy(update={"traceparent": self._name_span(trace, span)})

    async def _tell(self, channel: Channel, wanted: Sequence[Item], *, last_seq: int) -> bool:
        """Write what the channel wants and move its cursor; returns whether there is something to send."""
        if last_seq <= self._read_to[channel.name]:
            return False
        async with self._database.read() as conn:
            seen = await deliveries.cursor(conn, channel.name)
        if seen is None:  # taken away by hand: begin again
            self._read_to = {}
            return False
        if seen.last_seq > self._read_to[channel.name]:
            return self._elsewhere(channel, seen)
        if not wanted and last_seq - seen.last_seq < KEEP_WITHIN:
            self._read_to[channel.name] = last_seq
            return False
        async with self._database.write() as conn:
            mine = await put(conn, seen, wanted, last_seq=last_seq, window=channel.window, at=now())
        if not mine:
            return self._elsewhere(channel, seen)
        self._read_to[channel.name] = last_seq
        return bool(wanted)

    def _elsewhere(self, channel: Channel, seen: Cursor) -> bool:
        """Another process tells this channel too, and was faster: continue from its place at the next look."""
        self._read_to[channel.name] = seen.last_seq
        return True
