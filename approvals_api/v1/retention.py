"""Retention: what is kept how long, legal holds, erasures. For admins."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from turngate.approvals_api.http.dependencies import AdminDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.retention import erase, holds, overview
from turngate.approvals_api.retention.erase import MAX_REASON_CHARS
from turngate.approvals_api.retention.overview import ConfirmedErasure
from turngate.approvals_api.validation.text import STORABLE
from turngate.wire.retention import ErasureDone, ErasurePreview, HoldView, RetentionView

router = api_router("retention")

HoldId = Annotated[str, Path(description="The hold's id, such as `hold_91ab…`.", max_length=64, pattern=STORABLE)]
Target = Annotated[str, Field(min_length=1, max_length=255, pattern=STORABLE)]
Reason = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_REASON_CHARS, pattern=STORABLE, description="The audit log keeps it: name no one."
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class HoldBody(_Body):
    """Keep a conversation, a run's conversation, or everything of an agent."""

    target: Target
    reason: Reason


class ReleaseBody(_Body):
    """Remove a hold."""

    reason: Reason


class ErasurePreviewBody(_Body):
    """A conversation, or a run of it. ``with_forks``: its forks and dry runs would go, too."""

    target: Target
    with_forks: bool = False


class ErasureBody(_Body):
    """Erase a conversation (its id, or that of a run in it), or what is stored of a person (their name).

    ``confirm``: the target again, exactly. ``with_forks``: its forks and dry runs, too. ``interrupt``: end its live runs first.
    """

    target: Target
    confirm: Target
    reason: Reason
    with_forks: bool = False
    interrupt: bool = False


@router.get("/retention")
async def get_retention(services: ServicesDep, _principal: AdminDep) -> RetentionView:
    """Show the retention rules with what each would erase now, the last runs, the legal holds, and what was erased."""
    return await overview.retention_view(services)


@router.post(
    "/retention/holds",
    status_code=HTTPStatus.CREATED,
    responses=problems({404: "`not_found`: there is no such conversation, run or agent"}),
)
async def add_hold(body: HoldBody, services: ServicesDep, principal: AdminDep) -> HoldView:
    """Put a legal hold on a conversation or an agent: nothing of it is erased until someone removes the hold."""
    return await holds.add(services.database, body.target, reason=body.reason, by=principal.name)


@router.post(
    "/retention/holds/{hold_id}/release",
    responses=problems({404: "`not_found`: no such hold", 409: "`hold_ended`: it was removed already"}),
)
async def release_hold(hold_id: HoldId, body: ReleaseBody, services: ServicesDep, principal: AdminDep) -> HoldView:
    """Remove a legal hold."""
    return await holds.remove(services.database, hold_id, reason=body.reason, by=principal.name)


@router.post(
    "/retention/erasures/preview",
    responses=problems({404: "`not_found`: there is no such conversation or run"}),
)
async def preview_erasure(body: ErasurePreviewBody, services: ServicesDep, _principal: AdminDep) -> ErasurePreview:
    """Show what erasing a conversation would empty, and what keeps it. Changes nothing."""
    return await erase.preview(services.database, body.target, with_forks=body.with_forks)


@router.post(
    "/retention/erasures",
    responses=problems(
        {
            404: "`not_found`: nothing is stored under this id or name",
            409: "`held`, `run_live`, `forked` or `person_involved`: it has to stay, or something has to end or go with it "
            "first; `last_admin`: the person is the only one",
            422: "`not_confirmed`: `confirm` is not the target",
        }
    ),
)
async def erase_content(body: ErasureBody, services: ServicesDep, principal: AdminDep) -> ErasureDone:
    """Erase the content of a conversation, or what is stored of a person. It can't be undone.

    Ids, times, verdicts, digests and the audit log stay, and the log says who erased it, when and why. The database's files
    are not rewritten: `remains` says where old bytes may still be.
    """
    return await overview.erase_confirmed(services, principal, ConfirmedErasure(**dict(body)))
