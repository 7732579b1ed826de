"""The inbox and the request page: look at what waits, decide it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from approvals_api import decisions, run_views
from approvals_api.cursors import decode_cursor
from approvals_api.dependencies import OperatorDep, ReaderDep, ServicesDep
from approvals_api.pages import decision_forms, forms
from approvals_api.pages.decision_forms import DecisionForms, Submitted
from approvals_api.pages.diff_view import read_diff
from approvals_api.pages.frames import frame_of, typed_of
from approvals_api.pages.templating import render
from approvals_api.principals import Principal, check_form_token
from approvals_api.problems import status_of
from approvals_api.read_models import RequestDetail, RequestItem
from approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError, TurngateError, UnavailableError
from turngate.domain.previews import command_words
from turngate.domain.requests import RequestStatus
from turngate.store import requests
from turngate.store.database import Connection

router = APIRouter(include_in_schema=False)

PAGE_SIZE: Final = 50
RECENT_MESSAGES: Final = 40
"""A conversation may be days long; the page shows its end, and all of it on demand."""
Tab = Literal["pending", "approved", "rejected", "responded", "expired", "cancelled", "all"]
TABS: Final[tuple[Tab, ...]] = ("pending", "approved", "rejected", "responded", "expired", "cancelled", "all")
MAX_CURSOR_CHARS: Final = 500


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A decision that was sent and did not win: what to say, where, and what was typed, so that nothing is lost.

    ``recorded``: it is not refused but waits for a worker.
    """

    status: int = HTTPStatus.OK
    headline: str = ""
    detail: str = ""
    problems: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)
    recorded: bool = False
    decision_id: str | None = None


@router.get("/")
async def inbox(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    status: Tab = "pending",
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)] = None,
) -> HTMLResponse:
    """Show the requests of one tab, oldest first."""
    after = decode_cursor(cursor)
    wanted: RequestStatus | None = None if status == "all" else status
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await run_views.request_page(conn, status=wanted, limit=PAGE_SIZE, after=after)
        agents = await run_views.agent_list(conn)
    return render(
        "inbox.html",
        frame=frame,
        every=TABS,
        tab=status,
        page=page,
        cursor=cursor,
        has_agents=bool(agents),
        state=_list_state(page.items),
    )


@router.get("/requests/{request_id}")
async def request_page(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    request_id: str,
    conversation: Literal["recent", "all"] = "recent",
) -> HTMLResponse:
    """Show one request: the call first, then why it waits, then what may be decided."""
    return await _show(request, services, principal, request_id, Attempt(), whole=conversation == "all")


@router.post("/requests/{request_id}")
async def decide(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Decide a request by form. A refusal shows the page again with everything that was typed."""
    typed = await typed_of(request)
    async with services.database.read() as conn:
        shown = await run_views.request_detail(conn, request_id)
    drawn = decision_forms.forms_of(shown)
    submitted = decision_forms.read_decision(shown, drawn, typed)
    # A request that ended in the meantime has no forms to read from; submitting still tells who was first.
    attempt: Attempt | None
    if submitted is not None and submitted.errors and shown.status == "pending":
        attempt = _misfit(submitted, typed)
    else:
        attempt = await _submit(request, services, principal, shown, drawn, submitted, typed)
    if attempt is None:
        return RedirectResponse(f"/requests/{request_id}", HTTPStatus.SEE_OTHER)
    return await _show(request, services, principal, request_id, attempt)


async def _submit(
    request: Request,
    services: Services,
    principal: Principal,
    shown: RequestDetail,
    drawn: DecisionForms,
    submitted: Submitted | None,
    typed: Mapping[str, str],
) -> Attempt | None:
    """Send a decision to its run; None when it won."""
    decision_id = typed.get("decision_id") or None
    try:
        check_form_token(request, typed.get("csrf_token"))
        if submitted is None:
            raise InvalidInputError("this form says no decision of ours: use the buttons on this page")
        answer = await decisions.submit(
            services,
            principal,
            request_id=shown.id,
            verb=submitted.verb,
            digest=typed.get("digest", ""),
            args=submitted.args,
            message=submitted.message,
            outcome=submitted.outcome,
            decision_id=decision_id,
        )
    except NotFoundError:
        raise
    except TurngateError as error:
        return _refused(error, drawn, submitted, typed)
    if not answer.recorded_only:
        return None
    return Attempt(
        status=HTTPStatus.ACCEPTED,
        headline="Recorded.",
        detail="No worker is running right now. Your decision takes effect when one is back.",
        typed=typed,
        recorded=True,
    )


def _misfit(submitted: Submitted, typed: Mapping[str, str]) -> Attempt:
    return Attempt(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        headline="Not sent yet.",
        detail="Something does not fit. It is marked below, and what you typed is still there.",
        errors=submitted.errors,
        typed=typed,
        decision_id=typed.get("decision_id"),
    )


def _refused(
    error: TurngateError,
    drawn: DecisionForms,
    submitted: Submitted | None,
    typed: Mapping[str, str],
) -> Attempt:
    """Say why a decision did not win. Only after a 503 the decision id stays: repeating the same decision is safe."""
    status = status_of(error)
    away = isinstance(error, UnavailableError)
    headline = {
        "already_decided": "Somebody else was first.",
        "digest_differs": "The call on your screen is not the one that waits.",
        "idempotency_key_reused": "This form was used before. Press the button again to send what it says now.",
    }.get(error.error_code, "Try again." if away else "Not accepted.")
    beside: dict[str, str] = {}
    rest: list[str] = []
    if submitted is not None and isinstance(error, InvalidInputError):
        beside, rest = _placed(error, drawn, submitted)
    detail = "" if (beside or rest) and not isinstance(error, ConflictError) else error.message
    return Attempt(
        status=status,
        headline=headline,
        detail=detail,
        problems=tuple(rest),
        errors=beside,
        typed=typed,
        decision_id=typed.get("decision_id") if away else None,
    )


def _placed(error: InvalidInputError, drawn: DecisionForms, submitted: Submitted) -> tuple[dict[str, str], list[str]]:
    """Put complaints beside the control each is about: pointers begin with ``/args`` or ``/message``."""
    own = {"edit": drawn.edit, "answer": drawn.answer, "happened": drawn.result}.get(submitted.action, ())
    about_args: list[Mapping[str, str]] = []
    beside: dict[str, str] = {}
    rest: list[str] = []
    for problem in error.details.get("errors", []):
        pointer, message = problem["pointer"], problem["message"]
        if pointer == "/message":
            beside[f"{submitted.action}-message"] = message
        elif pointer.startswith("/args") and own:
            about_args.append({"pointer": pointer.removeprefix("/args"), "message": message})
        elif pointer.startswith("/args"):
            said = f"{pointer.removeprefix('/args')}: {message}" if pointer != "/args" else message
            beside[submitted.action] = f"{beside[submitted.action]}; {said}" if submitted.action in beside else said
        else:
            rest.append(f"{pointer}: {message}" if pointer else message)
    fields, others = forms.place_errors(own, about_args)
    return {**beside, **fields}, rest + others


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    request_id: str,
    attempt: Attempt,
    *,
    whole: bool = False,
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        shown = await run_views.request_detail(conn, request_id)
        following = await _next_pending(conn, shown)
    drawn = decision_forms.forms_of(shown)
    preview = shown.preview or ""
    words = command_words(preview) if shown.preview_kind == "command" else None
    # A hostile megabyte takes a second to make visible: not on the loop that everybody else waits for.
    return await asyncio.to_thread(
        render,
        "request.html",
        frame=frame,
        status=attempt.status,
        request=shown,
        messages=shown.messages if whole else shown.messages[-RECENT_MESSAGES:],
        whole=whole,
        forms=drawn,
        suggested=decision_forms.suggested_field(drawn),
        attempt=attempt,
        decision_id=attempt.decision_id or f"dec_{secrets.token_hex(12)}",
        diff=read_diff(preview) if shown.preview_kind == "diff" else None,
        words=words,
        barred=shown.not_by is not None and shown.not_by == principal.name,
        next_pending=following,
        state=f"{shown.status} {shown.execution} {shown.result is not None}",
    )


async def _next_pending(conn: Connection, shown: RequestDetail) -> str | None:
    """Return the oldest pending request besides this one."""
    waiting = await requests.page(conn, status="pending", limit=2)
    return next((each.id for each in waiting if each.id != shown.id), None)


def _list_state(items: list[RequestItem]) -> str:
    return framed_sha256(*(f"{item.id} {item.status}" for item in items))[:16]
