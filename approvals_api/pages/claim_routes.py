"""Actions on a request besides its decision: claims, taking an approval back, secrets, comments, and grants of calls like it."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.pages.decision_forms import DecisionForms, edit_typed, look_of
from turngate.approvals_api.pages.frames import typed_of
from turngate.approvals_api.pages.grant_form import read_grant, seal
from turngate.approvals_api.pages.inbox_routes import show_decided
from turngate.approvals_api.pages.list_place import place_of
from turngate.approvals_api.pages.request_routes import (
    TOOK_BACK_PARAMETER,
    Attempt,
    edit_not_sent,
    refused,
    show_request,
)
from turngate.approvals_api.requests import backlog, comments, decide, reveal
from turngate.approvals_api.requests import claim as claims
from turngate.approvals_api.requests.views import request_detail
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.store.policy import grants
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import DecisionOrder
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)


@router.post("/requests/{request_id}/claim")
async def claim(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Claim a request, take over a claim, or release it."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        if typed.get("action") == "release":
            await claims.release(services, principal, request_id)
        else:
            await claims.claim(services, principal, request_id, take_over=typed.get("action") == "take-over")
    except NotFoundError:
        raise
    except TurngateError as error:
        attempt = Attempt(status=status_of(error), headline="Not claimed.", detail=error.message)
        return await show_request(request, services, principal, request_id, attempt)
    return RedirectResponse(f"/requests/{request_id}{place_of(request).suffix}", HTTPStatus.SEE_OTHER)


@router.post("/requests/{request_id}/withdraw")
async def withdraw(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Take back an approval: of a request that needs several, or of a call that waits to start."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        waiting = await decide.withdraw_approval(services, principal, request_id)
    except NotFoundError:
        raise
    except TurngateError as error:
        attempt = Attempt(status=status_of(error), headline="Not taken back.", detail=error.message, typed=typed)
        return await show_request(request, services, principal, request_id, attempt)
    here = place_of(request).request_at(waiting, **{TOOK_BACK_PARAMETER: "1"})
    return RedirectResponse(here, HTTPStatus.SEE_OTHER)


@router.get("/requests/{request_id}/reveal")
async def after_reveal(request: Request, _principal: ReaderDep, request_id: str) -> Response:
    """Lead back to the request when the page with its secrets is loaded again: they are masked again."""
    return RedirectResponse(f"/requests/{request_id}{place_of(request).suffix}", HTTPStatus.SEE_OTHER)


@router.post("/requests/{request_id}/reveal")
async def reveal_secrets(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Show the request with the secrets of its call, this once."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        attempt = Attempt(revealed=await reveal.reveal(services, principal, request_id))
    except NotFoundError:
        raise
    except TurngateError as error:
        attempt = Attempt(status=status_of(error), headline="Not revealed.", detail=error.message, typed=typed)
    return await show_request(request, services, principal, request_id, attempt)


@router.post("/requests/{request_id}/comments")
async def comment(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Comment on a request for other people. No agent reads it."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        text = typed.get("comment", "").replace("\r\n", "\n").strip()
        await comments.comment(
            services, principal, request_id, text=text, idempotency_key=typed.get("comment_key") or None
        )
    except NotFoundError:
        raise
    except TurngateError as error:
        attempt = Attempt(status=status_of(error), headline="Not sent.", errors={"comment": error.message}, typed=typed)
        return await show_request(request, services, principal, request_id, attempt)
    return RedirectResponse(f"/requests/{request_id}{place_of(request).suffix}#comments", HTTPStatus.SEE_OTHER)


@router.post("/requests/{request_id}/grant")
async def grant(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Show what a grant would let through; then approve the call and save exactly that."""
    typed = {**await typed_of(request), "action": ""}
    async with services.database.read() as conn:
        detail = await request_detail(conn, request_id, principal)
    try:
        check_form_token(request, typed.get("csrf_token"))
        if (edit := edit_typed(detail, typed)) is not None:
            return await show_request(request, services, principal, request_id, edit_not_sent(edit, typed))
        wanted = read_grant(detail, typed)
        if typed.get("seal") != seal(wanted):
            waiting = await backlog.count_for_wanted(services, principal, request_id, wanted)
            attempt = Attempt(typed=typed, grant=wanted, waiting=waiting)
            return await show_request(request, services, principal, request_id, attempt)
        answers = typed.get("grant-waiting") == "1"
        at_once = answers and wanted.pattern.is_exact
        look = look_of(typed)
        order = DecisionOrder(
            verb="approve",
            digest=typed.get("digest", ""),
            grant=wanted,
            answer_waiting=at_once,
            looked_ms=look.looked_ms,
            seen_percent=look.seen_percent,
        )
        decision_id = typed.get("decision_id") or None
        answer = await decide.submit(services, principal, request_id, order, decision_id=decision_id)
    except NotFoundError:
        raise
    except InvalidInputError as error:
        attempt = Attempt(status=status_of(error), headline="Not saved.", errors={"grant": error.message}, typed=typed)
        return await show_request(request, services, principal, request_id, attempt)
    except TurngateError as error:
        attempt = refused(error, DecisionForms(), None, typed)
        return await show_request(request, services, principal, request_id, attempt)
    if at_once:
        own = DecidedItem(
            request_id=request_id,
            status=HTTPStatus.OK,
            decision_id=answer.decision_id,
            request_status=answer.status,
            starts_at=answer.starts_at,
            problem=None,
        )
        others = await backlog.answer_same(services, principal, request_id, answer.decision_id)
        return await show_decided(request, services, principal, [own, *others])
    if answers:  # their arguments differ: each has to be on the screen first
        async with services.database.read() as conn:
            stored = await grants.of_decision(conn, answer.decision_id)
        if stored is not None:
            return RedirectResponse(f"/requests/waiting?{urlencode({'grant': stored.id})}", HTTPStatus.SEE_OTHER)
    return RedirectResponse(f"/requests/{request_id}{place_of(request).suffix}", HTTPStatus.SEE_OTHER)
