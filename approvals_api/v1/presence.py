"""Presence: who looks at a request now."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from approvals_api.http.dependencies import ReaderDep, ServicesDep
from approvals_api.requests import presence
from approvals_api.v1.parameters import RequestId
from turngate.store.requests.presence import Looking
from turngate.wire.presence import LookingView, Presence

router = APIRouter(tags=["requests"])


@router.get("/requests/{request_id}/presence")
async def get_presence(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> Presence:
    """Show who else has looked at the request within the last minute."""
    return _presence(await presence.who_looks(services, principal, request_id))


@router.post("/requests/{request_id}/presence")
async def keep_presence(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> Presence:
    """Say that one still looks at the request, and see who else does. A page does so every half minute."""
    return _presence(await presence.still_looking(services, principal, request_id))


def _presence(looking: Sequence[Looking]) -> Presence:
    return Presence(looking=[LookingView.model_validate(each) for each in looking])
