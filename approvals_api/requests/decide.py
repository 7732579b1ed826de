"""Submitting a decision. The store decides who wins: one transaction checks, writes and ends the request (DESIGN §3.4).

Neither a worker nor Temporal is needed for it. The run learns afterwards, by the request's id, that it was decided.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlalchemy.exc import IntegrityError

from turngate.approvals_api.policy.grants import check_grant, count_approval
from turngate.approvals_api.policy.reports import judge_edit
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests import apply
from turngate.approvals_api.requests.answer_check import check_content
from turngate.approvals_api.requests.claim import refuse_if_claimed
from turngate.approvals_api.requests.eligibility import (
    check_verb,
    require_as_opened,
    require_eligible,
    starters_or_newer,
)
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.errors import invalid
from turngate.domain.digest import derived_id
from turngate.domain.errors import ConflictError, GoneError, InvalidInputError, NotFoundError, TurngateError
from turngate.domain.policy.terms import person_of
from turngate.domain.requests import RequestStatus, runs_the_call
from turngate.domain.text.instants import in_utc
from turngate.domain.tools.defaults import leave_out
from turngate.domain.tools.secrets import has_marks
from turngate.store.clock import now
from turngate.store.database import Connection
from turngate.store.requests import requests
from turngate.store.requests.requests import Decision, Request
from turngate.store.runs import calls
from turngate.wire.orders import DecisionOrder

MAX_DECISION_ID_CHARS = 255
NEAR_END = timedelta(seconds=10)
"""So close to its end a request is held before its time is looked at: no twin may hear that it is over, and this one win."""


@dataclass(frozen=True, kw_only=True)
class DecisionAnswer:
    """The answer to a submitted decision. ``status`` ``pending``: it is one approval of several that the request needs.

    ``starts_at``: when the approved call starts; until then the approval can be taken back. None: at once, or nothing starts.
    """

    decision_id: str
    status: RequestStatus
    starts_at: str | None = None


async def submit(
    services: Services,
    principal: Principal,
    request_id: str,
    order: DecisionOrder,
    *,
    decision_id: str | None = None,
    grant_id: str | None = None,
) -> DecisionAnswer:
    """Submit one decision; the same ``decision_id`` with the same content gets the first answer again (I4).

    Args:
        services: the process's services.
        principal: who decides; must hold ``requests:decide`` (I10).
        request_id: the request.
        order: the decision (I6: it names the call as it was shown).
        decision_id: 1 to 255 characters; None makes one. It belongs to the credential that sends it: another one's decision
            under the same id gets an id of its own.
        grant_id: a grant for which an approval counts; None: for none.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``already_decided`` (details name the winner), ``already_approved``, ``claimed``, ``digest_differs``,
            ``changed_after_opening``: its row was changed in the database; ``idempotency_key_reused``
            or ``asked_again``: the edited call needs stricter terms, and a new request
            (``details["asked_again"]``) asks about it under them; ``not_covered`` or ``grant_ended``: see ``grant_id``.
        GoneError: ``run_ended`` or ``request_expired``.
        ForbiddenError: ``missing_scope`` or ``not_eligible``.
        InvalidInputError: the content does not fit (``errors``: pointer and message each), or ``confirm_needed``; nothing
            was saved.
        TooManyRequestsError: ``too_fast``.
        UnavailableError: the store is away; the same decision may be sent again.
    """
    principal.require("requests:decide")
    order = await _with_secrets(services, request_id, order)
    decision = requests.new_decision(
        order,
        decision_id=_checked_id(decision_id) or f"dec_{secrets.token_hex(12)}",
        request_id=request_id,
        by=principal.name,
        credential=principal.credential,
    )
    async with services.database.glance() as conn:
        seen, stored = await requests.with_decision(conn, request_id, decision.id)
        decision, earlier = await _sent_before(conn, decision, stored)
        others = frozenset[str]() if seen is None else await starters_or_newer(conn, seen.request)
    if seen is None:
        raise NotFoundError(f"there is no request {request_id!r}")
    if earlier is not None:
        return earlier
    request = require_as_opened(seen)
    if request.status == "superseded":
        await _require_no_other(services, request)
    try:
        return await _take(services, principal, order, decision, seen=request, others=others, grant_id=grant_id)
    except (GoneError, ConflictError):
        if request.status != "pending":
            raise
        # The same decision, sent twice at once: the other one may win right before the request's time runs out. It is waited for.
        async with services.database.write() as conn:
            await requests.hold(conn, request_id)
            _own, first = await _sent_before(conn, decision, await requests.decision(conn, decision.id))
        if first is None:
            raise
        return first


async def _take(
    services: Services,
    principal: Principal,
    order: DecisionOrder,
    decision: Decision,
    *,
    seen: Request,
    others: frozenset[str],
    grant_id: str | None,
) -> DecisionAnswer:
    """Check a decision whose id is new, and take it. ``seen``, ``others``: the request and its starters as they were read.

    Raises as :func:`submit`.
    """
    # All of it is checked again where it counts; the content, which may take long, only here: it is about what never changes.
    check(seen, principal, order, others)
    check_content(seen, order)
    stricter = await judge_edit(services, seen, order.args or "") if order.verb == "edit" else None
    runs = runs_the_call(seen.kind, order.verb, order.outcome)
    try:
        with services.pace.act(principal, [seen.tool_name] if runs else [], confirm=order.confirm):
            async with services.database.write() as conn:
                if stricter is None:
                    answer = await _decide(conn, principal, order, decision, seen=seen, grant_id=grant_id)
                else:
                    answer = await _replace(conn, principal, order, decision, seen=seen)
    except IntegrityError:  # the same id at the same moment, for this request or another one
        async with services.database.read() as conn:
            own, first = await _sent_before(conn, decision, await requests.decision(conn, decision.id))
        if first is None and own.id == decision.id:
            raise
        if first is not None:
            return first
        return await submit(services, principal, seen.id, order, decision_id=own.id, grant_id=grant_id)
    services.gateway.tell_decided(seen.run_id, seen.id)
    if stricter is not None:
        raise _asked_again(seen, f"of the edited call, {stricter}")
    return answer


async def withdraw_approval(services: Services, principal: Principal, request_id: str) -> str:
    """Take back the principal's approval while others are still missing, or while its call waits for the end of its grace.

    Without one nothing happens, so a repeat is safe. They may approve the call again later, under a new decision id, or reject
    it. Returns the request that waits for that: this one, or the one that asks again because this one was decided.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``already_decided``: the approvals were complete first, and there is no grace; or ``already_started``.
        GoneError: ``run_ended`` or ``request_expired``.
        ForbiddenError: ``missing_scope``.
        UnavailableError: the store is away.
    """
    principal.require("requests:decide")
    async with services.database.write() as conn:
        request = await requests.hold(conn, request_id)
        if request is None:
            raise NotFoundError(f"there is no request {request_id!r}")
        if request.starts_at is None:
            _require_pending(request)
            await apply.withdraw_approval(conn, request, principal)
            return request.id
        if principal.name not in await _approvers(conn, request):
            raise _not_pending(request)
        again = await requests.get(conn, requests.again_id(request))
        if again is not None:
            return again.id
        opened = await apply.take_back(conn, request, principal)
    services.gateway.tell_decided(request.run_id, opened)
    return opened


async def _approvers(conn: Connection, request: Request) -> set[str | None]:
    """Return who has approved a request that is approved."""
    several = await requests.of_request(conn, request.id) if request.quorum > 1 else []
    return {request.decided_by, *(each.decided_by for each in several)}


async def _with_secrets(services: Services, request_id: str, order: DecisionOrder) -> DecisionOrder:
    """Return the order with the secrets in place of the marks that an edit left as they were shown.

    What the call left out, and the edit sends as it was shown, stays left out.

    Raises InvalidInputError where a mark is not where its secret was.
    """
    if order.verb != "edit" or order.args is None:
        return order
    async with services.database.glance() as conn:
        request = await requests.get(conn, request_id)
    if request is None:
        return order
    edited, tool = leave_out(order.args, request.left_out), request.tool
    if not has_marks(edited):
        return order.model_copy(update={"args": edited})
    try:
        args = tool.edited_input(edited, request.input)
    except ValueError as error:
        raise invalid("/args", str(error), code="invalid_edit") from None
    return order.model_copy(update={"args": args})


def check(request: Request, principal: Principal, order: DecisionOrder, others: frozenset[str]) -> None:
    """Refuse a decision that cannot win as the request is now. Raises as :func:`submit`.

    ``others``: who counts as its starter.
    """
    _require_pending(request)
    if request.digest != order.digest:
        raise ConflictError(
            "the call has changed since it was shown: its digest differs. Reload the request and decide what it shows",
            code="digest_differs",
        )
    require_eligible(request, principal, others)
    check_verb(request, order.verb)
    refuse_if_claimed(request, principal)
    check_grant(request, principal, order)


def _require_pending(request: Request) -> None:
    if request.status != "pending":
        raise _not_pending(request)
    if request.has_expired(now()):  # its run may learn it later, when Temporal is back
        raise _expired()


async def _decide(
    conn: Connection,
    principal: Principal,
    order: DecisionOrder,
    decision: Decision,
    *,
    seen: Request,
    grant_id: str | None,
) -> DecisionAnswer:
    """Take the decision in one transaction: the first valid one ends the request, and what follows from it is written.

    ``seen``: the request at a moment when there was no decision of this id. Each decision about it changes it.
    ``grant_id``: as in :func:`submit`.
    """
    if grant_id is None and _is_plain_approval(seen, order):
        approved = await apply.approve_as_seen(conn, seen, principal, decision)
        if approved is not None:
            return _answer(seen, decision, approved)
    request = await requests.hold(conn, decision.request_id)
    if request is None:
        raise NotFoundError(f"there is no request {decision.request_id!r}")
    if request != seen:
        decision, earlier = await _sent_before(conn, decision, await requests.decision(conn, decision.id))
        if earlier is not None:
            return earlier
    check(request, principal, order, await starters_or_newer(conn, request))
    if grant_id is not None and order.verb == "approve":
        await count_approval(conn, request, principal, grant_id)
    if order.verb == "approve" and request.quorum > 1:
        before = await requests.of_request(conn, request.id)
        if person_of(principal.name) in {person_of(each.decided_by) for each in before}:
            missing = request.quorum - len(before)
            more = "One more person" if missing == 1 else f"{missing} more people"
            raise ConflictError(f"You approved this. {more} must approve it.", code="already_approved")
        if not await apply.count_approval(conn, request, principal, decision):
            return DecisionAnswer(decision_id=decision.id, status="pending")
    return _answer(request, decision, await apply.win(conn, request, principal, decision))


def _answer(request: Request, decision: Decision, status: RequestStatus) -> DecisionAnswer:
    """Return the answer to a decision that has ended the request, which is as it was before."""
    at = apply.decided_at(request, decision)
    starts_at = requests.start_of(request.ask_terms, at) if status == "approved" else None
    return DecisionAnswer(decision_id=decision.id, status=status, starts_at=starts_at)


def _is_plain_approval(request: Request, order: DecisionOrder) -> bool:
    """Tell whether the request's own row is all that an approval of it depends on, and all that follows is its end."""
    plain = order.verb == "approve" and order.grant is None and request.quorum == 1 and request.not_by is None
    return plain and not request.has_expired(now() + NEAR_END)


async def _replace(
    conn: Connection, principal: Principal, order: DecisionOrder, decision: Decision, *, seen: Request
) -> DecisionAnswer:
    """End a request without a decision, because the edited call needs other terms. The door opens another one about it.

    ``seen``: as in :func:`_decide`. Only the door can: the request's preview and precondition come from the tool's own code.
    """
    request = await requests.hold(conn, decision.request_id)
    if request is None:
        raise NotFoundError(f"there is no request {decision.request_id!r}")
    if request != seen:
        decision, _ = await _sent_before(conn, decision, await requests.decision(conn, decision.id))
    check(request, principal, order, await starters_or_newer(conn, request))
    await apply.replace_by_edit(conn, request, decision)
    return DecisionAnswer(decision_id=decision.id, status="superseded")


async def _require_no_other(services: Services, request: Request) -> None:
    """Raise ConflictError (``asked_again``) when an edit ended this request, and another one asks about the edited call."""
    async with services.database.read() as conn:
        call = await calls.get(conn, request.run_id, request.tool_call_id)
        again = await requests.get(conn, requests.again_id(request))
    if again is not None or (call is not None and call.result is None):
        raise _asked_again(request, "an edited call needs an answer of its own")


def _asked_again(request: Request, why: str) -> ConflictError:
    again = requests.again_id(request)
    return ConflictError(
        f"nothing was decided: {why}. The request {again} asks about it under its own terms; a worker opens it",
        code="asked_again",
        asked_again=again,
        reason=why,
    )


async def _sent_before(
    conn: Connection, decision: Decision, stored: Decision | None
) -> tuple[Decision, DecisionAnswer | None]:
    """Return a decision under an id that its credential may use, and the answer that it got before; None: it is new.

    ``stored``: the decision that has its id; None: none has. If another credential has used its id, it gets one that only
    this credential can have. Raises ConflictError (code ``idempotency_key_reused``) when this credential used the id for
    something else.
    """
    if stored is not None and stored.credential not in {None, decision.credential}:
        decision = replace(decision, id=derived_id("dec", decision.credential or "", decision.id))
        stored = await requests.decision(conn, decision.id)
    if stored is None:
        return decision, None
    request = await requests.get(conn, stored.request_id)
    if request is None or request.digest != decision.digest or not _same(stored, decision):
        raise ConflictError(
            f"the decision id {decision.id!r} was used for another decision: send this one under a new id",
            code="idempotency_key_reused",
        )
    if request.status == "superseded" and stored.verb == "edit":
        return decision, None  # it was edited, and the answer is what that led to
    won = await requests.by_decision(conn, decision.id)
    if won is None:
        return decision, DecisionAnswer(decision_id=decision.id, status="pending")
    return decision, DecisionAnswer(decision_id=decision.id, status=won.status, starts_at=won.starts_at)


def _not_pending(request: Request) -> TurngateError:
    if request.status == "cancelled":
        return GoneError("the run has ended, and this request ended with it", code="run_ended", status=request.status)
    if request.status == "superseded":
        return GoneError("a newer message replaced this request", code="request_superseded", status=request.status)
    if request.status == "expired":
        return _expired()
    when = "" if request.decided_at is None else f", at {in_utc(request.decided_at)}"
    return ConflictError(
        f"{request.decided_by} decided first: {request.verb}{when}",
        code="already_decided",
        decided_by=request.decided_by,
        verb=request.verb,
        decided_at=request.decided_at,
        decision_id=request.decision_id,
    )


def _expired() -> GoneError:
    return GoneError("this request has expired: no one answered in time", code="request_expired")


def _checked_id(decision_id: str | None) -> str | None:
    if decision_id is None or (0 < len(decision_id) <= MAX_DECISION_ID_CHARS and decision_id.isprintable()):
        return decision_id
    raise InvalidInputError(
        "a decision id (Idempotency-Key) has 1 to 255 printable characters",
        errors=[{"pointer": "", "message": "Idempotency-Key: 1 to 255 printable characters"}],
    )


def _same(one: Decision, other: Decision) -> bool:
    """Tell whether two decisions of one credential have the same content.

    Their instants do not matter, nor how long the sender looked. Nor does the stored digest, which is that of the edited call
    when an edit wins; the digest that was sent is to be the request's.
    """
    first, second = (_content(each) for each in (one, other))
    return first == second


def _content(decision: Decision) -> Decision:
    return replace(decision, created_at="", digest="", credential=None, looked_ms=None, seen_percent=None)
