"""Comments on a request."""

from __future__ import annotations

from turngate.wire.view import View


class CommentView(View):
    """What somebody said about a request, to other people; no model reads it."""

    id: str
    request_id: str
    author: str
    text: str
    created_at: str
