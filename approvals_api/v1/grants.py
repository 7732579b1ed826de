"""Grants: list, create, show, revoke."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from turngate.approvals_api.http.dependencies import OperatorDep, ReaderDep, ServicesDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.policy import grants
from turngate.approvals_api.requests import backlog
from turngate.approvals_api.v1.parameters import Cursor, Id, IdempotencyKey, Limit
from turngate.approvals_api.validation.exact_json import member_text, parse_exact
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import InvalidInputError
from turngate.domain.policy.grants import MAX_GRANT_SECONDS, MAX_GRANT_USES, GrantPattern, GrantScope, WantedGrant
from turngate.domain.policy.limits import ValueLimit
from turngate.domain.policy.totals import Total
from turngate.domain.tools.failures import describe_validation
from turngate.wire.orders import GrantOrder
from turngate.wire.policy import GrantDetail, GrantPreview, GrantView, WaitingForGrant
from turngate.wire.view import Page

router = api_router("grants")

GrantId = Annotated[str, Path(description="The grant's id, such as `grant_5d0e…`.", max_length=255, pattern=STORABLE)]
ArgumentName = Annotated[str, Field(max_length=255, pattern=STORABLE)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PatternBody(_Body):
    """Every argument: ``fixed`` to one value, ``within`` a limit, or ``open``; a call with another argument never matches.

    ``total``: how much the calls may come to in each window.
    """

    fixed: dict[ArgumentName, JsonValue] = Field(default_factory=dict)
    within: dict[ArgumentName, ValueLimit] = Field(default_factory=dict)
    open: list[ArgumentName] = Field(default_factory=list, max_length=100)
    total: Total | None = None


class GrantBody(_Body):
    """Approve calls like these from now on. Scope ``run`` has a ``run_id``, ``agent`` an ``agent``, ``everyone`` neither."""

    tool: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    pattern: PatternBody
    scope: GrantScope
    run_id: Id | None = None
    agent: Id | None = None
    expires_after_seconds: Annotated[int, Field(ge=1, le=MAX_GRANT_SECONDS)] = 3600
    max_uses: Annotated[int, Field(ge=1, le=MAX_GRANT_USES)] = 1
    note: Annotated[str, Field(max_length=500, pattern=STORABLE)] = ""


class PreviewBody(_Body):
    """The request whose call is granted, the arguments that may have any value or one within a limit, and the total."""

    request_id: Id
    open: list[ArgumentName] = Field(default_factory=list, max_length=100)
    within: dict[ArgumentName, ValueLimit] = Field(default_factory=dict)
    total: Total | None = None


@router.get("/grants")
async def list_grants(
    services: ServicesDep,
    _principal: ReaderDep,
    status: Annotated[
        Literal["standing", "all"], Query(description="`standing`: those that apply now; `all`: ended ones too.")
    ] = "standing",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[GrantView]:
    """List grants, newest first."""
    before = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await grants.grant_page(conn, limit=limit, before=before, active_only=status == "standing")


@router.post(
    "/grants",
    status_code=HTTPStatus.CREATED,
    responses=problems({409: "`run_ended` or `idempotency_key_reused`"}),
)
async def create_grant(
    body: GrantBody,
    services: ServicesDep,
    principal: OperatorDep,
    request: Request,
    idempotency_key: IdempotencyKey = None,
) -> GrantView:
    """Create a grant without a decision.

    A grant for everyone needs an admin. A grant never overrides a deny rule. It overrides an ask rule only if the rule allows
    it and the grant's maker may decide its requests.
    """
    pattern = member_text((await request.body()).decode(), "pattern")
    parse_exact(pattern or "null", pointer="/pattern", code="invalid_grant")  # refuses a name that is there twice
    wanted = WantedGrant(
        pattern=_pattern(body),
        scope=body.scope,
        expires_after_seconds=body.expires_after_seconds,
        max_uses=body.max_uses,
        note=body.note,
    )
    order = GrantOrder(grant=wanted, run_id=body.run_id, agent=body.agent)
    return await grants.create(services, principal, order, key=idempotency_key)


@router.post("/grants/preview", responses=problems({404: "`not_found`: there is no such request"}))
async def preview_grant(body: PreviewBody, services: ServicesDep, _principal: ReaderDep) -> GrantPreview:
    """Show the exact pattern of a grant for a request's call. Changes nothing.

    With the number of recent calls of the tool that it would have allowed.
    """
    options = grants.PatternOptions(leave_open=body.open, within=body.within, total=body.total)
    return await grants.preview(services, body.request_id, options)


@router.get("/grants/{grant_id}")
async def get_grant(grant_id: GrantId, services: ServicesDep, _principal: ReaderDep) -> GrantDetail:
    """Show a grant with the calls that it allowed."""
    async with services.database.read() as conn:
        return await grants.grant_detail(conn, grant_id)


@router.get("/grants/{grant_id}/waiting")
async def list_waiting_for_grant(grant_id: GrantId, services: ServicesDep, principal: OperatorDep) -> WaitingForGrant:
    """List the pending requests that your grant covers, at most 100 and as many as it has uses left.

    To approve them: read each, then `POST /requests/decisions` with the `grant_id`, and with `reason` as the message.
    """
    return await backlog.waiting_for_grant(services, principal, grant_id)


@router.delete(
    "/grants/{grant_id}",
    responses=problems({409: "`grant_ended`: it is already revoked, expired or used up"}),
)
async def revoke_grant(grant_id: GrantId, services: ServicesDep, principal: OperatorDep) -> GrantView:
    """Revoke a grant. Calls that have not started yet need another answer."""
    return await grants.revoke(services, principal, grant_id)


def _pattern(body: GrantBody) -> GrantPattern:
    try:
        return GrantPattern(tool=body.tool, **dict(body.pattern))
    except ValidationError as error:
        message = describe_validation(error).removeprefix("arguments: ")
        problem = [{"pointer": "/pattern", "message": message}]
        raise InvalidInputError(message, code="invalid_grant", errors=problem) from None
