"""The inbox: pending and decided requests under filters in the URL, and deciding several at once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.pace import word_for
from turngate.approvals_api.pages.call_view import ROOM_OF_SEVERAL, Room, ShownCall, show_call
from turngate.approvals_api.pages.decision_forms import BOTH_REASONS, look_of
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.list_place import GROUPED, filter_in, place_in, place_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.policy.offers import offers_of
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import bulk
from turngate.approvals_api.requests.backlog import reason_of_grant, waiting_for_grant, waiting_for_rule
from turngate.approvals_api.requests.bulk import MAX_ITEMS
from turngate.approvals_api.requests.precedents import reasons_of_tools
from turngate.approvals_api.requests.views import SeenCall, request_items, request_page, seen_calls
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.services import Services
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.runs.groups import Group, Grouping, groups_of
from turngate.domain.runs.inbox import InboxFilter, InboxStatus
from turngate.policies.offers import Offer
from turngate.store.requests import requests
from turngate.text.run_words import unseen_words
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import BulkItem, BulkOrder
from turngate.wire.problems import status_of
from turngate.wire.requests import RequestItem

router = APIRouter(include_in_schema=False)


PAGE_SIZE: Final = 50
FEW: Final = 2
"""Alike calls that are not worth folding."""
TABS: Final[tuple[InboxStatus, ...]] = (
    "pending",
    "decided",
    "approved",
    "rejected",
    "responded",
    "expired",
    "cancelled",
    "all",
)


@router.get("/")
async def inbox(request: Request, services: ServicesDep, principal: ReaderDep) -> HTMLResponse:
    """Show one page of the requests that the URL's filter means: pending ones by urgency or age, others newest first.

    One filter drives list, count and badge: the badge is what the filter without conditions counts.
    """
    place = place_in(request.query_params)
    filters, cursor = place.filters, place.cursor
    wanted = filters.of(principal.name)
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await request_page(conn, wanted, limit=GROUPED if wanted.group else PAGE_SIZE, after=after)
        count = frame.pending if wanted.in_groups(None) == InboxFilter() else await requests.count(conn, wanted)
        choices = await requests.choices(conn, InboxFilter(status=wanted.status))
        agents = [] if page.items else await run_views.agent_list(conn)
    groups = await _shown_groups(page.items, filters.group)
    return await asyncio.to_thread(
        render,
        "inbox.html",
        groups=groups,
        offers=await _offers(services, principal, groups, filters.group),
        frame=frame,
        every=TABS,
        filter=filters,
        place=place,
        query_of=lambda status: filters.with_status(status).query,
        query_grouped=lambda group: filters.in_groups(group).query,
        query_cleared=filters.without_conditions.query,
        kept=[(name, word) for name, word in parse_qsl(filters.query) if name != "search"],
        most_searched=requests.MOST_SEARCHED,
        is_encrypted=services.database.is_encrypted,
        most_filtered=requests.MOST_SEARCHED if wanted.status == "all" else requests.MOST_FILTERED,
        page=page,
        count=count,
        cursor=cursor,
        choices=choices,
        agents=agents,
        may_decide=principal.may("requests:decide"),
        state=_list_state(page.items, count),
    )


@dataclass(frozen=True, kw_only=True)
class ShownGroup:
    """A group as the page draws it. ``folded``: those like one that is open."""

    group: Group[RequestItem]
    unfolded: Sequence[RequestItem]
    folded: Sequence[RequestItem] = ()


async def _shown_groups(items: list[RequestItem], by: Grouping | None) -> list[ShownGroup]:
    if by is None:
        return [ShownGroup(group=Group(items=items), unfolded=items)] if items else []
    groups = await asyncio.to_thread(groups_of, items, by)
    if by != "alike":
        return [ShownGroup(group=each, unfolded=each.items) for each in groups]
    return [_folded(each) for each in groups]


async def _offers(
    services: Services, principal: Principal, groups: Sequence[ShownGroup], by: Grouping | None
) -> dict[str, Offer]:
    """Return what is offered an admin above groups of alike calls, by the last request of each, which differs in nothing."""
    if by != "alike" or principal.role != "admin":
        return {}
    asking = [each.group.items[-1] for each in groups if each.group.items[-1].status == "pending"]
    async with services.database.read() as conn:
        return await offers_of(conn, asking, least=services.settings.offer_rule_after)


def _folded(group: Group[RequestItem]) -> ShownGroup:
    """Return a group of alike calls with those that differ, and one of the others; few more are shown, too."""
    first = len(group.differs) + 1
    if len(group.items) - first <= FEW:
        return ShownGroup(group=group, unfolded=group.items)
    return ShownGroup(group=group, unfolded=group.items[:first], folded=group.items[first:])


def _list_state(items: list[RequestItem], count: int) -> str:
    states = (f"{each.id} {each.status} {each.approvals} {each.claimed_by} {each.parked_at}" for each in items)
    return framed_sha256(str(count), *states)[:16]


# Several requests at once: review each exact call, then approve or reject them together.


PICK: Final = "pick-"
REJECT_ONLY: Final = "reject-"
"""Before the id of a call that can be rejected with the others, and not approved: the page has no room for all of it."""
_TOO_LONG: Final = "it is too long for this page"


@dataclass(frozen=True, kw_only=True)
class Picked:
    """One of several requests. ``left_out``: why it can't be approved together with the others; None: it can.

    ``unseen``: what of the call is secret and not shown to this person; empty: nothing.
    """

    item: RequestItem
    stored: requests.Request
    call: ShownCall
    left_out: str | None
    unseen: str


@router.get("/requests/bulk")
async def review_all(request: Request, services: ServicesDep, principal: OperatorDep) -> HTMLResponse:
    """Show the pending calls that the URL's filter means, such as those of one step."""
    wanted = filter_in(request.query_params).with_status("pending").of(principal.name)
    async with services.database.read() as conn:
        listed = await requests.page(conn, wanted, limit=MAX_ITEMS)
        if wanted.step is not None:  # in the order in which the model wants them
            beside = await requests.beside(conn, [each.id for each in listed])
            listed.sort(key=lambda each: beside[each.id].position or 0)
    return await _show(request, services, principal, {each.id: each.digest for each in listed})


@dataclass(frozen=True, kw_only=True)
class Because:
    """What lets calls run that wait: a rule's name, or a grant's id. Both empty: nothing, they were picked."""

    rule: str = ""
    grant: str = ""


PICKED: Final = Because()


@router.get("/requests/waiting")
async def review_waiting(
    request: Request, services: ServicesDep, principal: OperatorDep, rule: str = "", grant: str = ""
) -> HTMLResponse:
    """Show the pending calls that an enforced rule, or a grant of the person, would let run if they came now."""
    if grant:
        listed = (await waiting_for_grant(services, principal, grant)).requests
        because = Because(grant=grant)
    else:
        listed = (await waiting_for_rule(services, principal, rule)).requests
        because = Because(rule=rule)
    return await _show(request, services, principal, {each.request_id: each.digest for each in listed}, because=because)


@router.post("/requests/bulk")
async def review(request: Request, services: ServicesDep, principal: OperatorDep) -> Response:
    """Show every call that was picked in the inbox, whole: nothing is approved that was not on the screen."""
    typed = await typed_of(request)
    check_form_token(request, typed.get("csrf_token"))
    return await _show(request, services, principal, _digests(typed))


@router.post("/requests/bulk/decide")
async def decide(request: Request, services: ServicesDep, principal: OperatorDep) -> Response:
    """Decide the calls that were shown, and show the outcome of each."""
    typed = await typed_of(request)
    digests = _digests(typed)
    try:
        check_form_token(request, typed.get("csrf_token"))
        verb = typed.get("action")
        if verb not in {"approve", "reject"}:
            raise InvalidInputError("several requests can be approved or rejected: use the buttons on this page")
        decided = digests | _digests(typed, REJECT_ONLY) if verb == "reject" else digests
        order = BulkOrder(
            verb="approve" if verb == "approve" else "reject",
            items=[_item(each, digest, typed) for each, digest in decided.items()],
            message=await _reason(services, principal, digests, typed),
            confirm=typed.get("confirm", "").strip(),
            grant_id=(typed.get("grant") or None) if verb == "approve" else None,
        )
        done = await bulk.decide_many(services, principal, order, key=typed.get("key") or None)
    except TurngateError as error:
        digests |= _digests(typed, REJECT_ONLY)
        return await _show(
            request,
            services,
            principal,
            digests,
            message=typed.get("message", ""),
            error=error,
            because=Because(rule=typed.get("rule", ""), grant=typed.get("grant", "")),
        )
    return await show_decided(request, services, principal, done.items)


async def show_decided(
    request: Request, services: Services, principal: Principal, done: Sequence[DecidedItem]
) -> HTMLResponse:
    """Return the page that says of each of several requests what happened to it."""
    place = place_of(request)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        known = await requests.get_listed(conn, [each.request_id for each in done])
        items = {each.id: each for each in await request_items(conn, list(known.values()))}
        following = await requests.page(conn, place.filters.with_status("pending").of(principal.name), limit=1)
    open_next = next((each.request_id for each in done if each.problem is not None), None)
    open_next = open_next or next((each.id for each in following), None)
    return await asyncio.to_thread(
        render, "bulk_done.html", frame=frame, done=done, requests=items, place=place, next_pending=open_next
    )


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    digests: Mapping[str, str],
    *,
    message: str = "",
    error: TurngateError | None = None,
    because: Because = PICKED,
) -> HTMLResponse:
    """Return the page of these calls. ``digests``: request id → digest of the call as the person knows it.

    ``because``: what would let them run now.
    """
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        stored = await requests.get_all(conn, list(digests)[:MAX_ITEMS])
        # A call that changed since the inbox was loaded, or was decided, is not what was picked.
        fresh = [
            stored[each]
            for each, digest in digests.items()
            if each in stored and stored[each].status == "pending" and stored[each].digest == digest
        ]
        items = await request_items(conn, fresh)
        calls = await seen_calls(conn, principal, fresh)
        reasons = await reasons_of_tools(conn, principal, {each.tool_name for each in fresh})
    picked = await asyncio.to_thread(_all_picked, items, fresh, calls, principal)
    return await asyncio.to_thread(
        render,
        "bulk.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        ready=[each for each in picked if each.left_out is None],
        left_out=[each for each in picked if each.left_out is not None],
        gone=len(digests) - len(picked),
        place=place_of(request),
        message=message,
        because=because,
        reasons=reasons,
        problem="" if error is None else error.message,
        wait=0 if error is None else error.details.get("retry_after_seconds", 0),
        word=word_for(_tools_of(picked)) if error is not None and error.error_code == "confirm_needed" else "",
        key=f"bulk_{secrets.token_hex(12)}",
    )


async def _reason(
    services: Services, principal: Principal, digests: Mapping[str, str], typed: Mapping[str, str]
) -> str:
    """Return what is stored with each decision: what was typed, or the rule or grant that lets such calls run.

    Raises InvalidInputError where the rule doesn't cover one of them any more.
    """
    if typed.get("action") == "reject":
        message, recent = typed.get("message", "").replace("\r\n", "\n").strip(), typed.get("recent", "").strip()
        if message and recent:
            raise InvalidInputError(BOTH_REASONS)
        return message or recent
    if typed.get("grant"):
        return reason_of_grant(typed["grant"])  # each decision checks that the grant covers its call
    if not typed.get("rule"):
        return ""
    waiting = await waiting_for_rule(services, principal, typed["rule"])
    known = await _pending(services, digests)
    if not known <= {each.request_id for each in waiting.requests}:
        raise InvalidInputError("the rule doesn't cover all of these any more: reload the list", code="not_enforced")
    return waiting.reason


async def _pending(services: Services, request_ids: Collection[str]) -> set[str]:
    """Return those of these requests that are still pending. Each of the other decisions says why it fails."""
    async with services.database.read() as conn:
        known = await requests.get_listed(conn, list(request_ids)[:MAX_ITEMS])
    return {each.id for each in known.values() if each.status == "pending"}


def _item(request_id: str, digest: str, typed: Mapping[str, str]) -> BulkItem:
    look = look_of(typed, seen=f"seen-{request_id}")
    return BulkItem(request_id=request_id, digest=digest, looked_ms=look.looked_ms, seen_percent=look.seen_percent)


def _all_picked(
    items: Sequence[RequestItem],
    stored: Sequence[requests.Request],
    calls: Sequence[SeenCall],
    principal: Principal,
) -> list[Picked]:
    return [_picked(*each, principal) for each in zip(items, stored, calls, strict=True)]


def _picked(item: RequestItem, stored: requests.Request, seen: SeenCall, principal: Principal) -> Picked:
    call = show_call(
        seen.input,
        (stored.preview_kind, seen.preview),
        seen.origins,
        risk=stored.risk,
        room=Room(ROOM_OF_SEVERAL),
        defaults=seen.defaults,
    )
    item = item.model_copy(update=seen.of_item)
    left_out = bulk.why_left_out(stored, principal) or (_TOO_LONG if call.left_out else None)
    return Picked(item=item, stored=stored, call=call, left_out=left_out, unseen=unseen_words(seen.unseen))


def _tools_of(picked: Sequence[Picked]) -> list[str]:
    return [each.item.tool_name for each in picked if each.item.alone is None and not each.call.left_out]


def _digests(typed: Mapping[str, str], prefix: str = PICK) -> dict[str, str]:
    """Return request id → digest of the call as it was shown."""
    return {name.removeprefix(prefix): digest for name, digest in typed.items() if name.startswith(prefix)}
