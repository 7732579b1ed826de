"""The form of one stored rule: say it, see what it means and what it would change, then store it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import AdminDep, ServicesDep
from turngate.approvals_api.pages.frames import frame_of, number_of, typed_of
from turngate.approvals_api.pages.policy.rule_form import (
    OPERATORS,
    RISK_CHOICES,
    Draft,
    draft_of,
    read_draft,
    switched,
)
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.policy import rules as policy_rules
from turngate.approvals_api.policy.offers import rule_offer
from turngate.approvals_api.policy.preview import MAX_CALLS, preview_rule
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import TurngateError
from turngate.policies.rule_text import one_rule, rule_text
from turngate.policies.rule_words import in_a_sentence
from turngate.store.policy import policies
from turngate.wire.orders import RuleOrder
from turngate.wire.policy import RuleOffer, RulePreview
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

SWITCHES: Final = frozenset({"form", "toml"})
EMPTY: Final = Draft(view="form", typed={"rule-verdict": "allow"})


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What the page shows around a draft. ``replacing``: the stored rule that is changed; empty: the rule is new.

    ``version``: of the stored rules that were read. ``means``: whether its meaning was asked for. ``problem``: why nothing was
    stored. ``offer``: what the draft comes from.
    """

    draft: Draft
    replacing: str = ""
    version: int = 0
    comment: str = ""
    means: bool = False
    preview: RulePreview | None = None
    problem: str = ""
    status: int = HTTPStatus.OK
    offer: RuleOffer | None = None


@router.get("/policy/rule")
async def rule_page(
    request: Request,
    services: ServicesDep,
    principal: AdminDep,
    name: str = "",
    of_request: Annotated[str, Query(alias="request")] = "",
) -> HTMLResponse:
    """Show the form, empty or filled in with a stored rule, or with the one that is offered with a request."""
    version = await _version(services)  # first: a change in between is noticed when the rule is stored
    if of_request:
        offer = await rule_offer(services, principal, of_request)
        sheet = Sheet(draft=draft_of(one_rule(offer.toml)), version=version, means=True, offer=offer)
        return await _show(request, services, principal, sheet)
    if not name:
        return await _show(request, services, principal, Sheet(draft=EMPTY, version=version))
    draft = draft_of(await policy_rules.stored_rule(services, name))
    return await _show(request, services, principal, Sheet(draft=draft, replacing=name, version=version, means=True))


@router.get("/policy/rule/means")
async def rule_meaning(request: Request, services: ServicesDep, principal: AdminDep) -> HTMLResponse:
    """Show the form with what the fields in the address mean: for the page, while someone types. Stores nothing."""
    typed = dict(request.query_params)
    sheet = Sheet(draft=read_draft(typed), replacing=typed.get("replacing", ""), means=True)
    return await _show(request, services, principal, sheet)


@router.post("/policy/rule")
async def change_rule(request: Request, services: ServicesDep, principal: AdminDep) -> Response:
    """Do what the button says: draw the form again, say what the rule means, preview it, or store it."""
    typed = await typed_of(request)
    action = typed.get("action", "")
    sheet = Sheet(
        draft=read_draft(typed),
        replacing=typed.get("replacing", ""),
        version=number_of(typed, "if_version") or 0,
        comment=typed.get("comment", "").strip(),
        means=True,
    )
    try:
        check_form_token(request, typed.get("csrf_token"))
    except TurngateError as error:
        return await _show(request, services, principal, replace(sheet, problem=error.message, status=status_of(error)))
    if action == "more":
        return await _show(request, services, principal, replace(sheet, draft=replace(sheet.draft, errors={})))
    if action in SWITCHES and action != sheet.draft.view:
        return await _show(request, services, principal, replace(sheet, draft=switched(sheet.draft)))
    sheet = await _with_free_name(services, sheet)
    if sheet.draft.rule is None:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return await _show(request, services, principal, replace(sheet, status=status))
    try:
        if action in {"shadow", "enforce"}:
            return await _store(services, principal, sheet, enforce=action == "enforce")
        if action == "preview":
            preview = await preview_rule(services, principal, sheet.draft.rule, replacing=sheet.replacing or None)
            sheet = replace(sheet, preview=preview)
    except TurngateError as error:
        sheet = replace(sheet, problem=error.message, status=status_of(error))
    return await _show(request, services, principal, sheet)


async def _store(services: Services, principal: Principal, sheet: Sheet, *, enforce: bool) -> Response:
    assert sheet.draft.rule is not None  # noqa: S101 - its only caller has looked
    order = RuleOrder(
        rule=rule_text(sheet.draft.rule),
        mode="enforce" if enforce else "shadow",
        replacing=sheet.replacing or None,
        if_version=sheet.version,
        comment=sheet.comment,
    )
    await policy_rules.store_rule(services, principal, order)
    return RedirectResponse(
        f"/policy?stored={quote(sheet.draft.rule.name, safe='')}#stored-title", HTTPStatus.SEE_OTHER
    )


async def _with_free_name(services: Services, sheet: Sheet) -> Sheet:
    """Return the sheet of a new rule, with an error if a stored rule has its name: it would silently take that one's place."""
    rule = sheet.draft.rule
    if rule is None or rule.name == sheet.replacing:
        return sheet
    async with services.database.read() as conn:
        policy = await policy_rules.policy_view(conn)
    stored = [] if policy.stored is None else [each.name for each in policy.stored.rules]
    if rule.name not in stored:
        return sheet
    control = "rule-name" if sheet.draft.view == "form" else "rule-toml"
    errors = {control: "A stored rule has this name: choose another, or change that rule."}
    return replace(sheet, draft=replace(sheet.draft, rule=None, errors=errors))


async def _version(services: Services) -> int:
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
    return 0 if newest is None else newest.version


async def _show(request: Request, services: Services, principal: Principal, sheet: Sheet) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    rule = sheet.draft.rule
    return await asyncio.to_thread(
        render,
        "rule.html",
        frame=frame,
        status=sheet.status,
        sheet=sheet,
        draft=sheet.draft,
        says="" if rule is None or not sheet.means else in_a_sentence(rule),
        toml="" if rule is None or not sheet.means else rule_text(rule),
        operators=OPERATORS,
        risks=RISK_CHOICES,
        most=MAX_CALLS,
    )
