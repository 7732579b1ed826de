"""Calls about policy: the rules in force, changing the stored ones, and asking why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from turngate.client.calls import Call, change, get, key_or_new, model, post, segment, with_member, without_none
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.policy.limits import ValueLimit
from turngate.domain.policy.totals import Total
from turngate.wire.orders import PolicyQuestion, RuleOrder
from turngate.wire.policy import (
    Explanation,
    GrantDetail,
    GrantPreview,
    GrantView,
    PolicyVersion,
    PolicyVersionDetail,
    PolicyView,
    RuleOffer,
    RulePreview,
    ShadowReport,
    WaitingForGrant,
    WaitingForRule,
)
from turngate.wire.view import Page


def get_policy() -> Call[PolicyView]:
    """Return the rules in force: the stored ones, those of each app's file, and the order in which they count."""
    return get("/policy", model(PolicyView))


def put_policy(source: str, *, if_version: int, comment: str = "") -> Call[PolicyVersionDetail]:
    """Put rules in force in place of the stored ones, as a new version.

    ``source``: TOML. ``if_version``: the version that was changed; 0: none was stored. With ``proposal`` in the answer they are
    not in force: they wait for a second admin. Raises ConflictError
    ``policy_changed`` when another is in force by now, InvalidInputError saying what cannot be read.
    """
    body = {"source": source, "if_version": if_version, "comment": comment}
    return change("PUT", "/policy", model(PolicyVersionDetail), body)


def preview_policy_rule(rule: str, *, replacing: str | None = None) -> Call[RulePreview]:
    """Return what a rule (TOML) would change if it were enforced, over the newest 1,000 calls. Changes nothing."""
    return post("/policy/preview", model(RulePreview), without_none({"rule": rule, "replacing": replacing}))


def get_policy_offer(request_id: str) -> Call[RuleOffer]:
    """Return the rule that is offered with a request. Raises NotFoundError ``no_offer``: too few calls like it were approved."""
    return get(f"/policy/offers/{segment(request_id)}", model(RuleOffer))


def list_waiting_for_rule(rule: str) -> Call[WaitingForRule]:
    """Return the pending requests that an enforced rule would let run now, at most 100. Raises InvalidInputError."""
    return get("/policy/waiting", model(WaitingForRule), rule=rule)


def store_policy_rule(order: RuleOrder) -> Call[PolicyVersionDetail]:
    """Store one rule among the stored ones, as a new version. Raises as :func:`put_policy`."""
    return post("/policy/rules", model(PolicyVersionDetail), order.members())


def enforce_policy_rule(name: str, *, if_version: int | None = None, comment: str = "") -> Call[PolicyVersionDetail]:
    """Make a stored shadow rule count, as a new version. Raises NotFoundError; ConflictError ``policy_changed``."""
    body = without_none({"name": name, "if_version": if_version, "comment": comment})
    return post("/policy/enforce", model(PolicyVersionDetail), body)


def list_policy_versions(*, limit: int = 50, cursor: str | None = None) -> Call[Page[PolicyVersion]]:
    """Return one page of the versions of the stored rules, newest first. ``limit``: 1 to 200."""
    return get("/policy/versions", model(Page[PolicyVersion]), limit=limit, cursor=cursor)


def get_policy_version(version: int) -> Call[PolicyVersionDetail]:
    """Return one version of the stored rules with its text. Raises NotFoundError."""
    return get(f"/policy/versions/{version}", model(PolicyVersionDetail))


def revert_policy(version: int, *, if_version: int | None = None, comment: str = "") -> Call[PolicyVersionDetail]:
    """Put an earlier version's rules in force again, as a new version. Raises ConflictError ``policy_changed``."""
    body = {"version": version, "if_version": if_version, "comment": comment}
    return post("/policy/revert", model(PolicyVersionDetail), without_none(body))


def confirm_policy(proposal: int) -> Call[PolicyVersionDetail]:
    """Put rules in force that another admin proposed. Raises ForbiddenError; ConflictError ``proposal_ended``."""
    return post("/policy/confirm", model(PolicyVersionDetail), {"proposal": proposal})


def refuse_policy(proposal: int) -> Call[PolicyView]:
    """Refuse proposed rules; those in force stay. Raises ConflictError ``proposal_ended``."""
    return post("/policy/refuse", model(PolicyView), {"proposal": proposal})


def explain_policy(question: PolicyQuestion) -> Call[Explanation]:
    """Return what policy answers to a call, and why each rule matches it or does not. Changes nothing."""
    members = without_none(question.model_dump(mode="json", exclude={"args"}))
    return post("/policy/explain", model(Explanation), with_member(json.dumps(members), "args", question.args))


def get_shadow_report(*, rule: str | None = None, since: datetime | None = None) -> Call[ShadowReport]:
    """Return what shadow rules would have changed, over the newest 10,000 calls; ``since``: of runs begun then or later."""
    begun = None if since is None else since.isoformat()
    return get("/policy/shadow", model(ShadowReport), rule=rule, since=begun)


# Calls about grants: see them, try one, make one, revoke one.


def list_grants(
    *, status: Literal["standing", "all"] = "standing", limit: int = 50, cursor: str | None = None
) -> Call[Page[GrantView]]:
    """Return one page of grants, newest first: those that let calls through now, or all. ``limit``: 1 to 200."""
    return get("/grants", model(Page[GrantView]), status=status, limit=limit, cursor=cursor)


def get_grant(grant_id: str) -> Call[GrantDetail]:
    """Return a grant with the calls that it let through. Raises NotFoundError."""
    return get(f"/grants/{segment(grant_id)}", model(GrantDetail))


def list_waiting_for_grant(grant_id: str) -> Call[WaitingForGrant]:
    """Return the pending requests that one's own grant covers. Raises NotFoundError, ForbiddenError ``not_eligible``."""
    return get(f"/grants/{segment(grant_id)}/waiting", model(WaitingForGrant))


def preview_grant(
    request_id: str,
    *,
    open_arguments: Sequence[str] = (),
    within: Mapping[str, ValueLimit] | None = None,
    total: Total | None = None,
) -> Call[GrantPreview]:
    """Return the exact pattern that a request's call would be granted by. Changes nothing.

    ``open_arguments``: those that may have any value. ``within``: argument → its limit. ``total``: of all calls.
    """
    body: dict[str, Any] = {"request_id": request_id, "open": list(open_arguments)}
    if within:
        body["within"] = {name: limit.model_dump(mode="json") for name, limit in within.items()}
    if total is not None:
        body["total"] = total.model_dump(mode="json")
    return post("/grants/preview", model(GrantPreview), body)


def create_grant(
    wanted: WantedGrant, *, run_id: str | None = None, agent: str | None = None, idempotency_key: str | None = None
) -> Call[GrantView]:
    """Make a grant by itself. Scope ``run`` has a ``run_id``, ``agent`` an ``agent``, ``everyone`` neither.

    To make one with a decision, give it to ``decide``. Raises ConflictError ``run_ended`` or ``idempotency_key_reused``,
    ForbiddenError where its maker could not decide such calls.
    """
    body = wanted.model_dump(mode="json")
    tool = body["pattern"].pop("tool")
    body = {**body, "tool": tool, **without_none({"run_id": run_id, "agent": agent})}
    return post("/grants", model(GrantView), body, key=key_or_new(idempotency_key))


def revoke_grant(grant_id: str) -> Call[GrantView]:
    """Revoke a grant: no call that has not started by now passes on it. Raises ConflictError ``grant_ended``."""
    return change("DELETE", f"/grants/{segment(grant_id)}", model(GrantView))
