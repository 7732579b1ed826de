"""Comments on a request."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter

from approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from approvals_api.http.problems import problems
from approvals_api.paging import decode_cursor
from approvals_api.requests import comments
from approvals_api.v1.bodies import CommentBody
from approvals_api.v1.parameters import Cursor, IdempotencyKey, Limit, RequestId
from turngate.wire.comments import CommentView
from turngate.wire.view import Page

router = APIRouter(tags=["requests"])


@router.get("/requests/{request_id}/comments")
async def list_comments(
    request_id: RequestId,
    services: ServicesDep,
    _principal: ReaderDep,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[CommentView]:
    """List a request's comments, oldest first."""
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await comments.comment_page(conn, request_id, limit=limit, after=after)


@router.post(
    "/requests/{request_id}/comments",
    status_code=HTTPStatus.CREATED,
    responses=problems({409: "`idempotency_key_reused`"}),
)
async def add_comment(
    request_id: RequestId,
    body: CommentBody,
    services: ServicesDep,
    principal: OperatorDep,
    idempotency_key: IdempotencyKey = None,
) -> CommentView:
    """Comment on a request, pending or ended, for other people; no model reads it."""
    return await comments.comment(services, principal, request_id, text=body.text, idempotency_key=idempotency_key)
