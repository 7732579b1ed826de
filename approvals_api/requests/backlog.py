"""Requests that wait for what a rule lets run by now: it answers calls that come, and a person those that are there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from approvals_api.policy import rules
from approvals_api.policy.preview import MAX_CALL_CHARS, World
from approvals_api.principal import Principal
from approvals_api.requests.bulk import MAX_ITEMS
from approvals_api.services import Services
from turngate.domain.errors import ConfigurationError, InvalidInputError
from turngate.domain.policy.policy import Policy, Rule, parse_policy
from turngate.policies.backtest import Unjudged, judge
from turngate.store.policy import policies, recorded_calls
from turngate.store.policy.recorded_calls import WaitingCall
from turngate.wire.policy import WaitingForRule, WaitingRequest

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
