"""Cuts, which replace the beginning of a conversation, and the runs that are to begin with a summary.

A cut belongs to the message that was the conversation's head at the time, so every path through that message has it
(the run, its retries, forks from there on), and a fork from an earlier step has the messages themselves, as its past did.
The messages that a cut replaces stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Select, bindparam, func, insert, literal, select, text

from turngate.domain.conversation.messages import Message, user_message
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.runs import messages
from turngate.store.runs.messages import StoredMessage
from turngate.store.storable import StorableText
from turngate.store.tables import messages as messages_table
from turngate.store.tables import summaries, summaries_wanted

CutKind = Literal["summary", "trim"]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a conversation is cut, and what is sent instead.

    ``head_message_id``: the conversation's head at the time. ``covers``: the newest message that the cut replaces.
    ``root_message_id``: the conversation's first message, which is still sent. ``run_id``, ``step``: the request that needed
    it. ``kind``: ``summary``, or ``trim`` without one. ``forced``: the provider had refused the conversation.
    ``text``: all of the message that is sent. ``model``, ``input_tokens``, ``output_tokens``: who wrote it, with which usage.
    ``tokens_before``, ``tokens_after``: the request's size, estimated. ``clipped``: a replaced result was shown in part.
    """

    head_message_id: str
    covers: str
    root_message_id: str
    run_id: str
    step: int
    kind: CutKind
    text: str
    tokens_before: int
    tokens_after: int
    forced: bool = False
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    clipped: bool = False
    created_at: str = ""

    @property
    def message(self) -> Message:
        """The message that is sent in place of those it covers."""
        return user_message(self.text)


def _after_cut_query(*, bounded: bool) -> Select[Any]:
    """Build the walk from a head up to what the first cut on the way covers; ``bounded``: no more than so many messages."""
    message, parent = messages_table, messages_table.alias("parent")
    here, above = summaries.alias("here"), summaries.alias("above")
    start = (
        select(
            message.c.id,
            message.c.parent_id,
            literal(0).label("depth"),
            here.c.covers.label("until"),
            here.c.head_message_id.label("cut"),
        )
        .select_from(message.outerjoin(here, here.c.head_message_id == message.c.id))
        .where(message.c.id == bindparam("head"))
    )
    path = start.cte("path", recursive=True)
    up = (
        select(
            parent.c.id,
            parent.c.parent_id,
            path.c.depth + 1,
            func.coalesce(path.c.until, above.c.covers),
            func.coalesce(path.c.cut, above.c.head_message_id),
        )
        .select_from(
            path.join(parent, parent.c.id == path.c.parent_id).outerjoin(above, above.c.head_message_id == parent.c.id)
        )
        # What a cut covers is not walked: it is where the walk ends.
        .where(path.c.until.is_(None) | (path.c.until != parent.c.id))
    )
    if bounded:
        up = up.where(path.c.depth + 1 < bindparam("newest"))
    path = path.union_all(up)
    return select(message, path.c.cut.label("cut")).join(path, message.c.id == path.c.id).order_by(path.c.depth.desc())


# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_AFTER_CUT = _after_cut_query(bounded=False)
_NEWEST_AFTER_CUT = _after_cut_query(bounded=True)

# Both databases know this form, and SQLAlchemy has it only per dialect. Two attempts at one step may both write one.
_KEEP = text(
    "INSERT INTO summaries (head_message_id, covers, root_message_id, run_id, step, kind, forced, text, model, "
    "input_tokens, output_tokens, tokens_before, tokens_after, clipped, created_at) VALUES (:head_message_id, :covers, "
    ":root_message_id, :run_id, :step, :kind, :forced, :text, :model, :input_tokens, :output_tokens, :tokens_before, "
    ":tokens_after, :clipped, :created_at) ON CONFLICT DO NOTHING"
).bindparams(bindparam("text", type_=summaries.c.text.type), bindparam("model", type_=StorableText()))


async def path_after_cut(
    conn: Connection, head_id: str, *, newest: int | None = None
) -> tuple[list[StoredMessage], Cut | None]:
    """Return the messages after the newest cut on the path to this head, oldest first, and that cut; None: there is no cut.

    ``newest``: at most this many messages. The cost depends on what is returned, not on the length of the conversation.
    """
    query = _AFTER_CUT if newest is None else _NEWEST_AFTER_CUT
    bound = {"head": head_id} if newest is None else {"head": head_id, "newest": newest}
    rows = (await conn.execute(query, bound)).mappings().all()
    oldest = rows[0]["cut"]  # the walk carries the cut along, so the last row has it
    return [messages.stored(row) for row in rows], None if oldest is None else await get(conn, oldest)


async def get(conn: Connection, head_id: str) -> Cut | None:
    """Return the cut that was made at this head, or None."""
    query = select(summaries).where(summaries.c.head_message_id == head_id)
    row = (await conn.execute(query)).mappings().one_or_none()
    return Cut(**row) if row else None


async def of_runs(conn: Connection, run_ids: Sequence[str]) -> list[Cut]:
    """Return the cuts that were made for these runs' requests, by run in this order, and by step."""
    query = select(summaries).where(summaries.c.run_id.in_(run_ids)).order_by(summaries.c.step)
    cuts = [Cut(**row) for row in (await conn.execute(query)).mappings()]
    places = {run_id: place for place, run_id in enumerate(run_ids)}
    return sorted(cuts, key=lambda cut: places[cut.run_id])


async def keep(conn: Connection, cut: Cut) -> bool:
    """Store a cut; False if its head has one already.

    The first one stays, so that every later request sends the same; only a ``forced`` one replaces another, which the
    provider has just refused.
    """
    if cut.forced:
        await conn.execute(summaries.delete().where(summaries.c.head_message_id == cut.head_message_id))
    return (await conn.execute(_KEEP, {**asdict(cut), "created_at": as_text(now())})).rowcount == 1


async def want(conn: Connection, run_id: str) -> None:
    """Note that a run is to begin with a summary of the past that it shares with the run it was forked from."""
    await conn.execute(insert(summaries_wanted).values(run_id=run_id, created_at=as_text(now())))


async def wanted(conn: Connection, run_id: str) -> bool:
    """Tell whether a run is still to begin with a summary."""
    return (await conn.execute(select(literal(1)).where(summaries_wanted.c.run_id == run_id))).first() is not None


async def clear_wanted(conn: Connection, run_id: str) -> bool:
    """Record that a run needs no summary any more; False if another attempt did so before."""
    return (await conn.execute(summaries_wanted.delete().where(summaries_wanted.c.run_id == run_id))).rowcount == 1
