"""Submitting a decision: checked here, decided by the run's workflow (DESIGN §3.4)."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace

from sqlalchemy.exc import IntegrityError

from approvals_api.policy.grants import check_grant
from approvals_api.principal import Principal
from approvals_api.requests.answer_check import check_content
from approvals_api.requests.claim import refuse_if_claimed
from approvals_api.requests.eligibility import check_verb, require_eligible
from approvals_api.runs.lost import is_lost
from approvals_api.services import Services
from turngate.domain.contract import DecideInput
from turngate.domain.errors import (
    ConflictError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    TurngateError,
    UnavailableError,
)
from turngate.domain.requests import RequestStatus, Verb
from turngate.store.clock import from_text
from turngate.store.requests import requests
from turngate.store.requests.requests import Decision, Request
from turngate.wire.orders import DecisionOrder

MAX_DECISION_ID_CHARS = 255
MAYBE_DECIDED = frozenset({"already_decided", "unknown_request", "run_ended"})
"""Refusals after which the store may know more than the refusal says."""


@dataclass(frozen=True, kw_only=True)
class DecisionAnswer:
    """The answer to a submitted decision. ``recorded_only``: it waits for a worker, so ``status`` is not known yet.

    ``status`` ``pending``: it counts as one approval of several that the request needs.
    """

    decision_id: str
    status: RequestStatus | None
    recorded_only: bool


async def submit(
    services: Services, principal: Principal, request_id: str, order: DecisionOrder, *, decision_id: str | None = None
) -> DecisionAnswer:
    """Submit one decision; the same ``decision_id`` with the same content gets the first answer again (I4).

    Args:
        services: the process's services.
        principal: who decides; must hold ``requests:decide`` (I10).
        request_id: the request.
        order: the decision (I6: it names the call as it was shown).
        decision_id: 1 to 255 characters; None makes one.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``already_decided`` (details name the winner), ``already_approved``, ``claimed``, ``digest_differs``
            or ``idempotency_key_reused``.
        GoneError: ``run_ended`` or ``request_expired``.
        ForbiddenError: ``missing_scope`` or ``not_eligible``.
        InvalidInputError: the content does not fit (``errors``: pointer and message each); nothing was saved.
        UnavailableError: Temporal or the store is away; the same decision may be sent again.
    """
    principal.require("requests:decide")
    offer = requests.new_decision(
        order,
        decision_id=_checked_id(decision_id) or f"dec_{secrets.token_hex(12)}",
        request_id=request_id,
        by=principal.name,
    )
    request, earlier = await _look_up(services, offer, chosen=decision_id is not None)
    if earlier is not None:
        return earlier
    if request.status != "pending":
        raise _not_pending(request)
    if request.digest != order.digest:
        raise ConflictError(
            "the call has changed since it was shown: its digest differs. Reload the request and decide what it shows",
            code="digest_differs",
        )
    require_eligible(request, principal)
    check_verb(request, order.verb)
    refuse_if_claimed(request, principal)
    check_grant(request, principal, order)
    check_content(request, order)
    if _has_content(offer):
        await _store_offer(services, offer)
    return await _send(services, request, principal, offer)


async def _send(services: Services, request: Request, principal: Principal, offer: Decision) -> DecisionAnswer:
    """Send the decision to the workflow; remove its content again if the workflow refuses it."""
    decision = DecideInput(
        decision_id=offer.id,
        request_id=offer.request_id,
        verb=offer.verb,
        digest=offer.digest,
        by=offer.decided_by,
        outcome=offer.outcome,
        role=principal.role,
        machine=principal.machine,
        sent_at=from_text(offer.created_at),
    )
    try:
        content = json.dumps([offer.args, offer.message, offer.grant_wanted]) if _has_content(offer) else ""
        result = await services.gateway.decide(request.run_id, decision, content=content)
    except UnavailableError:
        # Its content stays: the decision may have reached Temporal before the answer was lost.
        raise
    except TurngateError as refusal:
        await _withdraw(services, offer)
        return await _first_answer(services, offer, refusal)
    if result is not None:
        return DecisionAnswer(decision_id=offer.id, status=result.status, recorded_only=False)
    return await _first_answer(services, offer, None)


async def _first_answer(services: Services, offer: Decision, refusal: TurngateError | None) -> DecisionAnswer:
    """Answer by what the store has now, if the workflow's own answer is missing or does not name the winner.

    A refusal can be wrong about this decision: its update was recorded, the answer got lost with a worker's task or with the
    end of the run, and the second delivery met a request that was decided, by this decision. So the row is read before the
    refusal counts.
    """
    if refusal is not None and refusal.error_code not in MAYBE_DECIDED:
        raise refusal
    async with services.database.read() as conn:
        request = await requests.get(conn, offer.request_id)
        counted = await requests.approval_of_decision(conn, offer.id)
    if request is not None and request.decision_id == offer.id:
        return DecisionAnswer(decision_id=offer.id, status=request.status, recorded_only=False)
    if counted is not None and counted.request_id == offer.request_id:
        return DecisionAnswer(decision_id=offer.id, status="pending", recorded_only=False)
    if request is not None and request.status != "pending":
        raise _not_pending(request)
    if refusal is not None and request is not None and await _is_lost(services, request.run_id, refusal):
        # The workflow is gone, and the run is not over: the person must know that it is not too late.
        raise UnavailableError(
            f"Temporal has lost the workflow of run {request.run_id}, so nothing was decided. Recover the run "
            "(`turngate recover`), then send this again.",
            run_id=request.run_id,
        )
    if refusal is not None:
        raise refusal
    return DecisionAnswer(decision_id=offer.id, status=None, recorded_only=True)


async def _is_lost(services: Services, run_id: str, refusal: TurngateError) -> bool:
    return refusal.error_code == "run_ended" and await is_lost(services, run_id)


async def _look_up(services: Services, offer: Decision, *, chosen: bool) -> tuple[Request, DecisionAnswer | None]:
    """Return the request, and the first answer if the same decision was sent before.

    ``chosen``: the caller named the decision id, so it may have been used. Raises ConflictError when it was used for
    something else.
    """
    # A glance is enough: the workflow decides in any case.
    async with services.database.glance() as conn:
        request = await requests.get(conn, offer.request_id)
        if request is None:
            raise NotFoundError(f"there is no request {offer.request_id!r}")
        stored = await requests.decision(conn, offer.id) if chosen else None
        taken = await requests.by_decision(conn, offer.id) if chosen else None
        counted = await requests.approval_of_decision(conn, offer.id) if chosen and taken is None else None
    if stored is not None and not _same(stored, offer):
        raise _reused(offer.id)
    earlier: tuple[str, Verb | None, str, str | None]
    status: RequestStatus
    if taken is not None:
        earlier, status = (taken.id, taken.verb, taken.digest, taken.decided_by), taken.status
    elif counted is not None:
        # An approval is counted only under the digest of its request, which never changes.
        earlier, status = (counted.request_id, "approve", request.digest, counted.decided_by), "pending"
    else:
        return request, None
    message = "" if counted is None else counted.message
    known = stored or replace(offer, args=None, message=message, outcome=None, grant_wanted=None)
    if earlier != (offer.request_id, offer.verb, offer.digest, offer.decided_by) or not _same(known, offer):
        raise _reused(offer.id)
    return request, DecisionAnswer(decision_id=offer.id, status=status, recorded_only=False)


async def _store_offer(services: Services, offer: Decision) -> None:
    try:
        async with services.database.write() as conn:
            await requests.offer(conn, offer)
    except IntegrityError:
        async with services.database.read() as conn:
            stored = await requests.decision(conn, offer.id)
        if stored is None or not _same(stored, offer):
            raise _reused(offer.id) from None


async def _withdraw(services: Services, offer: Decision) -> None:
    if _has_content(offer):
        async with services.database.write() as conn:
            await requests.withdraw(conn, offer.id)


def _not_pending(request: Request) -> TurngateError:
    if request.status == "cancelled":
        return GoneError("the run has ended, and this request ended with it", code="run_ended", status=request.status)
    if request.status == "superseded":
        return GoneError("a newer message replaced this request", code="request_superseded", status=request.status)
    if request.status == "expired":
        return GoneError("this request has expired: no one answered in time", code="request_expired")
    return ConflictError(
        f"{request.decided_by} decided first: {request.verb}, at {request.decided_at}",
        code="already_decided",
        decided_by=request.decided_by,
        verb=request.verb,
        decided_at=request.decided_at,
        decision_id=request.decision_id,
    )


def _reused(decision_id: str) -> ConflictError:
    return ConflictError(
        f"the decision id {decision_id!r} was used for another decision: send this one under a new id",
        code="idempotency_key_reused",
    )


def _checked_id(decision_id: str | None) -> str | None:
    if decision_id is None or (0 < len(decision_id) <= MAX_DECISION_ID_CHARS and decision_id.isprintable()):
        return decision_id
    raise InvalidInputError(
        "a decision id (Idempotency-Key) has 1 to 255 printable characters",
        errors=[{"pointer": "", "message": "Idempotency-Key: 1 to 255 printable characters"}],
    )


def _has_content(offer: Decision) -> bool:
    return offer.args is not None or offer.message != "" or offer.outcome is not None or offer.grant_wanted is not None


def _same(one: Decision, other: Decision) -> bool:
    """Tell whether two decisions have the same content.

    Their instants do not matter. Nor does the stored digest, which becomes that of the edited call when an edit wins; the
    digest that was sent is compared with the request's.
    """
    return replace(one, created_at="", digest="") == replace(other, created_at="", digest="")
