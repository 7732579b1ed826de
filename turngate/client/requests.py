"""Calls about requests: the inbox, and decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, TypedDict, Unpack

from turngate.client.calls import (
    Call,
    change,
    get,
    key_or_new,
    model,
    nothing,
    post,
    segment,
    with_member,
    without_none,
)
from turngate.domain.policy.policy import Risk
from turngate.domain.requests import RequestKind
from turngate.domain.runs.inbox import InboxOrder, InboxStatus
from turngate.domain.text.suggestions import refuse_unknown
from turngate.wire.decisions import DecidedItems, DecisionResult
from turngate.wire.orders import DecisionOrder, Look
from turngate.wire.requests import (
    ClaimView,
    CommentView,
    Presence,
    RequestCount,
    RequestDetail,
    RequestItem,
    RevealedSecrets,
)
from turngate.wire.view import Page


class Where(TypedDict, total=False):
    """Which requests (``turngate.domain.runs.inbox.InboxFilter``), all conditions together; what is left out does not matter.

    ``status``: one status, ``decided`` for every one but ``pending``, ``all``; left out, ``pending``. ``search``: words that
    all occur in the request or in its run's task. ``rule``: the rule
    that asked. ``claimed``: who has claimed it, ``me`` for one's own, ``nobody`` for none. ``parked``: it ran out of time
    and waits on. ``order``: of pending ones; left out, ``urgency``.
    """

    status: InboxStatus
    search: str
    kind: RequestKind
    agent: str
    tool: str
    risk: Risk
    rule: str
    run_id: str
    step: int
    claimed: str
    parked: bool
    order: InboxOrder


def list_requests(*, limit: int = 50, cursor: str | None = None, **where: Unpack[Where]) -> Call[Page[RequestItem]]:
    """Return one page of requests: pending ones by urgency or age, ended ones by their end, newest first.

    ``where``: conditions, such as ``status="all"`` or ``agent="support"`` (:class:`Where`); ``status`` left out is
    ``pending``. ``limit``: 1 to 200. ``cursor``: ``next_cursor`` of the page before, under the same conditions. Long
    arguments are clipped, with ``input_digest`` set: :func:`get_request` returns them whole.
    """
    refuse_unknown(where, {*Where.__optional_keys__, "limit", "cursor"}, "list_requests")
    return get("/requests", model(Page[RequestItem]), limit=limit, cursor=cursor, **where)


def count_requests(**where: Unpack[Where]) -> Call[RequestCount]:
    """Return how many requests the list shows under the same conditions."""
    refuse_unknown(where, Where.__optional_keys__, "count_requests")
    return get("/requests/count", model(RequestCount), **where)


def get_request(request_id: str) -> Call[RequestDetail]:
    """Return a request with everything needed to decide it. Raises NotFoundError."""
    return get(f"/requests/{segment(request_id)}", model(RequestDetail))


def decide(request_id: str, order: DecisionOrder, *, decision_id: str | None = None) -> Call[DecisionResult]:
    """Decide a request. The answer is final, also while no worker runs.

    Args:
        request_id: the request.
        order: the decision, about the call as it was shown.
        decision_id: its Idempotency-Key: the same decision again gets the first answer; None makes one.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``already_decided`` (``details`` name the winner), ``digest_differs``, ``idempotency_key_reused``,
            ``asked_again`` (an edit that needs stricter terms; ``details["asked_again"]`` is the request that asks).
        GoneError: ``run_ended`` or ``request_expired``.
        ForbiddenError: the credential, or this person, may not decide it.
        InvalidInputError: the order's ``args`` is not JSON, or the content does not fit; nothing was saved. Code
            ``confirm_needed``: the same with ``confirm`` is taken.
        TooManyRequestsError: ``too_fast``: a person approved many calls within seconds.
    """
    members = {
        "decision": order.verb,
        "digest": order.digest,
        "message": order.message or None,
        "outcome": order.outcome,
        "grant": None if order.grant is None else order.grant.model_dump(mode="json"),
        "answer_waiting": order.answer_waiting or None,
        "confirm": order.confirm or None,
        "looked_ms": order.looked_ms,
        "seen_percent": order.seen_percent,
    }
    body = with_member(json.dumps(without_none(members)), "args", order.args)
    path = f"/requests/{segment(request_id)}/decisions"
    return post(path, model(DecisionResult), body, key=key_or_new(decision_id))


def withdraw_approval(request_id: str) -> Call[None]:
    """Take back one's own approval of a request that needs several; without one nothing happens.

    Raises ConflictError ``already_decided``: the approvals were complete first; GoneError: it has ended.
    """
    return change("DELETE", f"/requests/{segment(request_id)}/approval", nothing)


def reveal_secrets(request_id: str) -> Call[RevealedSecrets]:
    """Reveal the secrets of a request's call. The audit log says who looked.

    Raises ForbiddenError: ``not_a_person``, or ``not_eligible`` to decide it.
    """
    return change("POST", f"/requests/{segment(request_id)}/reveal", model(RevealedSecrets))


# Many decisions at once.


def decide_requests(
    digests: Mapping[str, str],
    *,
    verb: Literal["approve", "reject"],
    message: str = "",
    confirm: str = "",
    grant_id: str | None = None,
    look: Look | None = None,
    idempotency_key: str | None = None,
) -> Call[DecidedItems]:
    """Decide several requests in the same way, and return the result of each.

    What can't be approved together with others (high risk, several approvals, a question) has the problem ``decide_alone``.

    Args:
        digests: request id → the digest of the call as it was shown; 1 to 100.
        verb: what is decided of each.
        message: what the agents read.
        confirm: what a person types after many approvals within a minute: the tool's name, ``approve`` for several tools.
        grant_id: one's own grant, of which each approval takes a use.
        look: how all of them were looked at together.
        idempotency_key: the same again gets the first answers; None makes one.

    Raises:
        InvalidInputError: ``invalid_bulk``: not 1 to 100 requests; nothing was sent.
        ForbiddenError: the credential may not decide.
    """
    looked = {} if look is None else without_none(look.model_dump())
    items = [{"request_id": request_id, "digest": digest, **looked} for request_id, digest in digests.items()]
    optional = without_none({"confirm": confirm or None, "grant_id": grant_id})
    body = {"decision": verb, "items": items, "message": message, **optional}
    return post("/requests/decisions", model(DecidedItems), body, key=key_or_new(idempotency_key))


# Calls about working through the inbox: claims, comments, who else looks, and filters saved under a name.


def claim_request(request_id: str, *, seconds: int | None = None, take_over: bool = False) -> Call[ClaimView]:
    """Claim a request for a while, or renew one's own claim: no one else decides it meanwhile.

    ``seconds``: how long; None is the server's own. ``take_over``: also when someone else has claimed it.
    Raises ConflictError ``claimed`` (``details`` name who, and until when) or ``request_not_pending``.
    """
    body = {"take_over": take_over} if seconds is None else {"seconds": seconds, "take_over": take_over}
    return post(f"/requests/{segment(request_id)}/claim", model(ClaimView), body)


def release_request(request_id: str) -> Call[None]:
    """Give a claim back; without one nothing happens. Raises ConflictError ``claimed``: it is someone else's."""
    return change("DELETE", f"/requests/{segment(request_id)}/claim", nothing)


def list_comments(request_id: str, *, limit: int = 50, cursor: str | None = None) -> Call[Page[CommentView]]:
    """Return one page of a request's comments, oldest first. ``limit``: 1 to 200."""
    return get(f"/requests/{segment(request_id)}/comments", model(Page[CommentView]), limit=limit, cursor=cursor)


def add_comment(request_id: str, text: str, *, idempotency_key: str | None = None) -> Call[CommentView]:
    """Comment on a request, pending or ended, for other people; no model reads it."""
    key = key_or_new(idempotency_key)
    return post(f"/requests/{segment(request_id)}/comments", model(CommentView), {"text": text}, key=key)


def get_presence(request_id: str) -> Call[Presence]:
    """Return who else has looked at the request within the last minute."""
    return get(f"/requests/{segment(request_id)}/presence", model(Presence))


def keep_presence(request_id: str) -> Call[Presence]:
    """Say that one still looks at the request, and return who else does."""
    return change("POST", f"/requests/{segment(request_id)}/presence", model(Presence))
