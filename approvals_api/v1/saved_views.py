"""Saved views: filters of the inbox under names, each person's own."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path

from approvals_api.http.dependencies import ReaderDep, ServicesDep
from approvals_api.http.problems import problems
from approvals_api.requests import saved_views
from approvals_api.requests.saved_views import MAX_NAME_CHARS
from approvals_api.v1.bodies import SavedViewBody
from approvals_api.v1.parameters import STORABLE
from turngate.wire.saved_views import SavedViewItem
from turngate.wire.view import Page

router = APIRouter(tags=["requests"])

ViewName = Annotated[
    str, Path(description="The view's name, percent-encoded.", max_length=MAX_NAME_CHARS, pattern=STORABLE)
]


@router.get("/views")
async def list_views(services: ServicesDep, principal: ReaderDep) -> Page[SavedViewItem]:
    """List one's own saved views, by name."""
    return Page(items=[SavedViewItem.model_validate(each) for each in await saved_views.every(services, principal)])


@router.get("/views/{name}")
async def get_view(name: ViewName, services: ServicesDep, principal: ReaderDep) -> SavedViewItem:
    """Show one of one's own saved views."""
    return SavedViewItem.model_validate(await saved_views.existing(services, principal, name))


@router.put("/views/{name}", responses=problems({409: "`too_many_views`"}))
async def save_view(name: ViewName, body: SavedViewBody, services: ServicesDep, principal: ReaderDep) -> SavedViewItem:
    """Save a filter of the inbox under a name, in place of what was there."""
    return SavedViewItem.model_validate(await saved_views.save(services, principal, name, body.query))


@router.delete("/views/{name}", status_code=HTTPStatus.NO_CONTENT)
async def remove_view(name: ViewName, services: ServicesDep, principal: ReaderDep) -> None:
    """Remove one of one's own saved views; one that is not there is fine."""
    await saved_views.remove(services, principal, name)
