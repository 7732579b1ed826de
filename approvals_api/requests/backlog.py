"""Requests that wait, though a rule or a grant lets such calls run by now.

These answer calls that come, and a person those that are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from turngate.approvals_api.pace import Pace
from turngate.approvals_api.policy import rules
from turngate.approvals_api.policy.grants import covers
from turngate.approvals_api.policy.preview import MAX_CALL_CHARS, World
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.requests.bulk import MAX_ITEMS, decide_many
from turngate.approvals_api.services import Services
from turngate.domain.errors import ConfigurationError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.domain.policy.grants import Grant, WantedGrant
from turngate.domain.policy.policy import Policy, Rule, parse_policy
from turngate.policies.backtest import Unjudged, judge
from turngate.store.clock import now
from turngate.store.policy import grants, policies, recorded_calls
from turngate.store.policy.grants import StoredGrant
from turngate.store.policy.recorded_calls import WaitingCall
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.wire.decisions import DecidedItem
from turngate.wire.orders import BulkItem, BulkOrder
from turngate.wire.policy import WaitingForGrant, WaitingForRule, WaitingRequest

MOST_READ: Final = 1_000
"""Pending requests that are judged, the oldest first."""


async def waiting_for_rule(services: Services, principal: Principal, name: str) -> WaitingForRule:
    """Return the pending requests whose calls an enforced rule would let run if they came now, at most 100, the oldest first.

    Each has to be decided by itself: quorum, starter, expiry and risk of the request hold. Decides nothing.

    Raises:
        NotFoundError: no stored rule has this name.
        InvalidInputError: ``not_enforced``: it is a shadow rule, asks or denies, or has a total, which decisions don't count in.
        ForbiddenError: ``missing_scope``.
    """
    principal.require("requests:decide")
    rule = await rules.stored_rule(services, name)
    if rule.verdict != "allow" or rule.shadow or rule.total is not None:
        problem = "only a rule that is enforced and lets calls run without a total answers what waits"
        raise InvalidInputError(problem, code="not_enforced")
    async with services.database.read() as conn:
        newest = await policies.newest(conn)
        world = await World.of(conn)
        waiting = await recorded_calls.waiting(conn, limit=MOST_READ, max_chars=MAX_CALL_CHARS)
    stored = _readable("" if newest is None else newest.source)
    version = 0 if newest is None else newest.version
    covered = await asyncio.to_thread(_covered, rule, stored, world, waiting)
    return WaitingForRule(
        rule=name,
        version=version,
        reason=f"Rule {name!r} of policy version {version} lets such calls run.",
        requests=[
            WaitingRequest(request_id=each.request_id, digest=each.digest, tool=each.call.tool)
            for each in covered[:MAX_ITEMS]
        ],
        more=len(covered) > MAX_ITEMS or len(waiting) == MOST_READ,
    )


def _covered(rule: Rule, stored: Policy, world: World, waiting: Sequence[WaitingCall]) -> list[WaitingCall]:
    """Return the calls that policy would let run by this very rule, as their arguments are now."""
    covered = []
    for each in waiting:
        call = each.call
        if not rule.is_about(tool=call.tool, agent=call.agent):
            continue
        policy = stored.joined_with(world.policy_of(call.agent, call.workspace))
        verdict = judge(policy, call, world.tools.get((call.agent, call.tool)), None)
        if not isinstance(verdict, Unjudged) and (verdict.answer, verdict.rule) == ("allow", rule.name):
            covered.append(each)
    return covered


def _readable(source: str) -> Policy:
    try:
        return parse_policy(source, source="stored")
    except ConfigurationError:
        return Policy()


# Grants. A call is answered at once only if its arguments were on the screen, byte for byte; others are reviewed first.


async def waiting_for_grant(services: Services, principal: Principal, grant_id: str) -> WaitingForGrant:
    """Return the pending requests that a grant covers: at most 100 and as many as it has uses left, the oldest first.

    As with a rule, each has to be decided by itself. Decides nothing. An ended grant covers none.

    Raises:
        NotFoundError: no such grant.
        ForbiddenError: ``missing_scope``, or ``not_eligible``: someone else gave the grant.
    """
    principal.require("requests:decide")
    async with services.database.read() as conn:
        stored = await grants.get(conn, grant_id)
    if stored is None:
        raise NotFoundError(f"there is no grant {grant_id!r}")
    if stored.created_by != principal.name:
        raise ForbiddenError("only the person who gave a grant answers with it what waits", code="not_eligible")
    covered, more = ([], False) if _has_ended(stored) else await _covered_by(services, stored.grant)
    return WaitingForGrant(
        grant_id=grant_id,
        reason=reason_of_grant(grant_id),
        requests=[WaitingRequest(request_id=each.id, digest=each.digest, tool=each.tool_name) for each in covered],
        more=more,
    )


async def count_for_wanted(services: Services, principal: Principal, request_id: str, wanted: WantedGrant) -> int:
    """Return how many other pending requests a grant would cover if it came with the approval of this request.

    If every argument has one value, only those with the same bytes count: no one reviews them.
    """
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
    if request is None:
        return 0
    grant = Grant(
        id="",
        pattern=wanted.pattern,
        scope=wanted.scope,
        run_id=request.run_id,
        agent=request.agent,
        expires_at=now(),
        max_uses=wanted.max_uses,
        uses=0,
        created_by=principal.name,
    )
    same_as = request.input if wanted.pattern.is_exact else None
    covered, _more = await _covered_by(services, grant, except_for=request_id, same_as=same_as)
    return len(covered)


async def answer_same(services: Services, principal: Principal, request_id: str, decision_id: str) -> list[DecidedItem]:
    """Approve the pending requests that have the very arguments of this one, and that the grant of its decision covers.

    Each is decided as in bulk, in the name of the principal, and takes a use of the grant. A repeat answers what waits by then.
    """
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
        stored = await grants.of_decision(conn, decision_id)
    if request is None or stored is None or _has_ended(stored) or not stored.grant.pattern.is_exact:
        return []
    covered, _more = await _covered_by(services, stored.grant, same_as=request.input)
    if not covered:
        return []
    items = [BulkItem(request_id=each.id, digest=each.digest) for each in covered]
    order = BulkOrder(verb="approve", items=items, message=reason_of_grant(stored.id), grant_id=stored.id)
    at_own_pace = replace(services, pace=Pace(0))  # one act with the decision that brought the grant
    return (await decide_many(at_own_pace, principal, order, key=decision_id)).items


def reason_of_grant(grant_id: str) -> str:
    """Return what is stored with each decision that a grant led to."""
    return f"Grant {grant_id} covers such calls."


async def _covered_by(
    services: Services, grant: Grant, *, except_for: str | None = None, same_as: str | None = None
) -> tuple[list[Request], bool]:
    """Return the pending requests that a grant covers and has uses for, at most 100, and whether there may be others.

    ``same_as``: only those with these very arguments, byte for byte.
    """
    async with services.database.read() as conn:
        waiting = await recorded_calls.waiting(conn, limit=MOST_READ, max_chars=MAX_CALL_CHARS, tool=grant.pattern.tool)
        others = [
            each
            for each in waiting
            if each.request_id != except_for and (same_as is None or each.call.input == same_as)
        ]
        near = await asyncio.to_thread(_near, grant, others)
        stored = await requests.get_all(conn, near[:MAX_ITEMS])
    fit = [stored[each] for each in near[:MAX_ITEMS] if each in stored and covers(grant, stored[each])]
    covered = fit[: grant.max_uses - grant.uses]
    return covered, len(near) > MAX_ITEMS or len(waiting) == MOST_READ


def _near(grant: Grant, waiting: Sequence[WaitingCall]) -> list[str]:
    return [
        each.request_id
        for each in waiting
        if grant.covers(run_id=each.call.run_id, agent=each.call.agent)
        and grant.pattern.fits_text(each.call.tool, each.call.input, each.call.defaults)
    ]


def _has_ended(stored: StoredGrant) -> bool:
    return stored.revoked_at is not None or stored.grant.expires_at <= now() or stored.uses >= stored.max_uses
