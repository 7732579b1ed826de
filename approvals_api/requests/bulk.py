"""Many requests decided at once. Each gets its own answer: what needs a decision of its own doesn't hold up the others."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from turngate.approvals_api.pace import Pace
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import decide
from turngate.approvals_api.requests.eligibility import why_not
from turngate.approvals_api.services import Services
from turngate.domain.digest import derived_id
from turngate.domain.errors import InvalidInputError, TurngateError
from turngate.domain.requests import why_alone
from turngate.store.requests import requests
from turngate.store.requests.claims import live_lease
from turngate.store.requests.requests import ListedRequest, Request
from turngate.wire.decisions import DecidedItem, DecidedItems
from turngate.wire.orders import BulkItem, BulkOrder
from turngate.wire.people import display_name
from turngate.wire.problems import problem_document, status_of

logger = logging.getLogger(__name__)

MAX_ITEMS: Final = 100
AT_ONCE: Final = 8


async def decide_many(
    services: Services, principal: Principal, order: BulkOrder, *, key: str | None = None
) -> DecidedItems:
    """Submit one decision for each item, and return the outcome of each, in their order.

    The failure of one never affects another. The same items under the same key get the same decision ids, so a repeat gets
    the first answers.

    Raises:
        InvalidInputError: ``invalid_bulk``: not 1 to 100 distinct requests; nothing was sent.
        ForbiddenError: ``missing_scope``.
        TooManyRequestsError, InvalidInputError: ``too_fast`` or ``confirm_needed``, as for one decision; nothing was sent.
    """
    principal.require("requests:decide")
    items = order.items
    if not 1 <= len(items) <= MAX_ITEMS:
        raise _invalid(f"1 to {MAX_ITEMS} requests can be decided at once", "/items")
    if key is not None and not (0 < len(key) <= decide.MAX_DECISION_ID_CHARS and key.isprintable()):
        raise _invalid("Idempotency-Key: 1 to 255 printable characters", "")
    ids = [item.request_id for item in items]
    again = next((place for place, each in enumerate(ids) if each in ids[:place]), None)
    if again is not None:
        raise _invalid(f"the request {ids[again]!r} is named twice", f"/items/{again}/request_id")
    async with services.database.glance() as conn:
        known = await requests.get_listed(conn, ids)
    few = asyncio.Semaphore(AT_ONCE)
    at_own_pace = replace(services, pace=Pace(0))  # all of it is one act

    async def decided(item: BulkItem) -> DecidedItem:
        async with few:
            decision_id = _decision_id(principal, item, key)
            return await _decide(at_own_pace, principal, order, item, decision_id, known.get(item.request_id))

    common = [each.tool_name for each in known.values() if why_alone(each.kind, each.risk, each.quorum) is None]
    with services.pace.act(principal, common if order.verb == "approve" else [], confirm=order.confirm):
        return DecidedItems(items=await asyncio.gather(*(decided(item) for item in items)))


def why_left_out(request: Request, principal: Principal) -> str | None:
    """Return why this principal can't approve the request together with others, in words for them; None: they may.

    Only what the request says of itself counts: who else counts as its starter is checked when it is decided.
    """
    reason = why_alone(request.kind, request.risk, request.quorum) or why_not(request, principal, ())
    if reason is not None:
        return reason
    if "approve" not in request.ask_terms.verbs(request.kind):
        return "its rule lets no one approve it as it is"
    lease = live_lease(request)
    return None if lease is None or lease.is_of(principal.name) else f"{display_name(lease.claimed_by)} has claimed it"


async def _decide(
    services: Services,
    principal: Principal,
    order: BulkOrder,
    item: BulkItem,
    decision_id: str | None,
    request: ListedRequest | None,
) -> DecidedItem:
    try:
        if request is not None and order.verb == "approve":
            _require_common(request)
        decision = order.decision(item)
        answer = await decide.submit(
            services, principal, item.request_id, decision, decision_id=decision_id, grant_id=order.grant_id
        )
    except TurngateError as error:
        status = status_of(error)
        problem = problem_document(status, error.error_code, error.message, error.details)
        return _failed(item, decision_id, status, problem)
    except Exception:  # a bug with one request must not hide the outcome of the others
        logger.exception("deciding %s in bulk failed", item.request_id, extra={"request_id": item.request_id})
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        detail = "Turngate failed: this is a bug. The server's log says what happened."
        return _failed(item, decision_id, status, problem_document(status, "internal_error", detail, {}))
    return DecidedItem(
        request_id=item.request_id,
        status=HTTPStatus.OK,
        decision_id=answer.decision_id,
        request_status=answer.status,
        starts_at=answer.starts_at,
        problem=None,
    )


def _require_common(request: ListedRequest) -> None:
    alone = why_alone(request.kind, request.risk, request.quorum)
    if alone is not None:
        message = f"decide this on its own: {alone}"
        raise InvalidInputError(message, code="decide_alone", errors=[{"pointer": "/decision", "message": message}])


def _failed(item: BulkItem, decision_id: str | None, status: HTTPStatus, problem: dict[str, object]) -> DecidedItem:
    return DecidedItem.model_validate(
        {
            "request_id": item.request_id,
            "status": int(status),
            "decision_id": decision_id,
            "request_status": None,
            "problem": problem,
        }
    )


def _decision_id(principal: Principal, item: BulkItem, key: str | None) -> str | None:
    if item.decision_id is not None or key is None:
        return item.decision_id
    # The credential is part of it: under the same key, someone else sees who won, not that an id was used.
    return derived_id("dec", principal.credential, key, item.request_id)


def _invalid(message: str, pointer: str) -> InvalidInputError:
    return InvalidInputError(message, code="invalid_bulk", errors=[{"pointer": pointer, "message": message}])
