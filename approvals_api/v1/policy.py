"""Policy: show the rules in force, change the stored ones, explain an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from turngate.approvals_api.http.dependencies import AdminDep, OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.policy import proposals
from turngate.approvals_api.policy import reports as policy_reports
from turngate.approvals_api.policy import rules as policy_rules
from turngate.approvals_api.policy.offers import rule_offer
from turngate.approvals_api.policy.preview import preview_rule
from turngate.approvals_api.policy.rules import MAX_COMMENT_CHARS, MAX_SOURCE_CHARS
from turngate.approvals_api.requests.backlog import waiting_for_rule
from turngate.approvals_api.v1.parameters import Cursor, Id, Instant, Limit, RequestId
from turngate.approvals_api.validation.exact_json import member_text
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import InvalidInputError
from turngate.domain.requests import UnattendedAsks
from turngate.store.clock import as_text
from turngate.wire.orders import PolicyQuestion, RuleOrder
from turngate.wire.policy import (
    Explanation,
    PolicyVersion,
    PolicyVersionDetail,
    PolicyView,
    RuleOffer,
    RulePreview,
    ShadowReport,
    WaitingForRule,
)
from turngate.wire.view import Page

router = api_router("policy")

Source = Annotated[str, Field(max_length=MAX_SOURCE_CHARS, description="TOML: `[[rule]]` tables.")]
Comment = Annotated[str, Field(max_length=MAX_COMMENT_CHARS, pattern=STORABLE)]
RuleName = Annotated[str, Field(min_length=1, max_length=100, pattern=STORABLE)]
Version = Annotated[int, Field(ge=0, le=2**31 - 1)]
CHANGED = problems({409: "`policy_changed`: someone saved a newer version first; it says who, and when"})


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PolicyBody(_Body):
    """Replace the stored rules. ``if_version``: the version that you changed; 0: none was stored."""

    source: Source
    if_version: Version
    comment: Comment = ""


class RevertBody(_Body):
    """Restore an earlier version's rules. ``if_version``: only if this version is in force now."""

    version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    if_version: Version | None = None
    comment: Comment = ""


class RuleBody(_Body):
    """One rule as TOML: a `[[rule]]` table.

    ``replacing``: the stored rule in whose place it comes; omitted: the one of its name, or it comes last.
    """

    rule: Source
    replacing: RuleName | None = None


class StoreRuleBody(RuleBody):
    """A rule to store among the others. ``mode``: `shadow` only records what it would do; `enforce` makes it count.

    ``if_version``: only if this version is in force now.
    """

    mode: Literal["shadow", "enforce"]
    if_version: Version | None = None
    comment: Comment = ""


class EnforceBody(_Body):
    """Make a stored shadow rule count. ``if_version``: only if this version is in force now."""

    name: RuleName
    if_version: Version | None = None
    comment: Comment = ""


class ProposalBody(_Body):
    """Which proposal: its number, as `GET /policy` has it in `proposed`."""

    proposal: Annotated[int, Field(ge=1, le=2**31 - 1)]


class ExplainBody(_Body):
    """A call to ask policy about. ``agent`` omitted: the one that has the tool, if it is the only one.

    ``workspace``: the run's directory, absolute. ``unattended``: what happens to requests of the run. ``policy``: TOML to try
    instead of the stored rules.
    """

    tool: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    args: JsonValue = Field(default_factory=dict)
    agent: Id | None = None
    workspace: Annotated[str, Field(pattern=r"^/[^\u0000]*$", max_length=4_096)] | None = None
    unattended: UnattendedAsks | None = None
    policy: Source | None = None

    def question(self, args: str) -> PolicyQuestion:
        """Return the question that the API's operations take. ``args``: the member's exact text in the body that was sent."""
        return PolicyQuestion.model_validate({**dict(self), "args": args})


@router.get("/policy")
async def get_policy(services: ServicesDep, _principal: ReaderDep) -> PolicyView:
    """Show the rules in force.

    The stored rules, those of each app's file as its worker last published them, and the order in which they apply.
    """
    async with services.database.read() as conn:
        return await policy_rules.policy_view(conn)


@router.put("/policy", responses=CHANGED)
async def put_policy(body: PolicyBody, services: ServicesDep, principal: AdminDep) -> PolicyVersionDetail:
    """Store rules.

    They are checked as a whole and replace the stored rules as a new version. The same text again changes nothing.
    If the server wants a second admin for what may loosen, such rules wait for `POST /policy/confirm`: the answer has
    a `proposal`.
    """
    return await policy_rules.store_rules(
        services, principal, source=body.source, comment=body.comment, if_version=body.if_version
    )


@router.get("/policy/versions")
async def list_policy_versions(
    services: ServicesDep, _principal: ReaderDep, cursor: Cursor = None, limit: Limit = 50
) -> Page[PolicyVersion]:
    """List the versions of the stored rules, newest first."""
    before = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await policy_rules.version_page(conn, limit=limit, before=before)


@router.get("/policy/versions/{version}")
async def get_policy_version(
    version: Annotated[int, Path(ge=1, le=2**31 - 1, description="From 1.")],
    services: ServicesDep,
    _principal: ReaderDep,
) -> PolicyVersionDetail:
    """Show one version of the stored rules with its text."""
    async with services.database.read() as conn:
        return await policy_rules.version_detail(conn, version)


@router.post("/policy/revert", responses={**CHANGED, **problems({404: "`not_found`: no such version"})})
async def revert_policy(body: RevertBody, services: ServicesDep, principal: AdminDep) -> PolicyVersionDetail:
    """Restore the rules of an earlier version, as a new version."""
    return await policy_rules.revert(
        services, principal, version=body.version, comment=body.comment, if_version=body.if_version
    )


@router.post(
    "/policy/confirm",
    responses=problems(
        {
            403: "`own_proposal`: you proposed it; `needs_person`: a token without a user",
            409: "`proposal_ended`: it was confirmed, refused, or a later change took its place; `policy_changed`",
        }
    ),
)
async def confirm_policy(body: ProposalBody, services: ServicesDep, principal: AdminDep) -> PolicyVersionDetail:
    """Put proposed rules in force. Another admin than the one who proposed them has to."""
    return await proposals.confirm(services, principal, body.proposal)


@router.post(
    "/policy/refuse",
    responses=problems({409: "`proposal_ended`: it was confirmed, refused, or a later change took its place"}),
)
async def refuse_policy(body: ProposalBody, services: ServicesDep, principal: AdminDep) -> PolicyView:
    """Refuse proposed rules, also your own. The rules in force stay."""
    return await proposals.refuse(services, principal, body.proposal)


@router.post("/policy/preview")
async def preview_policy_rule(body: RuleBody, services: ServicesDep, principal: AdminDep) -> RulePreview:
    """Show what a rule would change if it were enforced, over the newest 1,000 calls. Changes nothing.

    With what people decided about these calls, first what they decided otherwise than the rule would.
    """
    rule = policy_rules.parsed_rule(body.rule)
    return await preview_rule(services, principal, rule, replacing=body.replacing)


@router.post("/policy/rules", responses=CHANGED)
async def store_policy_rule(body: StoreRuleBody, services: ServicesDep, principal: AdminDep) -> PolicyVersionDetail:
    """Store one rule among the stored ones, as a new version. The text of the others stays as it is."""
    return await policy_rules.store_rule(services, principal, RuleOrder.model_validate(dict(body)))


@router.post("/policy/enforce", responses={**CHANGED, **problems({404: "`not_found`: no stored rule has this name"})})
async def enforce_policy_rule(body: EnforceBody, services: ServicesDep, principal: AdminDep) -> PolicyVersionDetail:
    """Make a stored shadow rule count, as a new version."""
    return await policy_rules.enforce(services, principal, body.name, if_version=body.if_version, comment=body.comment)


@router.post("/policy/explain")
async def explain_policy(
    body: ExplainBody, services: ServicesDep, _principal: ReaderDep, request: Request
) -> Explanation:
    """Show what policy would answer to a call, and why each rule matches or doesn't. Changes nothing."""
    sent = member_text((await request.body()).decode(), "args")
    return await policy_reports.explain_call(services, body.question("{}" if sent is None else sent))


@router.get(
    "/policy/waiting",
    responses=problems(
        {
            422: "`not_enforced`: a shadow, ask or deny rule, or one with a total",
            404: "`not_found`: no stored rule has this name",
        }
    ),
)
async def list_waiting_for_rule(
    services: ServicesDep,
    principal: OperatorDep,
    rule: Annotated[str, Query(description="A stored rule that is enforced.", max_length=100, pattern=STORABLE)],
) -> WaitingForRule:
    """List the pending requests whose calls an enforced rule would let run if they came now, the oldest 100.

    Decide each by itself (`POST /requests/decisions`), with `reason` as the message. Decides nothing.
    """
    return await waiting_for_rule(services, principal, rule)


@router.get("/policy/offers/{request_id}", responses=problems({404: "`no_offer`: too few calls like it were approved"}))
async def get_policy_offer(request_id: RequestId, services: ServicesDep, principal: AdminDep) -> RuleOffer:
    """Offer the narrowest rule that covers calls like this request's, where people approved many and stopped none.

    How many it takes is a setting of the server, `TURNGATE_OFFER_RULE_AFTER`. Stores nothing.
    """
    return await rule_offer(services, principal, request_id)


@router.get("/policy/shadow")
async def get_shadow_report(
    services: ServicesDep,
    _principal: ReaderDep,
    rule: Annotated[str | None, Query(description="Only this shadow rule.", max_length=100, pattern=STORABLE)] = None,
    since: Annotated[Instant | None, Query(description="Only runs that began then or later.")] = None,
) -> ShadowReport:
    """Report what shadow rules would have changed, over the newest 10,000 calls."""
    try:
        begun = None if since is None else as_text(since)
    except OverflowError:
        message = "since: an instant of the years 1 to 9999 in UTC"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}]) from None
    return await policy_reports.shadow_report(services, rule=rule, since=begun)
