"""Who is asking."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.http.dependencies import AnyoneDep
from turngate.wire.people import MeView

router = APIRouter(tags=["people"])


@router.get("/me")
async def get_me(principal: AnyoneDep) -> MeView:
    """Show who one is here: name, role, scopes, and how one came in."""
    return MeView(
        name=principal.name,
        role=principal.role,
        scopes=sorted(principal.scopes),
        via=principal.via,
        machine=principal.machine,
        session_id=principal.session_id,
    )
