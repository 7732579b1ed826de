"""Offering a rule: for a request like many that people approved, the rule that would answer the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from turngate.approvals_api.policy.grants import ungrantable
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import NotFoundError
from turngate.domain.policy.policy import Rule
from turngate.domain.tools.defaults import CHANGES, Default, constant_text, for_readers
from turngate.domain.tools.secrets import has_marks, mask_json
from turngate.domain.tools.tool import ProcessConfinement
from turngate.policies.offers import DecidedCall, Offer, narrowest_rule
from turngate.policies.rule_text import rule_text
from turngate.policies.rule_words import in_a_sentence
from turngate.store.database import Connection
from turngate.store.policy import policies
from turngate.store.requests import precedents, requests
from turngate.store.requests.precedents import DecidedInput
from turngate.store.requests.requests import Request
from turngate.wire.policy import RuleOffer
from turngate.wire.requests import RequestDetail, RequestItem

COMPARED: Final = 200
"""Of a tool's decided calls, the newest."""
MAX_CHARS: Final = 4_000
"""Of the arguments of a call that is compared."""
ANSWERED_BY_A_RULE: Final = frozenset({"default", "tool:ask"})
"""Who asked, where an allow rule would let such a call run: an ask rule comes before it."""


async def offer_of(conn: Connection, request: Request | RequestDetail, *, least: int) -> Offer | None:
    """Return the rule to offer with a request; None: there are too few approved calls like it, or no rule may be offered.

    ``least``: approved calls that it takes; 0: nothing is ever offered. Never for a call of high risk or of several
    approvals, one that an ask rule wants a person to see, or one with a secret. At most one statement.
    """
    has_secret = isinstance(request, Request) and request.masked_input is not None
    if has_secret or ungrantable(request) is not None or not _may_offer(request, least):
        return None
    decided = await precedents.newest_of_tool(conn, request.tool_name, limit=COMPARED, max_chars=MAX_CHARS)
    return await asyncio.to_thread(_offer, request, decided, least)


async def offers_of(conn: Connection, listed: Sequence[RequestItem], *, least: int) -> dict[str, Offer]:
    """Return request → the rule to offer with it, as :func:`offer_of` does, for the first few that may have one.

    One statement, if there are any; at most :data:`MOST_TOOLS` requests.
    """
    may = [each for each in listed if each.kind == "approval" and each.risk != "high" and each.quorum == 1]
    candidates = {each.id: each for each in may if _may_offer(each, least)}
    if not candidates:
        return {}
    tools = {request_id: each.tool_name for request_id, each in candidates.items()}
    decided = await precedents.newest_of_tools(conn, tools, limit=COMPARED, max_chars=MAX_CHARS)
    offers: dict[str, Offer] = {}
    for request_id, of_tool in decided.items():
        confined = of_tool.confinement
        if of_tool.has_secret or (confined and ProcessConfinement.model_validate_json(confined).always_asks):
            continue
        offer = await asyncio.to_thread(_offer, candidates[request_id], of_tool.decided, least)
        if offer is not None:
            offers[request_id] = offer
    return offers


def _may_offer(request: Request | RequestItem, least: int) -> bool:
    """Tell whether a rule may be offered as far as a list says; one with a secret has a mark there."""
    if not least or request.rule not in ANSWERED_BY_A_RULE or len(request.input) > MAX_CHARS:
        return False
    if any(each.source in CHANGES for each in _left_out(request)):
        return False  # a rule has to fit what is written, too
    return not has_marks(mask_json(request.input).text)


def _offer(request: Request | RequestItem, newest: Sequence[DecidedInput], least: int) -> Offer | None:
    decided = [
        DecidedCall(input=each.input if len(each.input) <= MAX_CHARS else None, verb=each.verb)
        for each in newest
        if each.agent == request.agent
    ]
    if sum(each.verb == "approve" for each in decided) < least:
        return None
    whole = constant_text(request.input, _left_out(request))
    return narrowest_rule(request.tool_name, request.agent, whole, decided, least=least)


def _left_out(request: Request | RequestItem) -> Sequence[Default]:
    return for_readers(request.left_out if isinstance(request, Request) else request.defaults)


async def rule_offer(services: Services, principal: Principal, request_id: str) -> RuleOffer:
    """Return the rule that is offered with a request, under a name that no stored rule has.

    Raises:
        NotFoundError: no such request, or nothing is offered with it (code ``no_offer``).
        ForbiddenError: the principal is no admin.
    """
    principal.require("admin")
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
        if request is None:
            raise NotFoundError(f"there is no request {request_id!r}")
        offer = await offer_of(conn, request, least=services.settings.offer_rule_after)
        newest = await policies.newest(conn)
    if offer is None:
        raise NotFoundError(
            "no rule is offered with this request: too few calls like it were approved, or one was not", code="no_offer"
        )
    rule = _named(offer.rule, "" if newest is None else newest.source)
    return RuleOffer(approved=offer.approved, says=in_a_sentence(rule), toml=rule_text(rule))


def _named(rule: Rule, source: str) -> Rule:
    """Return the rule under a name that doesn't occur in a text: another rule may have it."""
    names = (rule.name, *(f"{rule.name} {number}" for number in range(2, 1_000)))
    free = next((each for each in names if each not in source), names[-1])
    return rule.model_copy(update={"name": free})
