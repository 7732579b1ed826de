"""Calls about grants: see them, try one, make one, revoke one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from turngate.client.calls import Call, change, get, key_or_new, model, post, segment, without_none
from turngate.domain.policy.grants import WantedGrant
from turngate.wire.grants import GrantDetail, GrantPreview, GrantView
from turngate.wire.view import Page


def list_grants(
    *, status: Literal["standing", "all"] = "standing", limit: int = 50, cursor: str | None = None
) -> Call[Page[GrantView]]:
    """Return one page of grants, newest first: those that let calls through now, or all. ``limit``: 1 to 200."""
    return get("/grants", model(Page[GrantView]), status=status, limit=limit, cursor=cursor)


def get_grant(grant_id: str) -> Call[GrantDetail]:
    """Return a grant with the calls that it let through. Raises NotFoundError."""
    return get(f"/grants/{segment(grant_id)}", model(GrantDetail))


def preview_grant(request_id: str, *, open_arguments: Sequence[str] = ()) -> Call[GrantPreview]:
    """Return the exact pattern that a request's call would be granted by. Changes nothing.

    ``open_arguments``: those that may have any value.
    """
    return post("/grants/preview", model(GrantPreview), {"request_id": request_id, "open": list(open_arguments)})


def create_grant(
    wanted: WantedGrant, *, run_id: str | None = None, agent: str | None = None, idempotency_key: str | None = None
) -> Call[GrantView]:
    """Make a grant by itself. Scope ``run`` has a ``run_id``, ``agent`` an ``agent``, ``everyone`` neither.

    To make one with a decision, give it to ``decide``. Raises ConflictError ``run_ended`` or ``idempotency_key_reused``,
    ForbiddenError where its maker could not decide such calls.
    """
    made = wanted.model_dump(mode="json")
    tool = made["pattern"].pop("tool")
    body = {**made, "tool": tool, **without_none({"run_id": run_id, "agent": agent})}
    return post("/grants", model(GrantView), body, key=key_or_new(idempotency_key))


def revoke_grant(grant_id: str) -> Call[GrantView]:
    """Revoke a grant: no call that has not started by now passes on it. Raises ConflictError ``grant_ended``."""
    return change("DELETE", f"/grants/{segment(grant_id)}", model(GrantView))
