"""Comments of people on a request, for each other."""

from __future__ import annotations

from turngate.approvals_api.idempotency import KeyedChange, once
from turngate.approvals_api.lookups import existing_request
from turngate.approvals_api.paging import one_page
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.views import masks_of
from turngate.approvals_api.runs.masks import Masks
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import require_storable
from turngate.domain.errors import InvalidInputError
from turngate.store.database import Connection
from turngate.store.requests import comments
from turngate.store.requests.comments import MAX_CHARS, Comment
from turngate.wire.requests import CommentView
from turngate.wire.view import Page


async def comment(
    services: Services, principal: Principal, request_id: str, *, text: str, idempotency_key: str | None = None
) -> CommentView:
    """Add a comment to a request, pending or ended; the same key with the same text gets the first one again.

    Raises:
        NotFoundError: no such request.
        InvalidInputError: not 1 to 10,000 characters, or only white space.
        ConflictError: ``idempotency_key_reused``.
        ForbiddenError: ``missing_scope``: only people who may decide can comment.
    """
    principal.require("requests:decide")
    if not text.strip() or len(text) > MAX_CHARS:
        message = f"a comment has 1 to {MAX_CHARS:,} characters, and not only white space"
        raise InvalidInputError(f"/text: {message}", errors=[{"pointer": "/text", "message": message}])
    require_storable(text, "/text")
    async with services.database.read() as conn:
        request = await existing_request(conn, request_id)
        masks = await masks_of(conn, request)

    async def add(conn: Connection) -> CommentView:
        added = await comments.add(conn, run_id=request.run_id, request_id=request.id, author=principal.name, text=text)
        return _comment_view(added, masks)

    content = ("comment", request_id, text)
    change = KeyedChange(key=idempotency_key, content=content, answer=CommentView, act=add)
    return await once(services, principal, change)


async def comment_page(
    conn: Connection, request_id: str, *, limit: int, after: tuple[str, str] | None = None
) -> Page[CommentView]:
    """Return one page of a request's comments, oldest first. Raises NotFoundError."""
    request = await existing_request(conn, request_id)
    rows = await comments.of_request(conn, request_id, limit=limit + 1, after=after)
    listed, more = one_page(rows, limit)
    masks = await masks_of(conn, request) if listed else Masks()
    return Page(items=[_comment_view(each, masks) for each in listed], next_cursor=more)


def _comment_view(comment: Comment, masks: Masks) -> CommentView:
    return masks.view(CommentView.model_validate(comment), "text")
