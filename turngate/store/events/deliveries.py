"""Deliveries: the outbox of notifications, and the log of every attempt to send one.

A delivery is written in the transaction that moves its channel's cursor, so each event is in a channel's outbox exactly
once. It is sent at least once: a sender claims it by compare-and-set for a while, and what a dead sender had claimed is
claimed again after that.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import bindparam, case, func, insert, literal, select, tuple_, update

from turngate.domain.runs.deliveries import DeliveryStatus
from turngate.store.clock import as_text
from turngate.store.database import Connection
from turngate.store.tables import deliveries, delivery_attempts, notification_cursors

OPEN: Final = ("gathering", "waiting", "sending")

_CURSOR = select(notification_cursors).where(notification_cursors.c.channel == bindparam("of_channel"))
_DUE = (
    select(deliveries)
    .where(deliveries.c.status.in_(OPEN), deliveries.c.channel == bindparam("of_channel"))
    .order_by(deliveries.c.next_attempt_at, deliveries.c.id)
    .limit(1)
)


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """How far a channel has read. ``gathering_since``: when its newest digest's window began, or will; None: never yet."""

    channel: str
    last_seq: int
    gathering_since: str | None


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One message to one channel. ``first_seq``, ``last_seq``: of its events. ``attempts``: begun so far.

    ``payload``: JSON of what it says. ``next_attempt_at``: when it is to be sent; while it is being sent, when someone
    else may take it.
    """

    id: str
    channel: str
    first_seq: int
    last_seq: int
    payload: str
    status: DeliveryStatus
    next_attempt_at: str
    created_at: str
    attempts: int = 0
    ended_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt. ``answer``: its result in words; empty while it runs, and for good if its sender died."""

    delivery_id: str
    n: int
    started_at: str
    milliseconds: int
    answer: str


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """The end of an attempt. ``answer``: its result in words. ``milliseconds``: how long it took. ``at``: when it ended."""

    answer: str
    milliseconds: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What a channel has not delivered. ``retried``: open deliveries that were tried in vain. ``failed``: given up.

    ``oldest_at``: since when its oldest open delivery is there. ``due_since``: when the first is, or was, to be sent.
    """

    channel: str
    retried: int
    failed: int
    oldest_at: str | None
    due_since: str | None


def new_id() -> str:
    """Return the id of a new delivery."""
    return f"ntf_{secrets.token_hex(12)}"


async def cursor(conn: Connection, channel: str) -> Cursor | None:
    """Return how far the channel has read; None for one that is new."""
    row = (await conn.execute(_CURSOR, {"of_channel": channel})).mappings().one_or_none()
    return Cursor(**row) if row else None


async def begin(conn: Connection, channel: str, seq: int) -> None:
    """Let a new channel read the events after this one; a channel that has a cursor keeps it.

    If two processes do so at the same moment, one gets IntegrityError; the cursor exists when it reads again.
    """
    known = select(notification_cursors.c.channel).where(notification_cursors.c.channel == channel)
    row = select(literal(channel), literal(seq)).where(~known.exists())
    await conn.execute(insert(notification_cursors).from_select(["channel", "last_seq"], row))


async def move(conn: Connection, seen: Cursor, *, last_seq: int, gathering_since: str | None) -> bool:
    """Move a channel's cursor; False when another process has moved it since it was seen. Call it first."""
    moved = (
        update(notification_cursors)
        .where(notification_cursors.c.channel == seen.channel, notification_cursors.c.last_seq == seen.last_seq)
        .values(last_seq=last_seq, gathering_since=gathering_since)
    )
    return (await conn.execute(moved)).rowcount == 1


async def add(conn: Connection, new: Sequence[Delivery]) -> None:
    """Insert deliveries."""
    if new:
        await conn.execute(insert(deliveries), [vars(delivery) for delivery in new])


async def gathering(conn: Connection, channel: str) -> Delivery | None:
    """Return the channel's delivery that still takes events, or None. No one can claim it before this transaction ends."""
    query = select(deliveries).where(deliveries.c.status == "gathering", deliveries.c.channel == channel)
    newest = query.order_by(deliveries.c.created_at.desc()).limit(1).with_for_update()
    row = (await conn.execute(newest)).mappings().one_or_none()
    return Delivery(**row) if row else None


async def extend(conn: Connection, delivery_id: str, *, payload: str, last_seq: int) -> None:
    """Give the delivery that :func:`gathering` returned in this transaction its new payload."""
    query = update(deliveries).where(deliveries.c.id == delivery_id, deliveries.c.status == "gathering")
    await conn.execute(query.values(payload=payload, last_seq=last_seq))


async def next_due(conn: Connection, channel: str) -> Delivery | None:
    """Return the channel's open delivery whose time comes first, come or not; None when nothing is open."""
    row = (await conn.execute(_DUE, {"of_channel": channel})).mappings().one_or_none()
    return Delivery(**row) if row else None


async def claim(conn: Connection, seen: Delivery, *, at: datetime, until: datetime) -> Delivery | None:
    """Take a delivery for sending until ``until``; None when someone else has. Returns it as it is now.

    The attempt is logged here, without an answer: so it shows when its sender dies on the way.
    """
    taken = (
        update(deliveries)
        .where(
            deliveries.c.id == seen.id,
            deliveries.c.status == seen.status,
            deliveries.c.next_attempt_at == seen.next_attempt_at,
        )
        .values(status="sending", attempts=deliveries.c.attempts + 1, next_attempt_at=as_text(until))
    )
    row = (await conn.execute(taken.returning(*deliveries.c))).mappings().one_or_none()
    if row is None:
        return None
    delivery = Delivery(**row)
    await _log(conn, delivery, at)
    return delivery


async def add_claimed(conn: Connection, delivery: Delivery, *, at: datetime, until: datetime) -> Delivery:
    """Insert a delivery that the caller sends itself, its first attempt begun."""
    own = {"status": "sending", "attempts": 1, "next_attempt_at": as_text(until)}
    claimed = Delivery(**{**vars(delivery), **own})
    await add(conn, [claimed])
    await _log(conn, claimed, at)
    return claimed


async def finish(
    conn: Connection,
    claimed: Delivery,
    end: AttemptEnd,
    *,
    status: Literal["delivered", "waiting", "failed"],
    due: datetime,
) -> None:
    """Log the end of an attempt and what follows from it. ``due``: when a ``waiting`` delivery is sent again.

    An attempt whose claim was over changes nothing about a newer one, unless it was delivered after all.
    """
    await conn.execute(
        update(delivery_attempts)
        .where(delivery_attempts.c.delivery_id == claimed.id, delivery_attempts.c.n == claimed.attempts)
        .values(answer=end.answer, milliseconds=end.milliseconds)
    )
    ended = status != "waiting"
    query = update(deliveries).where(deliveries.c.id == claimed.id, deliveries.c.status != "delivered")
    if status != "delivered":
        query = query.where(deliveries.c.status == "sending", deliveries.c.attempts == claimed.attempts)
    await conn.execute(
        query.values(
            status=status,
            next_attempt_at=as_text(end.at if ended else due),
            ended_at=as_text(end.at) if ended else None,
        )
    )


async def send_again(conn: Connection, delivery_id: str, *, at: datetime) -> bool:
    """Make a failed or waiting delivery due now; False for one that is on its way, delivered or unknown."""
    query = (
        update(deliveries)
        .where(deliveries.c.id == delivery_id, deliveries.c.status.in_(("failed", "waiting")))
        .values(status="waiting", next_attempt_at=as_text(at), ended_at=None)
    )
    return (await conn.execute(query)).rowcount == 1


async def end_open(conn: Connection, *, last_seq: int, at: datetime) -> int:
    """Give up everything that waits, and let each channel read on after this event. Returns how many deliveries ended."""
    given_up = update(deliveries).where(deliveries.c.status.in_(OPEN))
    ended = await conn.execute(given_up.values(status="failed", ended_at=as_text(at)))
    await conn.execute(update(notification_cursors).values(last_seq=last_seq, gathering_since=None))
    return ended.rowcount


async def fail_forgotten(conn: Connection, channels: Sequence[str], *, before: datetime, at: datetime) -> int:
    """End what no one will send: open deliveries from before ``before`` of channels other than these."""
    query = (
        update(deliveries)
        .where(
            deliveries.c.status.in_(OPEN),
            deliveries.c.created_at < as_text(before),
            deliveries.c.channel.not_in(list(channels)),
        )
        .values(status="failed", ended_at=as_text(at))
    )
    return (await conn.execute(query)).rowcount


async def backlogs(conn: Connection, *, failed_since: datetime) -> list[Backlog]:
    """Return what each channel has not delivered, by the channel's name; those that have nothing are left out.

    ``failed_since``: earlier failures don't count.
    """
    is_open = deliveries.c.status.in_(OPEN)
    has_failed = (deliveries.c.status == "failed") & (deliveries.c.created_at >= as_text(failed_since))
    is_retried = is_open & (deliveries.c.attempts > 0)
    query = (
        select(
            deliveries.c.channel,
            func.sum(case((is_retried, 1), else_=0)).label("retried"),
            func.sum(case((is_open, 0), else_=1)).label("failed"),
            func.min(case((is_open, deliveries.c.created_at))).label("oldest_at"),
            func.min(case((is_open, deliveries.c.next_attempt_at))).label("due_since"),
        )
        .where(is_open | has_failed)
        .group_by(deliveries.c.channel)
        .order_by(deliveries.c.channel)
    )
    return [Backlog(**row) for row in (await conn.execute(query)).mappings()]


async def get(conn: Connection, delivery_id: str) -> Delivery | None:
    """Return one delivery, or None."""
    row = (await conn.execute(select(deliveries).where(deliveries.c.id == delivery_id))).mappings().one_or_none()
    return Delivery(**row) if row else None


async def page(
    conn: Connection,
    *,
    limit: int,
    before: tuple[str, str] | None = None,
    channel: str | None = None,
    status: DeliveryStatus | None = None,
) -> list[Delivery]:
    """Return deliveries, newest first. ``before``: (created_at, id) of the last one seen."""
    query = select(deliveries).order_by(deliveries.c.created_at.desc(), deliveries.c.id.desc()).limit(limit)
    if channel is not None:
        query = query.where(deliveries.c.channel == channel)
    if status is not None:
        query = query.where(deliveries.c.status == status)
    if before is not None:
        query = query.where(tuple_(deliveries.c.created_at, deliveries.c.id) < tuple_(*before))
    return [Delivery(**row) for row in (await conn.execute(query)).mappings()]


async def attempts_of(conn: Connection, delivery_ids: Sequence[str]) -> Mapping[str, list[Attempt]]:
    """Return delivery id → its attempts, first one first; those without any are left out."""
    by_delivery: dict[str, list[Attempt]] = defaultdict(list)
    query = (
        select(delivery_attempts)
        .where(delivery_attempts.c.delivery_id.in_(list(delivery_ids)))
        .order_by(delivery_attempts.c.delivery_id, delivery_attempts.c.n)
    )
    for row in (await conn.execute(query)).mappings():
        by_delivery[row["delivery_id"]].append(Attempt(**row))
    return by_delivery


async def _log(conn: Connection, claimed: Delivery, at: datetime) -> None:
    row = {"delivery_id": claimed.id, "n": claimed.attempts, "started_at": as_text(at), "milliseconds": 0, "answer": ""}
    await conn.execute(insert(delivery_attempts).values(**row))
