"""Grants: listed, made, and what one would let through."""

from __future__ import annotations

from typing import Literal

from turngate.domain.policy.grants import GrantPattern, GrantScope
from turngate.wire.view import View


class GrantView(View):
    """A grant. ``uses`` of ``max_uses`` calls went through. ``ended``: why it lets nothing through any more; None: it stands.

    ``says``: the exact pattern in words. ``request_id``: whose decision made it; None: it was made by itself.
    """

    id: str
    pattern: GrantPattern
    says: str
    scope: GrantScope
    run_id: str | None
    agent: str | None
    expires_at: str
    max_uses: int
    uses: int
    note: str
    created_by: str
    created_at: str
    request_id: str | None
    revoked_at: str | None
    revoked_by: str | None
    ended: Literal["revoked", "expired", "used_up"] | None


class GrantUseView(View):
    """One call that a grant let through."""

    run_id: str
    tool_call_id: str
    used_at: str


class GrantDetail(GrantView):
    """A grant with the calls it let through, newest first, at most 200."""

    used_by: list[GrantUseView]


class GrantPreview(View):
    """What a grant made from a request would be. ``ungrantable``: why none can answer calls like it; else None.

    ``would_have_covered``: how many of the ``looked_at`` newest calls of this tool, by scope.
    """

    request_id: str
    pattern: GrantPattern | None
    says: str
    ungrantable: str | None
    looked_at: int
    would_have_covered: dict[GrantScope, int]
