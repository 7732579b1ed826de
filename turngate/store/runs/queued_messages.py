"""Messages that were sent to a live run: they wait here until its next step or the run after it takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, exists, insert, select, update

from turngate.domain.requests import WhileRunning
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.tables import queued_messages, runs

_WAITING = (
    select(queued_messages)
    .where(queued_messages.c.run_id == bindparam("run"), queued_messages.c.taken_at.is_(None))
    .order_by(queued_messages.c.created_at, queued_messages.c.id)
)
WAITS_FOR_NEXT_STEP: Final = exists().where(
    queued_messages.c.run_id == bindparam("run"),
    queued_messages.c.taken_at.is_(None),
    queued_messages.c.while_running != "queue",
)
"""Whether a message waits for the run's next step, as a column of a query."""
WAITS: Final = exists().where(queued_messages.c.run_id == bindparam("run"), queued_messages.c.taken_at.is_(None))
"""Whether a message waits for the run, or for the one after it, as a column of a query."""


@dataclass(frozen=True, kw_only=True)
class QueuedMessage:
    """One message. ``id``: the conversation's message gets it, too. ``run_id``: the run that waits for, or took, it.

    ``fingerprint``: equal for the same content from the same person. ``created_at``: set when it is stored.
    ``taken_at``: None while it waits.
    """

    id: str
    run_id: str
    text: str
    while_running: WhileRunning
    sent_by: str
    fingerprint: str
    created_at: str = ""
    taken_at: str | None = None


def digest(message: QueuedMessage, nonce: str) -> str:
    """Return the digest for the log of what was sent; not of which run takes it, and when.

    ``nonce``: of the run that was live, whose log has it.
    """
    return row_digest("queued", vars(message), nonce)


async def add(conn: Connection, message: QueuedMessage, nonce: str) -> None:
    """Store a message for a live run, with its event; the caller holds the run (:func:`turngate.store.runs.runs.hold_live`).

    ``nonce``: the run's. A message without this event is never taken (:mod:`turngate.store.live.sent_messages`).
    """
    await conn.execute(insert(queued_messages).values(**{**vars(message), "created_at": as_text(now())}))
    payload = {"message_id": message.id, "while_running": message.while_running, "by": message.sent_by}
    digests = events.digests(queued={message.id: digest(message, nonce)})
    await events.append(conn, message.run_id, [("message.queued", {**payload, **digests})])


async def get(conn: Connection, message_id: str) -> QueuedMessage | None:
    """Return one message, or None."""
    row = (
        (await conn.execute(select(queued_messages).where(queued_messages.c.id == message_id))).mappings().one_or_none()
    )
    return QueuedMessage(**row) if row else None


async def waiting(conn: Connection, run_id: str) -> list[QueuedMessage]:
    """Return the messages that wait for this run, oldest first."""
    return [QueuedMessage(**row) for row in (await conn.execute(_WAITING, {"run": run_id})).mappings()]


async def taken_by(conn: Connection, run_id: str) -> list[QueuedMessage]:
    """Return the messages that this run took, oldest first: its input, if it began with one, and what was said to it."""
    query = (
        select(queued_messages)
        .where(queued_messages.c.run_id == run_id, queued_messages.c.taken_at.is_not(None))
        .order_by(queued_messages.c.created_at, queued_messages.c.id)
    )
    return [QueuedMessage(**row) for row in (await conn.execute(query)).mappings()]


async def take(conn: Connection, message_id: str, *, run_id: str) -> None:
    """Mark a message as taken by this run."""
    query = update(queued_messages).where(queued_messages.c.id == message_id)
    await conn.execute(query.values(run_id=run_id, taken_at=as_text(now())))


async def hand_on(conn: Connection, run_id: str, *, to: str) -> None:
    """Let the messages that still wait for a run that has ended wait for the one after it."""
    still = queued_messages.c.run_id == run_id, queued_messages.c.taken_at.is_(None)
    await conn.execute(update(queued_messages).where(*still).values(run_id=to))


async def superseding_in_live_runs(conn: Connection) -> list[QueuedMessage]:
    """Return the messages that are to end what waits in runs that live, oldest first."""
    query = (
        select(queued_messages)
        .join(runs, runs.c.id == queued_messages.c.run_id)
        .where(
            queued_messages.c.taken_at.is_(None),
            queued_messages.c.while_running == "supersede",
            runs.c.status == "running",
        )
        .order_by(queued_messages.c.created_at, queued_messages.c.id)
    )
    return [QueuedMessage(**row) for row in (await conn.execute(query)).mappings()]
