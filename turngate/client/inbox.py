"""Calls about working through the inbox: claims, comments, who else looks, and filters saved under a name."""

from __future__ import annotations

import httpx

from turngate.client.calls import Call, change, get, key_or_new, model, nothing, post, segment
from turngate.wire.claims import ClaimView
from turngate.wire.comments import CommentView
from turngate.wire.presence import Presence
from turngate.wire.saved_views import SavedViewItem
from turngate.wire.view import Page


def claim_request(request_id: str, *, seconds: int | None = None, take_over: bool = False) -> Call[ClaimView]:
    """Claim a request for a while, or renew one's own claim: nobody else decides it meanwhile.

    ``seconds``: how long; None is the server's own. ``take_over``: also when somebody else's claim stands.
    Raises ConflictError ``claimed`` (``details`` name who, and until when) or ``request_not_pending``.
    """
    body = {"take_over": take_over} if seconds is None else {"seconds": seconds, "take_over": take_over}
    return post(f"/requests/{segment(request_id)}/claim", model(ClaimView), body)


def release_request(request_id: str) -> Call[None]:
    """Give a claim back; without one nothing happens. Raises ConflictError ``claimed``: it is somebody else's."""
    return change("DELETE", f"/requests/{segment(request_id)}/claim", nothing)


def list_comments(request_id: str, *, limit: int = 50, cursor: str | None = None) -> Call[Page[CommentView]]:
    """Return one page of a request's comments, oldest first. ``limit``: 1 to 200."""
    return get(f"/requests/{segment(request_id)}/comments", model(Page[CommentView]), limit=limit, cursor=cursor)


def add_comment(request_id: str, text: str, *, idempotency_key: str | None = None) -> Call[CommentView]:
    """Comment on a request, pending or ended, for other people; no model reads it."""
    key = key_or_new(idempotency_key)
    return post(f"/requests/{segment(request_id)}/comments", model(CommentView), {"text": text}, key=key)


def get_presence(request_id: str) -> Call[Presence]:
    """Return who else has looked at the request within the last minute."""
    return get(f"/requests/{segment(request_id)}/presence", model(Presence))


def keep_presence(request_id: str) -> Call[Presence]:
    """Say that one still looks at the request, and return who else does."""
    return change("POST", f"/requests/{segment(request_id)}/presence", model(Presence))


def list_views() -> Call[list[SavedViewItem]]:
    """Return one's own saved views, by name."""
    return get("/views", _views)


def get_view(name: str) -> Call[SavedViewItem]:
    """Return one of one's own saved views. Raises NotFoundError."""
    return get(f"/views/{segment(name)}", model(SavedViewItem))


def save_view(name: str, query: str) -> Call[SavedViewItem]:
    """Save a filter of the inbox under a name, in place of what was there.

    ``query``: as in the inbox's URL, such as ``status=pending&agent=support``.
    """
    return change("PUT", f"/views/{segment(name)}", model(SavedViewItem), {"query": query})


def remove_view(name: str) -> Call[None]:
    """Remove one of one's own saved views; one that is not there is fine."""
    return change("DELETE", f"/views/{segment(name)}", nothing)


def _views(response: httpx.Response) -> list[SavedViewItem]:
    return Page[SavedViewItem].model_validate_json(response.content).items
