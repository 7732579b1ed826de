"""Comments: what people say to each other about a request. No model ever reads them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

from sqlalchemy import insert, select, tuple_

from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest
from turngate.store.tables import comments, runs

MAX_CHARS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class Comment:
    """One comment."""

    id: str
    request_id: str
    author: str
    text: str
    created_at: str


async def add(conn: Connection, *, run_id: str, request_id: str, author: str, text: str) -> Comment:
    """Add a comment, with its event, which does not repeat the text. Raises IntegrityError for an unknown request."""
    comment = Comment(
        id=f"cm_{secrets.token_hex(12)}", request_id=request_id, author=author, text=text, created_at=as_text(now())
    )
    await conn.execute(insert(comments).values(**vars(comment)))
    payload = {"request_id": request_id, "comment_id": comment.id, "by": author}
    nonce = (await conn.execute(select(runs.c.nonce).where(runs.c.id == run_id))).scalar_one()
    digests = events.digests(comment={comment.id: row_digest("comment", vars(comment), nonce)})
    await events.append(conn, run_id, [("request.commented", {**payload, **digests})])
    return comment


async def of_request(
    conn: Connection, request_id: str, *, limit: int, after: tuple[str, str] | None = None
) -> list[Comment]:
    """Return comments, oldest first. ``after``: (created_at, id) of the last one seen."""
    query = (
        select(comments)
        .where(comments.c.request_id == request_id)
        .order_by(comments.c.created_at, comments.c.id)
        .limit(limit)
    )
    if after is not None:
        query = query.where(tuple_(comments.c.created_at, comments.c.id) > tuple_(*after))
    return [Comment(**row) for row in (await conn.execute(query)).mappings()]
