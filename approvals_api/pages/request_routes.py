"""The request page: see a request, decide it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Final, Literal, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.pages import decision_forms
from turngate.approvals_api.pages.call_view import ROOM, Room, show_arguments, show_call
from turngate.approvals_api.pages.decision_forms import DecisionForms, Submitted
from turngate.approvals_api.pages.frames import OPENS_NEXT, frame_of, has_chosen, typed_of
from turngate.approvals_api.pages.grant_form import LASTS, WINDOWS, grant_form
from turngate.approvals_api.pages.list_place import FIRST_PAGE, PARAMETER, ListPlace, place_of
from turngate.approvals_api.pages.result_text import what_changed
from turngate.approvals_api.pages.templating import Frame, is_later, render, render_block
from turngate.approvals_api.policy.grants import ungrantable
from turngate.approvals_api.policy.offers import offer_of
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import decide as decide_request
from turngate.approvals_api.requests import presence
from turngate.approvals_api.requests.comments import comment_page
from turngate.approvals_api.requests.eligibility import why_not
from turngate.approvals_api.requests.precedents import with_precedents
from turngate.approvals_api.requests.views import request_detail
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.errors import member_of
from turngate.domain.errors import ConflictError, InvalidInputError, NotFoundError, TurngateError, UnavailableError
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.policy.terms import same_person
from turngate.domain.requests import RequestStatus, Verb
from turngate.domain.runs.inbox import InboxFilter
from turngate.domain.text.diff import read_diff
from turngate.domain.text.hidden_text import marked_text
from turngate.domain.tools.secrets import has_marks
from turngate.forms.errors import place_errors
from turngate.forms.fields import every
from turngate.policies.offers import Offer
from turngate.store.database import Connection
from turngate.store.requests import presence as views
from turngate.store.requests import requests
from turngate.store.requests.requests import TOOK_BACK, ListedRequest
from turngate.text.changes import changes
from turngate.text.run_words import decided_unseen_words, unseen_words
from turngate.wire.people import display_name
from turngate.wire.problems import status_of
from turngate.wire.requests import CommentView, RequestDetail, RevealedSecret

router = APIRouter(include_in_schema=False)

Drawn = TypeVar("Drawn")

RECENT_MESSAGES: Final = 40
"""A conversation may be days long; the page shows its end, and all of it on demand."""


TOOK_BACK_PARAMETER: Final = "took-back"
MAX_COMMENTS: Final = 200
MAX_ID_CHARS: Final = 64


@dataclass(frozen=True, kw_only=True)
class Around:
    """What surrounds a request. ``barred``: why this person may not decide; ``others``: who else looks at it now.

    ``waits_for``: this person has approved it, and so many more have to. ``offer``: a rule that would answer calls like it.
    """

    barred: str | None = None
    waits_for: int = 0
    may_decide: bool = True
    admin: bool = False
    comments: Sequence[CommentView] = ()
    others: Sequence[views.ActiveViewer] = ()
    offer: Offer | None = None


ALONE: Final = Around()
TRIED: Final = Around(barred="Nothing can be decided here: the call was only tried.", may_decide=False)
"""Around what a call in the playground would ask."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way through the inbox. ``following``: the next pending request. ``decided``: the one that led here, if one did.

    ``of_step``: how many requests of its step are pending. ``whole``: all of the call is wanted, however long it is.
    ``all_messages``: and all of the conversation. ``took_back``: taking an approval back led here.
    """

    place: ListPlace = FIRST_PAGE
    following: str | None = None
    decided: ListedRequest | None = None
    of_step: int = 0
    whole: bool = False
    all_messages: bool = False
    took_back: bool = False


NO_WAY: Final = Way()


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A decision that was sent and did not win: the message, its place, and what was typed, so that nothing is lost.

    ``grant``: one to review before it is saved. ``waiting``: how many other requests it would cover. ``asked_again``: the request
    about the edited call. ``wait``: seconds until it can be sent again.
    """

    status: int = HTTPStatus.OK
    headline: str = ""
    detail: str = ""
    problems: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)
    decision_id: str | None = None
    grant: WantedGrant | None = None
    waiting: int = 0
    asked_again: str | None = None
    revealed: Sequence[RevealedSecret] = ()
    wait: int = 0


@router.get("/requests/{request_id}")
async def request_page(
    request: Request,
    services: ServicesDep,
    principal: ReaderDep,
    request_id: str,
    conversation: Literal["recent", "all"] = "recent",
) -> HTMLResponse:
    """Show one request: the call first, then why it waits, then what may be decided.

    With ``whole=1`` in its address the page has all of a call for which it otherwise has no room.
    """
    return await show_request(request, services, principal, request_id, Attempt(), all_messages=conversation == "all")


@router.post("/requests/{request_id}")
async def decide(request: Request, services: ServicesDep, principal: OperatorDep, request_id: str) -> Response:
    """Decide a request by form. A refusal shows the page again with everything that was typed."""
    typed = decision_forms.pressed_action(await typed_of(request))
    async with services.database.read() as conn:
        detail = await request_detail(conn, request_id, principal)
    drawn = await asyncio.to_thread(decision_forms.forms_of, detail, typed)
    if (attempt := _harmless(detail, drawn, typed)) is not None:
        try:
            check_form_token(request, typed.get("csrf_token"))
        except TurngateError as error:
            attempt = refused(error, drawn, None, typed)
        return await show_request(request, services, principal, request_id, attempt)
    edit = decision_forms.edit_typed(detail, typed) if typed.get("action") == "approve" else None
    if edit is not None:
        return await show_request(request, services, principal, request_id, edit_not_sent(edit, typed))
    submitted = decision_forms.read_decision(detail, drawn, typed)
    # A request that ended meanwhile has no forms to read; submitting still says who was first.
    if submitted is not None and submitted.errors and detail.status == "pending":
        attempt = _misfit(submitted, typed)
    else:
        attempt = await _submit(request, services, principal, detail, drawn, submitted, typed)
    if attempt is None:
        return RedirectResponse(await _after_decision(request, services, principal, detail), HTTPStatus.SEE_OTHER)
    return await show_request(request, services, principal, request_id, attempt)


def _harmless(detail: RequestDetail, drawn: DecisionForms, typed: Mapping[str, str]) -> Attempt | None:
    """Return the page after what decides nothing: a button for rows, or for a look at an edit, or Enter; None after the rest."""
    if (rows := decision_forms.press_row(drawn, typed)) is not None:
        return Attempt(typed=rows)
    if not typed.get("action") and decision_forms.AS in typed:
        edit = decision_forms.edit_typed(detail, typed) or ""
        words = decision_forms.ENTER_SENDS_NOTHING
        return Attempt(headline="Not sent yet.", detail=words, typed={**typed, "action": edit})
    errors = decision_forms.look_at_edit(detail, drawn, typed)
    return None if errors is None else Attempt(errors=errors, typed=typed)


async def _after_decision(request: Request, services: Services, principal: Principal, detail: RequestDetail) -> str:
    """Return the URL to go to: the decided request, or the next one for a person who wants that."""
    place = place_of(request)
    if has_chosen(request, OPENS_NEXT):
        async with services.database.read() as conn:
            following = await place.next_pending(conn, detail, principal.name)
        if following is not None:
            return f"/requests/{following}?{urlencode({PARAMETER: place.query, 'decided': detail.id})}"
    return f"/requests/{detail.id}{place.suffix}"


async def _submit(
    request: Request,
    services: Services,
    principal: Principal,
    detail: RequestDetail,
    drawn: DecisionForms,
    submitted: Submitted | None,
    typed: Mapping[str, str],
) -> Attempt | None:
    """Submit a decision; None when it was taken."""
    decision_id = typed.get("decision_id") or None
    try:
        check_form_token(request, typed.get("csrf_token"))
        if submitted is None:
            raise InvalidInputError("this form has no known decision: use the buttons on this page")
        order = submitted.order(typed.get("digest", ""))
        await decide_request.submit(services, principal, detail.id, order, decision_id=decision_id)
    except NotFoundError:
        raise
    except TurngateError as error:
        return refused(error, drawn, submitted, typed)
    return None


def edit_not_sent(edit: decision_forms.Edit, typed: Mapping[str, str]) -> Attempt:
    """Return the page that says that an approval would have dropped an edit, and shows that edit."""
    return Attempt(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        headline="Not sent yet.",
        detail=f"{decision_forms.NOT_SENT} Approve it with your changes, or discard them.",
        typed={**typed, "action": edit},
        decision_id=typed.get("decision_id"),
    )


def _misfit(submitted: Submitted, typed: Mapping[str, str]) -> Attempt:
    return Attempt(
        status=HTTPStatus.UNPROCESSABLE_ENTITY,
        headline="Not sent yet.",
        detail="What you typed is still there.",
        errors=submitted.errors,
        typed=typed,
        decision_id=typed.get("decision_id"),
    )


def refused(
    error: TurngateError,
    drawn: DecisionForms,
    submitted: Submitted | None,
    typed: Mapping[str, str],
) -> Attempt:
    """Say why a decision did not win. Only after a 503 the decision id stays: repeating the same decision is safe."""
    status = status_of(error)
    away = isinstance(error, UnavailableError)
    headline = {
        "form_token": "Not sent yet.",
        "already_decided": "Someone else decided first.",
        "asked_again": "Your edit needs another decision.",
        "too_fast": "Take a breath.",
        "digest_differs": "The call on your screen is not the one that is pending.",
        "idempotency_key_reused": "This form was sent before. Press the button again to send its current content.",
    }.get(error.error_code, "Try again." if away else "Not sent yet.")
    beside: dict[str, str] = {}
    rest: list[str] = []
    if submitted is not None and isinstance(error, InvalidInputError):
        beside, rest = _placed(error, drawn, submitted, typed)
    detail = "" if (beside or rest) and not isinstance(error, ConflictError) else error.message
    return Attempt(
        status=status,
        headline=headline,
        detail=detail,
        problems=tuple(rest),
        errors=beside,
        typed=typed,
        decision_id=typed.get("decision_id") if away else None,
        asked_again=error.details.get("asked_again"),
        wait=error.details.get("retry_after_seconds", 0),
    )


def _placed(
    error: InvalidInputError, drawn: DecisionForms, submitted: Submitted, typed: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Put complaints beside the control each is about: pointers begin with ``/args`` or ``/message``."""
    own = drawn.of(submitted.action)
    about_args: list[Mapping[str, str]] = []
    beside: dict[str, str] = {}
    rest: list[str] = []
    for problem in error.details.get("errors", []):
        pointer, message = problem["pointer"], problem["message"]
        if pointer == "/message":
            beside[f"{submitted.action}-message"] = message
        elif pointer == "/confirm":
            beside[f"{submitted.action}-confirm"] = message
        elif pointer.startswith("/args") and own is not None:
            about_args.append({"pointer": pointer.removeprefix("/args"), "message": message})
        elif pointer.startswith("/args"):
            complaint = f"{member_of(pointer.removeprefix('/args'))}: {message}" if pointer != "/args" else message
            earlier = beside.get(submitted.action)
            beside[submitted.action] = complaint if earlier is None else f"{earlier} {complaint}"
        else:
            rest.append(f"{pointer}: {message}" if pointer else message)
    fields, others = ({}, []) if own is None else place_errors(own, about_args, typed)
    return {**beside, **fields}, rest + others


async def show_request(
    request: Request,
    services: Services,
    principal: Principal,
    request_id: str,
    attempt: Attempt,
    *,
    all_messages: bool = False,
) -> HTMLResponse:
    """Return the request's page, with the reason why a decision did not win."""
    place = place_of(request)
    before = request.query_params.get("decided", "")[:MAX_ID_CHARS]
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        detail = await with_precedents(conn, principal, await request_detail(conn, request_id, principal))
        following = await place.next_pending(conn, detail, principal.name)
        decided = await requests.get(conn, before) if before else None
        of_step = await _pending_of_step(conn, detail)
        look = await presence.first_look(conn, principal, detail)
        around = Around(
            barred=_barred(detail, principal),
            waits_for=_waits_for(detail, principal),
            may_decide=principal.may("requests:decide"),
            admin=principal.role == "admin",
            comments=(await comment_page(conn, request_id, limit=MAX_COMMENTS)).items,
            others=await views.viewers(conn, request_id, except_for=principal.name),
            offer=await offer_of(conn, detail, least=services.settings.offer_rule_after),
        )
    await presence.note(services, look)
    # A hostile megabyte takes a second to escape: not on the event loop, where every other request would wait.
    way = Way(
        place=place,
        following=following,
        decided=decided,
        of_step=of_step,
        whole=request.query_params.get("whole") == "1",
        all_messages=all_messages,
        took_back=TOOK_BACK_PARAMETER in request.query_params,
    )
    return await asyncio.to_thread(draw_request, frame, detail, attempt, around, way=way)


def draw_request(
    frame: Frame,
    detail: RequestDetail,
    attempt: Attempt,
    around: Around = ALONE,
    *,
    way: Way = NO_WAY,
) -> HTMLResponse:
    """Return the request page. Pure but for the id of the next decision."""
    return _draw(render, frame, detail, attempt, around, way)


def draw_request_body(frame: Frame, detail: RequestDetail) -> Markup:
    """Return what the request page has below its title, for a page that shows what people would see."""
    return _draw(partial(render_block, block="request_body"), frame, detail, Attempt(), TRIED, NO_WAY)


def _has_taken_back(operator: str | None, detail: RequestDetail, around: Around, way: Way) -> bool:
    """Tell whether this person took back their approval, in whose place the request waits, or one of several."""
    if operator is None or detail.status != "pending" or around.waits_for:
        return False
    return way.took_back or detail.reason.startswith(operator + TOOK_BACK)


def _draw(
    draw: Callable[..., Drawn], frame: Frame, detail: RequestDetail, attempt: Attempt, around: Around, way: Way
) -> Drawn:
    runs = detail.status == "pending" and detail.kind != "question"
    # What was typed is in forms that only the whole call has.
    room = Room() if way.whole or attempt.typed else Room(ROOM)
    call = show_call(
        detail.input,
        (detail.preview_kind, detail.preview),
        detail.origins,
        risk=detail.risk if runs else None,
        room=room,
        defaults=detail.defaults,
    )
    args = None if detail.decision is None else detail.decision.args
    drawn = decision_forms.forms_of(detail, attempt.typed)
    changed = what_changed(detail.earlier.precondition if detail.earlier else None, detail.precondition)
    edit_typed = decision_forms.edit_typed(detail, attempt.typed)
    edited = decision_forms.args_of_edit(detail, drawn, attempt.typed)
    complaints = _complaints(attempt, drawn)
    return draw(
        "request.html",
        frame=frame,
        status=attempt.status,
        request=detail,
        messages=detail.messages if way.all_messages else detail.messages[-RECENT_MESSAGES:],
        all_messages=way.all_messages,
        conversation_at=way.place.request_at(detail.id, conversation="all") + "#conversation",
        call=call,
        took_back=_has_taken_back(frame.operator, detail, around, way),
        decided_args=None if args is None else show_arguments(args, room=room),
        whole_at=way.place.request_at(detail.id, whole="1"),
        forms=drawn,
        suggested=decision_forms.suggested_field(drawn),
        attempt=replace(attempt, errors={name: words for name, _label, words in complaints}),
        decision_id=attempt.decision_id or f"dec_{secrets.token_hex(12)}",
        changed=None if changed is None else read_diff(changed),
        edits=None if edited is None else changes(detail.input, edited),
        edit_typed=edit_typed,
        complaints=complaints,
        around=around,
        grant=grant_form(detail, attempt.typed, admin=around.admin, wanted=attempt.grant),
        no_grant=ungrantable(detail),
        lasts=LASTS,
        windows=WINDOWS,
        claimed=detail.claimed_by if is_later(detail.claimed_until, frame.now) else None,
        same_person=same_person,
        place=way.place,
        next_pending=way.following,
        decided=way.decided,
        of_step=way.of_step,
        unseen=unseen_words(detail.unseen_secrets),
        decided_unseen=decided_unseen_words(detail.decision),
        reveals=around.may_decide and _has_secrets(detail),
        state=_state_of(detail, around),
        ended=_how_it_ended(detail),
    )


def _complaints(attempt: Attempt, drawn: DecisionForms) -> list[tuple[str, str | None, str]]:
    """Return each complaint about a control, in the order of the page: the control, the field it is in, and the words."""
    forms = [form for form in (drawn.edit, drawn.answer, drawn.result) if form is not None]
    labels = {each.name: each.key for form in forms for each in every(form)}
    order = {name: at for at, name in enumerate(labels)}
    errors = sorted(attempt.errors.items(), key=lambda error: order.get(error[0], 0))
    return [(name, labels.get(name), words) for name, words in errors]


def _barred(detail: RequestDetail, principal: Principal) -> str | None:
    """Return why this person may not decide the request, in words for them."""
    if not principal.may("requests:decide"):
        return "You can't decide requests: ask an admin for the role operator."
    reason = why_not(detail, principal, detail.starters)
    return None if reason is None else f"You can't decide this: {reason}."


def _has_secrets(detail: RequestDetail) -> bool:
    """Tell whether a mark is in what a reveal reads: the arguments, the tasks, the agent's words, the result."""
    result = "" if detail.result is None else detail.result.model_dump_json()
    texts = (detail.input, detail.agent_words, result, detail.partial_output, *(each.task for each in detail.tasks))
    return any(map(has_marks, texts))


def _waits_for(detail: RequestDetail, principal: Principal) -> int:
    """Return how many more people have to approve what this person has approved; 0: they haven't."""
    has_approved = any(each.decided_by == principal.name for each in detail.given)
    return detail.quorum - detail.approvals if has_approved and detail.status == "pending" else 0


def _how_it_ended(detail: RequestDetail) -> str:
    """Return who decided it and what, or how else it ended, for a window in which it still waits; empty: it waits."""
    if detail.void_words:
        return detail.void_words
    if detail.decided_by is not None and detail.verb is not None:
        return f"{marked_text(display_name(detail.decided_by))} {_DONE[detail.verb]}."
    return _ENDED.get(detail.status, "")


_DONE: Final[Mapping[Verb, str]] = {
    "approve": "approved this",
    "edit": "approved this with other arguments",
    "reject": "rejected this",
    "respond": "answered this",
}
_ENDED: Final[Mapping[RequestStatus, str]] = {
    "expired": "This request has expired: no one answered in time.",
    "cancelled": "The run ended before anyone answered.",
    "superseded": "A newer message or another request has replaced this one.",
}


async def _pending_of_step(conn: Connection, detail: RequestDetail) -> int:
    if detail.status != "pending" or detail.step is None:
        return 0
    return await requests.count(conn, InboxFilter(run_id=detail.run_id, step=detail.step))


def _state_of(detail: RequestDetail, around: Around) -> str:
    parts = (detail.status, detail.execution, detail.result is not None, detail.approvals, detail.rungs_climbed)
    later = (detail.replaced_by, detail.not_run is not None)
    return " ".join(map(str, (*parts, *later, detail.claimed_by, detail.parked_at, len(around.comments))))
