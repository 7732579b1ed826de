"""Requests: the inbox, decisions, claims, comments and presence."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Final, Literal

from fastapi import Body, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep, SightDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.requests import backlog, bulk, claim, comments, decide, presence, reveal
from turngate.approvals_api.requests.answer_check import MAX_MESSAGE_CHARS
from turngate.approvals_api.requests.bulk import MAX_ITEMS
from turngate.approvals_api.requests.decide import MAX_DECISION_ID_CHARS
from turngate.approvals_api.requests.precedents import with_precedents
from turngate.approvals_api.requests.views import request_detail, request_page
from turngate.approvals_api.v1.bodies import DECISION_EXAMPLES, ClaimBody, CommentBody, DecisionBody, LookBody
from turngate.approvals_api.v1.parameters import Cursor, Id, IdempotencyKey, Limit, RequestId
from turngate.approvals_api.validation.exact_json import member_text
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.requests import RequestKind
from turngate.domain.runs.inbox import MAX_STEP, MOST_COUNTED, InboxFilter, InboxOrder, InboxStatus
from turngate.store.policy import grants
from turngate.store.requests import requests
from turngate.store.requests.presence import ActiveViewer
from turngate.store.requests.requests import MOST_FILTERED, MOST_SEARCHED
from turngate.wire import orders
from turngate.wire.decisions import DecidedItems, DecisionResult
from turngate.wire.requests import (
    ClaimView,
    CommentView,
    Presence,
    RequestCount,
    RequestDetail,
    RequestItem,
    RevealedSecrets,
    Viewer,
)
from turngate.wire.view import Page

router = api_router("requests")


# The inbox's filter as query parameters, the same for the list and its count.


MAX_CHARS: Final = 255


def _named(description: str) -> object:
    return Query(description=description, min_length=1, max_length=MAX_CHARS, pattern=STORABLE)


async def inbox_filter(
    services: ServicesDep,
    principal: ReaderDep,
    sight: SightDep,
    status: Annotated[
        InboxStatus,
        Query(
            description="One status; `decided`: all but `pending`; `all`: any status. With conditions other than `run_id`, those "
            f"that have ended are looked for among the newest {MOST_FILTERED:,}, and those of any status among the newest "
            f"{MOST_SEARCHED:,}."
        ),
    ] = "pending",
    search: Annotated[
        str | None,
        _named(
            "Only requests in which each of these words occurs: in the tool, the arguments, the agents, an id, the run's task, "
            f"or the name of who started it, claimed it or decided. Looks through the first {MOST_SEARCHED:,} requests. "
            "An encrypted store can't search arguments and tasks."
        ),
    ] = None,
    kind: Annotated[RequestKind | None, Query(description="Only this kind.")] = None,
    agent: Annotated[str | None, _named("Only this agent's.")] = None,
    tool: Annotated[str | None, _named("Only calls of this tool.")] = None,
    risk: Annotated[Literal["low", "medium", "high"] | None, Query(description="Only of this risk.")] = None,
    rule: Annotated[str | None, _named("Only requests of this rule.")] = None,
    run_id: Annotated[str | None, _named("Only this run's.")] = None,
    step: Annotated[int | None, Query(description="Only of this step of its run.", ge=0, le=MAX_STEP)] = None,
    claimed: Annotated[
        str | None, _named("Who holds the claim: a person's name, `me` for yourself, `nobody` for no one.")
    ] = None,
    parked: Annotated[
        bool | None, Query(description="Whether its time ran out and it still waits, because its rule says so.")
    ] = None,
    order: Annotated[
        InboxOrder,
        Query(description="Of pending requests. `urgency`: by deadline, risk and age together; `age`: oldest first."),
    ] = "urgency",
) -> InboxFilter:
    """Return the filter from the view of the principal: `me` is their name."""
    return InboxFilter(
        status=status,
        search=search,
        kind=kind,
        agent=agent,
        tool=tool,
        risk=risk,
        rule=rule,
        run_id=await sight.run(services.database, run_id),
        step=step,
        claimed=claimed,
        parked=parked,
        order=order,
    ).of(principal.name)


InboxFilterDep = Annotated[InboxFilter, Depends(inbox_filter)]


@router.get("/requests")
async def list_requests(
    services: ServicesDep,
    _principal: ReaderDep,
    wanted: InboxFilterDep,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[RequestItem]:
    """List requests: pending ones by urgency or age, ended ones by their end, newest first.

    All conditions must match. A cursor belongs to the filter of its page. Long arguments are clipped: `input_chars` and
    `input_digest` tell, and the request itself has all of them. Decide nothing from a clipped text.
    """
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        page = await request_page(conn, wanted, limit=limit, after=after)
    return page.model_copy(update={"items": [each.clipped for each in page.items]})


@router.get("/requests/count")
async def count_requests(services: ServicesDep, _principal: ReaderDep, wanted: InboxFilterDep) -> RequestCount:
    """Count the requests that the list shows under the same filter, up to 10,000."""
    async with services.database.read() as conn:
        count = await requests.count(conn, wanted)
    return RequestCount(status=wanted.status, count=min(count, MOST_COUNTED), is_more=count > MOST_COUNTED)


@router.get("/requests/{request_id}")
async def get_request(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> RequestDetail:
    """Show a request with everything needed to decide it.

    Looking at it, and the first time that someone does, is recorded in the audit log.
    """
    async with services.database.read() as conn:
        detail = await request_detail(conn, request_id, principal)
        detail = await with_precedents(conn, principal, detail)
        look = await presence.first_look(conn, principal, detail)
    await presence.note(services, look)
    return detail


@router.post(
    "/requests/{request_id}/decisions",
    responses={
        **problems(
            {
                409: (
                    "`already_decided` (names the winner), `digest_differs`, `idempotency_key_reused`, or `asked_again`: "
                    "the edited call needs stricter terms, and the request that the member `asked_again` names asks under them"
                ),
                410: "`run_ended`, `request_expired` or `request_superseded`",
                422: "`confirm_needed`: a person approved many calls within a minute, and types the tool's name as `confirm`",
                429: "`too_fast`: a person approved many calls within seconds, and looks at this one for `retry_after_seconds`",
            }
        ),
    },
)
async def decide_request(
    request_id: RequestId,
    body: Annotated[DecisionBody, Body(openapi_examples=DECISION_EXAMPLES)],
    services: ServicesDep,
    principal: OperatorDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> DecisionResult:
    """Decide a request. The answer is final, also while no worker runs: the call then runs when one is back.

    The first decision wins: a later one gets the winner's name. The same Idempotency-Key with the same content gets the
    first answer, also with another `looked_ms` or `seen_percent`.

    With `answer_waiting` an exact grant also answers what waits: each request by its own decision in your name, with its own
    result in `answered`. The same terms hold as when many are decided at once, and each takes a use of the grant.
    """
    sent = None if body.args is None else member_text((await request.body()).decode(), "args")
    order = body.order(sent)
    answer = await decide.submit(services, principal, request_id, order, decision_id=idempotency_key)
    stored = None
    if order.grant is not None:
        async with services.database.read() as conn:
            stored = await grants.of_decision(conn, answer.decision_id)
    answered = []
    if order.answer_waiting:
        answered = await backlog.answer_same(services, principal, request_id, answer.decision_id)
    return DecisionResult(
        request_id=request_id,
        decision_id=answer.decision_id,
        status=answer.status,
        starts_at=answer.starts_at,
        grant_id=None if stored is None else stored.id,
        answered=answered,
    )


@router.delete(
    "/requests/{request_id}/approval",
    status_code=HTTPStatus.NO_CONTENT,
    responses=problems(
        {
            409: "`already_decided` (names the winner), or `already_started`: the call has started",
            410: "`run_ended` or `request_expired`",
        }
    ),
)
async def withdraw_approval(request_id: RequestId, services: ServicesDep, principal: OperatorDep) -> None:
    """Take back your approval while others are still missing, or before the approved call starts, where it has `starts_at`.

    In the second case a new request asks about the call again; `replaced_by` of this one names it. Later you can approve it,
    with a new Idempotency-Key, or reject it. If others still have to approve it and you have not, nothing happens.
    """
    await decide.withdraw_approval(services, principal, request_id)


# Claims: take a request on, and give it back.


@router.post(
    "/requests/{request_id}/claim",
    responses=problems({409: "`claimed` (names who, and until when) or `request_not_pending`"}),
)
async def claim_request(
    request_id: RequestId, services: ServicesDep, principal: OperatorDep, body: ClaimBody | None = None
) -> ClaimView:
    """Claim a request for a while, or renew your claim.

    While you hold the claim, others can't decide the request unless they take it over. The request still expires as usual.
    """
    wanted = body or ClaimBody()
    lease = await claim.claim(services, principal, request_id, seconds=wanted.seconds, take_over=wanted.take_over)
    return ClaimView(request_id=request_id, claimed_by=lease.claimed_by, claimed_until=lease.claimed_until)


@router.delete(
    "/requests/{request_id}/claim",
    status_code=HTTPStatus.NO_CONTENT,
    responses=problems({409: "`claimed`: someone else holds the claim"}),
)
async def release_request(request_id: RequestId, services: ServicesDep, principal: OperatorDep) -> None:
    """Release a claim; without one nothing happens."""
    await claim.release(services, principal, request_id)


@router.post("/requests/{request_id}/reveal", responses=problems({403: "`not_a_person`, `not_eligible`"}))
async def reveal_secrets(request_id: RequestId, services: ServicesDep, principal: OperatorDep) -> RevealedSecrets:
    """Reveal the secrets in a request's arguments to a person who may decide it, or an admin. The audit log says who looked."""
    return RevealedSecrets(secrets=await reveal.reveal(services, principal, request_id))


# Comments on a request.


@router.get("/requests/{request_id}/comments")
async def list_comments(
    request_id: RequestId,
    services: ServicesDep,
    _principal: ReaderDep,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[CommentView]:
    """List a request's comments, oldest first."""
    after = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await comments.comment_page(conn, request_id, limit=limit, after=after)


@router.post(
    "/requests/{request_id}/comments",
    status_code=HTTPStatus.CREATED,
    responses=problems({409: "`idempotency_key_reused`"}),
)
async def add_comment(
    request_id: RequestId,
    body: CommentBody,
    services: ServicesDep,
    principal: OperatorDep,
    idempotency_key: IdempotencyKey = None,
) -> CommentView:
    """Comment on a request, pending or ended, for other people; no model reads it."""
    return await comments.comment(services, principal, request_id, text=body.text, idempotency_key=idempotency_key)


# Presence: who looks at a request now.


@router.get("/requests/{request_id}/presence")
async def get_presence(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> Presence:
    """Show who else has looked at the request within the last minute."""
    return _presence(await presence.who_looks(services, principal, request_id))


@router.post("/requests/{request_id}/presence")
async def keep_presence(request_id: RequestId, services: ServicesDep, principal: ReaderDep) -> Presence:
    """Report that you still look at the request, and see who else does. A page sends this every half minute."""
    return _presence(await presence.still_looking(services, principal, request_id))


def _presence(looking: Sequence[ActiveViewer]) -> Presence:
    return Presence(looking=[Viewer.model_validate(each) for each in looking])


# Many decisions at once.


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class BulkItem(LookBody):
    """One request, with the digest of the call as it was shown. ``decision_id``: its own Idempotency-Key."""

    request_id: Id
    digest: str
    decision_id: Annotated[str, Field(min_length=1, max_length=MAX_DECISION_ID_CHARS)] | None = None


class BulkBody(_Body):
    """Decide several requests in the same way. ``confirm``: as in a decision; `approve` for calls of several tools.

    ``grant_id``: a grant that you gave: each approval takes a use of it, and what it doesn't cover is not decided.
    """

    decision: Literal["approve", "reject"]
    items: Annotated[list[BulkItem], Field(min_length=1, max_length=MAX_ITEMS)]
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)] = ""
    confirm: Annotated[str, Field(max_length=255)] = ""
    grant_id: Id | None = None

    @property
    def order(self) -> orders.BulkOrder:
        """The order that the API's operations take."""
        items = [orders.BulkItem(**dict(each)) for each in self.items]
        return orders.BulkOrder(
            verb=self.decision, items=items, message=self.message, confirm=self.confirm, grant_id=self.grant_id
        )


@router.post("/requests/decisions")
async def decide_requests(
    body: BulkBody, services: ServicesDep, principal: OperatorDep, idempotency_key: IdempotencyKey = None
) -> DecidedItems:
    """Decide many requests in the same way; each gets its own answer.

    A call of high risk, one that several people have to approve, and a question can't be approved like this: its answer
    has the status 422 and the code `decide_alone`. All others are decided. The same body with the same Idempotency-Key gets
    the first answers.
    """
    return await bulk.decide_many(services, principal, body.order, key=idempotency_key)
