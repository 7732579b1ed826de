"""From events to deliveries: the first of a quiet channel goes out at once, what follows within the window goes together.

A digest is a row from its first event on (status ``gathering``), so what has been read is never only in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.notifications.items import Item, Payload
from turngate.store.clock import as_text, from_text
from turngate.store.database import Connection
from turngate.store.events import deliveries
from turngate.store.events.deliveries import Cursor


async def put(
    conn: Connection, seen: Cursor, items: Sequence[Item], *, last_seq: int, window: timedelta, at: datetime
) -> bool:
    """Write what the channel is to be told and move its cursor to ``last_seq``, in the caller's write transaction.

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
        await deliveries.extend(conn, digest.id, payload=_json(grown), last_seq=together[-1].seq)
    return True


def _delivery(
    channel: str, items: Sequence[Item], status: DeliveryStatus, *, due: datetime, at: datetime
) -> deliveries.Delivery:
    return deliveries.new_delivery(
        channel,
        seqs=(items[0].seq, items[-1].seq),
        payload=_json(Payload().with_items(items)),
        status=status,
        due=due,
        at=at,
    )


def _json(payload: Payload) -> str:
    return payload.model_dump_json(exclude_defaults=True)
