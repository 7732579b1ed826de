"""The messages that wait for a run and that a person did send: before one is taken, its row is compared with the log (I15)."""

from __future__ import annotations

from sqlalchemy import select

from turngate.store import evidence
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.runs import queued_messages
from turngate.store.runs.queued_messages import QueuedMessage
from turngate.store.runs.runs import Run
from turngate.store.tables import messages, runs


async def waiting(conn: Connection, run: Run) -> list[QueuedMessage]:
    """Return the messages that wait for a run, oldest first. One that isn't as it was sent is refused, which the log says.

    Call it in a write transaction. A refused message waits no longer.
    """
    sent: list[QueuedMessage] = []
    for message in await queued_messages.waiting(conn, run.id):
        problem = await _why_refused(conn, run, message)
        if problem is None:
            sent.append(message)
            continue
        await queued_messages.take(conn, message.id, run_id=run.id)
        await events.append(conn, run.id, [("message.refused", {"message_id": message.id, "problem": problem})])
    return sent


async def _why_refused(conn: Connection, run: Run, message: QueuedMessage) -> str | None:
    """Return why a message doesn't count; None: it does. It may have been sent to an earlier run of the conversation."""
    around = select(runs.c.id).where(runs.c.conversation_id == run.conversation_id)
    different = await evidence.rows_difference(conn, [("queued_messages", vars(message))], chains=around)
    if different is not None:
        return different.problem
    taken = await conn.execute(select(messages.c.id).where(messages.c.id == message.id))
    return None if taken.first() is None else f"queued_messages {message.id}, taken_at: a run took it before"
