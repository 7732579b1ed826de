"""Conversations: a tree of immutable messages. A fork shares its past at no cost, because each message names its parent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError
from sqlalchemy import CTE, Select, bindparam, insert, literal, select, update
from sqlalchemy.engine import RowMapping

from turngate.domain.conversation.messages import Message, Part
from turngate.domain.digest import derived_id
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events.row_digests import row_digest
from turngate.store.tables import conversations, erasures, messages

_PARTS: TypeAdapter[tuple[Part, ...]] = TypeAdapter(tuple[Part, ...])


def _walk(*, newest: bool = False) -> CTE:
    """Build the walk from a head up to the root, by parent; ``newest``: only so many messages of it."""
    start = messages.c.id == bindparam("head")
    path = (
        select(messages.c.id, messages.c.parent_id, literal(0).label("depth")).where(start).cte("path", recursive=True)
    )
    parent = messages.alias("parent")
    up = select(parent.c.id, parent.c.parent_id, path.c.depth + 1).join(path, parent.c.id == path.c.parent_id)
    return path.union_all(up.where(path.c.depth + 1 < bindparam("newest")) if newest else up)


def _along(path: CTE) -> Select[Any]:
    return select(messages).join(path, messages.c.id == path.c.id).order_by(path.c.depth.desc())


def _root_query() -> Select[Any]:
    path = _walk()
    return select(messages).join(path, messages.c.id == path.c.id).where(path.c.parent_id.is_(None))


# Statements of the hot path are built once: building one and finding its compiled form costs five times its execution.
_INSERT = insert(messages)
_CREATE = insert(conversations)
_SET_HEAD = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"))
    .values(head_message_id=bindparam("head"))
)
_ERASURE = (
    select(erasures.c.id)
    .where(erasures.c.conversation_id == conversations.c.id)
    .order_by(erasures.c.what, erasures.c.created_at.desc())
    .limit(1)
    .scalar_subquery()
    .label("erasure_id")
)
_END = select(conversations.c.head_message_id, _ERASURE).where(conversations.c.id == bindparam("conversation"))
_BY_ID = select(messages).where(messages.c.id == bindparam("message"))
_PATH = _along(_walk())
_NEWEST = _along(_walk(newest=True))
_ROOT = _root_query()


@dataclass(frozen=True, kw_only=True)
class StoredMessage:
    """A message with its place in the tree. ``run_id``/``step``: who wrote it; step None for a user's message."""

    id: str
    parent_id: str | None
    run_id: str | None
    step: int | None
    created_at: str
    message: Message


@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message as it is appended. ``id``: the caller's, so that a retry collides instead of doubling.

    ``run_id``/``step``: as in :class:`StoredMessage`.
    """

    id: str
    parent_id: str | None
    conversation_id: str
    message: Message
    run_id: str | None = None
    step: int | None = None


async def create_conversation(conn: Connection, conversation_id: str) -> None:
    """Insert an empty conversation."""
    await conn.execute(_CREATE, {"id": conversation_id, "created_at": as_text(now()), "data_key": None})


async def head_of(conn: Connection, conversation_id: str) -> str | None:
    """Return the id of the conversation's newest closed message; None when it has none or does not exist."""
    query = select(conversations.c.head_message_id).where(conversations.c.id == conversation_id)
    return (await conn.execute(query)).scalar_one_or_none()


@dataclass(frozen=True, kw_only=True)
class ConversationEnd:
    """Where a conversation ends. ``erasure_id``: an erasure of its content, of all of it rather than of results."""

    head_message_id: str | None
    erasure_id: str | None


async def end_of(conn: Connection, conversation_id: str) -> ConversationEnd | None:
    """Return the end of a conversation; None: there is no such conversation."""
    row = (await conn.execute(_END, {"conversation": conversation_id})).one_or_none()
    return None if row is None else ConversationEnd(head_message_id=row.head_message_id, erasure_id=row.erasure_id)


async def conversation_exists(conn: Connection, conversation_id: str) -> bool:
    """Tell whether there is such a conversation."""
    query = select(literal(1)).where(conversations.c.id == conversation_id)
    return (await conn.execute(query)).first() is not None


async def set_head(conn: Connection, conversation_id: str, message_id: str) -> None:
    """Move the conversation's head; only ever to a message after which every call is answered."""
    await conn.execute(_SET_HEAD, {"conversation": conversation_id, "head": message_id})


async def create_with_past(conn: Connection, conversation_id: str, past: Sequence[Message]) -> None:
    """Insert a conversation that begins with these messages of no run; every call in them is answered."""
    await create_conversation(conn, conversation_id)
    head = None
    for number, message in enumerate(past):
        message_id = derived_id("msg", conversation_id, str(number))
        await append(conn, NewMessage(id=message_id, parent_id=head, conversation_id=conversation_id, message=message))
        head = message_id
    if head is not None:
        await set_head(conn, conversation_id, head)


async def append(conn: Connection, new: NewMessage) -> None:
    """Insert one immutable message. Raises sqlalchemy's IntegrityError when its id was used."""
    await conn.execute(_INSERT, row_of(new))


def digest(new: NewMessage, nonce: str) -> str:
    """Return the digest of a message for the log. ``nonce``: of the run that writes it."""
    return digest_of_row(row_of(new), nonce)


def digest_of_row(row: Mapping[str, Any] | RowMapping, nonce: str) -> str:
    """Return the digest of a message as it is stored; equal to that of the same message when it was appended."""
    return row_digest("message", dict(row), nonce)


def row_of(new: NewMessage) -> dict[str, Any]:
    """Return the row of a new message."""
    message = new.message
    return {
        "id": new.id,
        "parent_id": new.parent_id,
        "conversation_id": new.conversation_id,
        "run_id": new.run_id,
        "step": new.step,
        "role": message.role,
        "parts": _written(message),
        "provider_options": json.dumps(message.provider_options, ensure_ascii=False, separators=(",", ":")),
        "created_at": as_text(now()),
    }


def _written(message: Message) -> str:
    """Return the parts as JSON; the column fixes what cannot be encoded, such as half a surrogate pair in a response."""
    try:
        return _PARTS.dump_json(message.parts).decode()
    except PydanticSerializationError:
        return json.dumps(_PARTS.dump_python(message.parts, mode="json"), ensure_ascii=False, separators=(",", ":"))


async def rows_of_run(conn: Connection, run_id: str) -> list[RowMapping]:
    """Return the rows of the messages that this run wrote."""
    return list((await conn.execute(select(messages).where(messages.c.run_id == run_id))).mappings())


async def path_to(conn: Connection, head_id: str | None) -> list[StoredMessage]:
    """Return the messages from the root to ``head_id``, oldest first; empty when it is None."""
    if head_id is None:
        return []
    return [stored(row) for row in (await conn.execute(_PATH, {"head": head_id})).mappings()]


async def newest_to(conn: Connection, head_id: str, count: int) -> list[StoredMessage]:
    """Return the last ``count`` messages of the path to ``head_id``, oldest first; all of it when there are no more."""
    rows = await conn.execute(_NEWEST, {"head": head_id, "newest": count})
    return [stored(row) for row in rows.mappings()]


async def root_of(conn: Connection, head_id: str) -> StoredMessage:
    """Return the first message of the path to ``head_id``. Takes as long as the path is."""
    return stored((await conn.execute(_ROOT, {"head": head_id})).mappings().one())


async def get(conn: Connection, message_id: str) -> Message:
    """Return one message; raises sqlalchemy's NoResultFound when there is none (a bug, never a user's mistake)."""
    row = (await conn.execute(_BY_ID, {"message": message_id})).mappings().one()
    return from_row(row)


def stored(row: RowMapping) -> StoredMessage:
    """Return the message of a row of its table."""
    return StoredMessage(
        id=row["id"],
        parent_id=row["parent_id"],
        run_id=row["run_id"],
        step=row["step"],
        created_at=row["created_at"],
        message=from_row(row),
    )


def from_row(row: Mapping[str, Any] | RowMapping) -> Message:
    """Return the message of a row of its table, without its place."""
    return Message(
        role=row["role"],
        parts=_PARTS.validate_json(row["parts"]),
        provider_options=json.loads(row["provider_options"]),
    )
