"""Calls about requests: the inbox, and decisions."""

from __future__ import annotations

import json
from typing import TypedDict, Unpack

from turngate.client.calls import Call, get, key_or_new, model, post, segment, with_member, without_none
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.policy.policy import Risk
from turngate.domain.runs.inbox import InboxStatus
from turngate.domain.runs.requests import Outcome, RequestKind, Verb
from turngate.wire.decisions import DecisionResult
from turngate.wire.requests import RequestCount, RequestDetail, RequestItem
from turngate.wire.view import Page


class Where(TypedDict, total=False):
    """Which requests (``turngate.domain.runs.inbox.InboxFilter``), all conditions together; what is left out does not matter.

    ``status``: one status, ``decided`` for every one but ``pending``, ``all``; left out, ``pending``. ``rule``: the rule
    that asked. ``claimed``: whose claim stands, ``me`` for one's own, ``nobody`` for none. ``parked``: it ran out of time
    and waits on.
    """

    status: InboxStatus
    kind: RequestKind
    agent: str
    tool: str
    risk: Risk
    rule: str
    run_id: str
    claimed: str
    parked: bool


def list_requests(*, limit: int = 50, cursor: str | None = None, **where: Unpack[Where]) -> Call[Page[RequestItem]]:
    """Return one page of requests: pending ones oldest first, ended ones by their end, newest first.

    ``where``: conditions, such as ``status="all"`` or ``agent="support"`` (:class:`Where`); ``status`` left out is
    ``pending``. ``limit``: 1 to 200. ``cursor``: ``next_cursor`` of the page before, under the same conditions.
    """
    return get("/requests", model(Page[RequestItem]), limit=limit, cursor=cursor, **where)


def count_requests(**where: Unpack[Where]) -> Call[RequestCount]:
    """Return how many requests the list shows under the same conditions."""
    return get("/requests/count", model(RequestCount), **where)


def get_request(request_id: str) -> Call[RequestDetail]:
    """Return a request with everything needed to decide it. Raises NotFoundError."""
    return get(f"/requests/{segment(request_id)}", model(RequestDetail))


def decide(
    request_id: str,
    *,
    verb: Verb,
    digest: str,
    args: str | None = None,
    message: str = "",
    outcome: Outcome | None = None,
    grant: WantedGrant | None = None,
    decision_id: str | None = None,
) -> Call[DecisionResult]:
    """Decide a request. ``status`` None in the answer: recorded, and no worker has taken it up yet.

    Args:
        request_id: the request.
        verb: what is decided; one of the request's ``allowed_verbs``.
        digest: the request's ``digest``: of the call as it was shown, which is the only one this decides.
        args: JSON text that is sent as it is: edited arguments, an answer, or what a call returned.
        message: what the agent reads, such as the reason of a rejection; at most 10,000 characters.
        outcome: for a request of kind ``outcome`` only.
        grant: with approve or edit: approve calls like this from now on, if this decision wins.
        decision_id: its Idempotency-Key: the same decision again gets the first answer; None makes one.

    Raises:
        NotFoundError: no such request.
        ConflictError: ``already_decided`` (``details`` name the winner), ``digest_differs``, ``idempotency_key_reused``.
        GoneError: ``run_ended`` or ``request_expired``.
        ForbiddenError: the credential, or this person, may not decide it.
        InvalidInputError: ``args`` is not JSON, or the content does not fit; nothing was saved.
    """
    granted = None if grant is None else grant.model_dump(mode="json")
    members = {"decision": verb, "digest": digest, "message": message or None, "outcome": outcome, "grant": granted}
    body = with_member(json.dumps(without_none(members)), "args", args)
    path = f"/requests/{segment(request_id)}/decisions"
    return post(path, model(DecisionResult), body, key=key_or_new(decision_id))
