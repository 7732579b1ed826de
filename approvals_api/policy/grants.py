"""Grants: which may be made, creating one without a decision, revoking, and what one would have allowed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue, ValidationError

from turngate.approvals_api.idempotency import KeyedChange, once
from turngate.approvals_api.paging import one_page
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.digest import keyed_sha256
from turngate.domain.errors import ConflictError, ForbiddenError, InvalidInputError, NotFoundError
from turngate.domain.policy.grants import (
    NOT_GRANTED,
    Grant,
    GrantPattern,
    GrantScope,
    WantedGrant,
    exact_pattern,
    with_left_out,
)
from turngate.domain.policy.limits import ValueLimit
from turngate.domain.policy.policy import BUILT_IN_ASKS
from turngate.domain.policy.totals import Total, grant_owner, text_of_units
from turngate.domain.text.instants import in_utc
from turngate.domain.text.json_pointers import decode_arguments
from turngate.domain.tools.secrets import has_marks
from turngate.domain.tools.tool import ToolManifest
from turngate.policies.explain import in_words
from turngate.store import agents
from turngate.store.clock import as_text, now
from turngate.store.database import Connection
from turngate.store.events import events
from turngate.store.events.row_digests import row_digest, secret_of
from turngate.store.policy import grants, recorded_calls, totals
from turngate.store.policy.grants import StoredGrant
from turngate.store.requests import requests
from turngate.store.requests.requests import Request
from turngate.store.runs import runs
from turngate.wire.orders import DecisionOrder, GrantOrder
from turngate.wire.policy import GrantDetail, GrantPreview, GrantUseView, GrantView
from turngate.wire.requests import RequestDetail
from turngate.wire.view import Page

# Which grants may be made from a request, and by whom.


def ungrantable(request: Request | RequestDetail) -> str | None:
    """Return why no grant can answer calls like this one, in words for people; None when one can."""
    if request.kind != "approval":
        return "only approvals of calls can become grants"
    if isinstance(request, Request):
        confinement, depends_on = request.process_confinement, request.depends_on
    else:
        confinement, depends_on = request.confinement, request.precondition
    if confinement is not None and confinement.always_asks:
        return "a call that runs unconfined, or asks for the network, needs a person each time"
    if confinement is not None and depends_on is not None:
        return NOT_GRANTED
    if request.risk == "high":
        return "each call of high risk needs its own decision"
    if request.quorum > 1:
        return "each call that several people must approve needs its own decisions"
    if request.rule not in BUILT_IN_ASKS and not request.ask_terms.grantable:
        return f"rule {request.rule!r} asks for each such call, and no grant overrides it (set grantable = true to allow one)"
    return None


def check_grant(request: Request, principal: Principal, order: DecisionOrder) -> None:
    """Check the grant that a decision asks for, if any, before anything is saved.

    Raises:
        InvalidInputError: it cannot be granted, or the pattern does not fit the very call that is decided.
        ForbiddenError: a grant for everyone needs an admin (code ``not_eligible``).
    """
    if order.answer_waiting:
        _check_answer(order)
    if order.grant is None:
        return
    problem = ungrantable(request)
    if problem is None and order.verb not in {"approve", "edit"}:
        problem = "a grant needs the decision approve or edit"
    if problem is None and has_marks(order.grant.pattern.model_dump_json()):
        problem = "one of the arguments is secret, and a grant would show it: leave that argument open"
    if problem is None:
        problem = _limit_problem(request, order.grant.pattern)
    decided, defaults = request.input, request.left_out
    if order.verb == "edit" and order.args is not None:
        decided, defaults = order.args, request.tool.defaults_of_edit(order.args, request.input, request.left_out)
    if problem is None and not order.grant.pattern.fits_text(request.tool_name, decided, defaults):
        problem = "the pattern does not match the call that is decided here: it would grant calls that no one has seen"
    if problem is not None:
        raise InvalidInputError(problem, code="invalid_grant", errors=[{"pointer": "/grant", "message": problem}])
    require_scope(principal, order.grant)


def _check_answer(order: DecisionOrder) -> None:
    """Raise InvalidInputError unless what waits and would be answered has the very arguments that are on the screen."""
    problem = None
    if order.grant is None or order.verb != "approve":
        problem = "only an approval with a grant answers what waits"
    elif not order.grant.pattern.is_exact:
        problem = "the grant covers calls that you haven't seen: save it, then review what waits and approve that"
    if problem is not None:
        errors = [{"pointer": "/answer_waiting", "message": problem}]
        raise InvalidInputError(problem, code="invalid_grant", errors=errors)


def covers(grant: Grant, request: Request) -> bool:
    """Tell whether a grant covers a request's call, with the arguments that it has now."""
    if not grant.covers(run_id=request.run_id, agent=request.agent) or ungrantable(request) is not None:
        return False
    if _limits_tell_secrets(grant.pattern, request):
        return False
    return grant.pattern.fits_text(request.tool_name, request.input, request.left_out)


async def count_approval(conn: Connection, request: Request, principal: Principal, grant_id: str) -> None:
    """Count the approval of a request for a grant, as a call that the grant lets run is counted.

    The caller holds the request, and writes nothing if this raises.

    Raises ConflictError: ``not_covered``, or ``grant_ended``: it has no use left, or the call is beyond its total.
    """
    stored = await grants.get(conn, grant_id)
    if stored is None or stored.created_by != principal.name or not covers(stored.grant, request):
        raise ConflictError("your grant doesn't cover this call", code="not_covered")
    call = {"run_id": request.run_id, "tool_call_id": request.tool_call_id}
    if await grants.has_allowed(conn, grant_id, **call):
        raise ConflictError("the grant has answered this call before: decide it on its own", code="not_covered")
    total = stored.grant.pattern.total
    if total is not None:
        arguments = with_left_out(decode_arguments(request.input), request.left_out)
        share = total.share_of(grant_owner(grant_id), arguments, None)
        if share is None or not await totals.take(conn, share):
            raise ConflictError("this call is beyond the total of the grant", code="grant_ended")
    if not await grants.take_use(conn, grant_id, **call):
        raise ConflictError("the grant has ended: it is used up, revoked or expired", code="grant_ended")
    payload = {"grant_id": grant_id, "tool_call_id": request.tool_call_id, "tool": request.tool_name}
    await events.append(conn, request.run_id, [("grant.used", payload)])


def _limit_problem(request: Request, pattern: GrantPattern) -> str | None:
    """Return why an argument can't have this limit, in words for people; None if all can."""
    if pattern.has_prefix and request.process_confinement is not None:
        return "the tool starts processes, and a command isn't judged by its beginning: use a rule with command = [...]"
    secret = [name for name in pattern.within if _is_secret(request, name)]
    if secret:
        return f"the argument {secret[0]!r} is secret, and trying limits would tell what it is: leave it open"
    return None


def _is_secret(request: Request, name: str) -> bool:
    """Tell whether an argument of the call is shown with a mark in place of a secret, or can't be read."""
    try:
        arguments: JsonValue = with_left_out(decode_arguments(request.shown_input), request.left_out)
    except ValueError:
        return True
    return not isinstance(arguments, dict) or has_marks(str(arguments.get(name)))


def require_scope(principal: Principal, wanted: WantedGrant) -> None:
    """Raise ForbiddenError unless this principal may make a grant of this scope: one for everyone is an admin's."""
    if wanted.scope == "everyone" and principal.role != "admin":
        raise ForbiddenError(
            "a grant for every agent needs an admin; grant it to this run or this agent", code="not_eligible"
        )


MAX_CALLS: Final = 5_000
"""How many calls of a tool a preview looks at."""


async def grant_page(
    conn: Connection, *, limit: int, before: tuple[str, str] | None = None, active_only: bool = True
) -> Page[GrantView]:
    """Return one page of grants, newest first; ended ones too, unless ``active_only``."""
    rows = await grants.page(conn, limit=limit + 1, before=before, active_only=active_only)
    listed, more = one_page(rows, limit)
    used = await grant_totals(conn, [each.grant for each in listed])
    return Page(items=[grant_view(each, used) for each in listed], next_cursor=more)


async def grant_detail(conn: Connection, grant_id: str) -> GrantDetail:
    """Return a grant with the calls that it allowed. Raises NotFoundError."""
    stored = await _existing(conn, grant_id)
    used_by = [GrantUseView.model_validate(each) for each in await grants.uses_of(conn, grant_id)]
    used = await grant_totals(conn, [stored.grant])
    return GrantDetail(**grant_view(stored, used).model_dump(), used_by=used_by)


async def create(services: Services, principal: Principal, order: GrantOrder, *, key: str | None = None) -> GrantView:
    """Create a grant without a decision; the same key with the same content returns the first one.

    Args:
        services: the process's services.
        principal: who creates it; must hold ``requests:decide``, and be an admin for a grant to everyone.
        order: what is granted, and to which run or agent; a run must be live.
        key: Idempotency-Key.

    Raises:
        InvalidInputError: ``invalid_grant``: what it is for does not fit its scope, or there is no such thing.
        ConflictError: ``run_ended``, or ``idempotency_key_reused``.
        ForbiddenError: ``missing_scope`` or ``not_eligible``.
    """
    principal.require("requests:decide")
    wanted, run_id, agent = order.grant, order.run_id, order.agent
    require_scope(principal, wanted)
    targets: dict[GrantScope, str | None] = {"run": run_id, "agent": agent}
    for scope, target in targets.items():
        if (target is not None) != (wanted.scope == scope):
            name = "run_id" if scope == "run" else scope
            problem = "is missing" if target is None else f"does not go with scope {wanted.scope!r}"
            raise _invalid(f"{name} {problem}: scope run has a run_id, scope agent an agent, everyone neither", name)

    async def act(conn: Connection) -> GrantView:
        await _check_target(conn, run_id, agent)
        stored = await grants.create(
            conn,
            wanted,
            grants.Origin(created_by=principal.name, run_id=run_id, agent=agent, role=principal.role),
            key=secrets.token_hex(16),
        )
        payload = {"grant_id": stored.id, "by": principal.name, "tool": stored.tool_name, "scope": stored.scope}
        bounds = {"max_uses": stored.max_uses, "expires_at": stored.expires_at}
        bounds["digest"] = keyed_sha256(_secret(services), stored.pattern)
        target = {name: value for name, value in (("run_id", run_id), ("agent", agent)) if value is not None}
        digests = events.digests(grant={stored.id: row_digest("grant", vars(stored), secret_of(conn))})
        await events.append(conn, events.SYSTEM, [("grant.created", {**payload, **bounds, **target, **digests})])
        return grant_view(stored)

    content = ["grant", wanted.model_dump_json(), run_id or "", agent or ""]
    change = KeyedChange(key=key, content=content, answer=GrantView, act=act)
    return await once(services, principal, change)


def _secret(services: Services) -> str:
    """Return what the log's digest of a pattern is keyed with: an encrypted store's pattern can't be guessed from it."""
    ring = services.database.ring
    return "" if ring is None else ring.secret_for(b"patterns of grants").hex()


async def revoke(services: Services, principal: Principal, grant_id: str) -> GrantView:
    """End a grant at once: it allows no call that has not started yet.

    Raises:
        NotFoundError: no such grant.
        ConflictError: ``grant_ended``: it has ended already; details say why, and who revoked it when.
        ForbiddenError: ``missing_scope``.
    """
    principal.require("requests:decide")
    async with services.database.write() as conn:
        revoked = await grants.revoke(conn, grant_id, by=principal.name)
        stored = await _existing(conn, grant_id)
        if not revoked:
            raise _ended(grant_view(stored))
        await events.append(conn, events.SYSTEM, [grants.revoked_event(stored, by=principal.name)])
    return grant_view(stored)


@dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """How a grant is wider than the call it is made of. ``leave_open``: any value; ``within``: values within a limit."""

    leave_open: Sequence[str] = ()
    within: Mapping[str, ValueLimit] = field(default_factory=dict)
    total: Total | None = None


async def preview(services: Services, request_id: str, options: PatternOptions) -> GrantPreview:
    """Return the grant that a request's call would make, and how many past calls it would have allowed.

    Of tools with secrets, and a pattern with limits, no calls are counted: counts would tell what the secrets are.

    Raises:
        NotFoundError: no such request.
        InvalidInputError: ``invalid_grant``: the call has no such argument, or one has a value that cannot be stored.
    """
    async with services.database.read() as conn:
        request = await requests.get(conn, request_id)
    if request is None:
        raise NotFoundError(f"there is no request {request_id!r}")
    pattern, problem = _pattern(request, options)
    if pattern is not None:
        problem = _limit_problem(request, pattern)
    counts: dict[GrantScope, int] = {"run": 0, "agent": 0, "everyone": 0}
    looked_at = 0
    if pattern is not None and not _limits_tell_secrets(pattern, request):
        async for call in recorded_calls.newest(services.database, limit=MAX_CALLS, tool=request.tool_name):
            looked_at += 1
            if not pattern.fits_text(call.tool, call.input, call.defaults):
                continue
            counts["everyone"] += 1
            counts["agent"] += call.agent == request.agent
            counts["run"] += call.run_id == request.run_id
    return GrantPreview(
        request_id=request.id,
        pattern=pattern,
        says="" if pattern is None else in_words(pattern),
        ungrantable=ungrantable(request) or problem,
        looked_at=looked_at,
        would_have_covered=counts,
    )


def _limits_tell_secrets(pattern: GrantPattern, request: Request) -> bool:
    """Tell whether the calls within the limits of a pattern, or their number, could tell what the tool's secrets are."""
    if not pattern.within:
        return False
    try:
        return ToolManifest.model_validate_json(request.manifest).has_secrets
    except ValidationError:
        return True


async def grant_totals(conn: Connection, listed: Iterable[Grant]) -> dict[str, int]:
    """Return meter → units: what the totals of grants come to in their present windows. One statement, if any has one."""
    meters = {total.meter(grant_owner(each.id)): total for each in listed if (total := each.pattern.total) is not None}
    return await totals.used_now(conn, meters)


def grant_view(stored: StoredGrant, used: Mapping[str, int] | None = None) -> GrantView:
    """Return a grant as it is shown. ``used``: of :func:`grant_totals`; None: it is new."""
    pattern = GrantPattern.model_validate_json(stored.pattern)
    total_used = None
    if pattern.total is not None:
        total_used = text_of_units((used or {}).get(pattern.total.meter(grant_owner(stored.id)), 0))
    ended = None
    if stored.revoked_at is not None:
        ended = "revoked"
    elif stored.uses >= stored.max_uses:
        ended = "used_up"
    elif stored.expires_at <= as_text(now()):
        ended = "expired"
    computed = {"pattern": pattern, "says": in_words(pattern), "ended": ended, "total_used": total_used}
    return GrantView.model_validate({**vars(stored), **computed})


async def _existing(conn: Connection, grant_id: str) -> StoredGrant:
    stored = await grants.get(conn, grant_id)
    if stored is None:
        raise NotFoundError(f"there is no grant {grant_id!r}")
    return stored


async def _check_target(conn: Connection, run_id: str | None, agent: str | None) -> None:
    if agent is not None and await agents.get(conn, agent) is None:
        raise _invalid(f"there is no agent {agent!r}", "agent")
    run = None if run_id is None else await runs.get(conn, run_id)
    if run_id is not None and run is None:
        raise _invalid(f"there is no run {run_id!r}", "run_id")
    if run is not None and run.status != "running":
        raise ConflictError("the run has ended: a grant for it would never apply", code="run_ended")


def _pattern(request: Request, options: PatternOptions) -> tuple[GrantPattern | None, str | None]:
    try:
        arguments: JsonValue = with_left_out(decode_arguments(request.shown_input), request.left_out)
    except ValueError:
        return None, "its arguments are not plain JSON"
    if not isinstance(arguments, dict):
        return None, "its arguments are not a JSON object"
    for member, names in (("open", options.leave_open), ("within", options.within)):
        unknown = next((name for name in names if name not in arguments), None)
        if unknown is not None:
            raise _invalid(f"the call has no argument {unknown!r}", member)
    try:
        leave_open = list(options.leave_open)
        pattern = exact_pattern(
            request.tool_name, arguments, open_arguments=leave_open, within=options.within, total=options.total
        )
    except InvalidInputError as error:
        return None, error.message
    return pattern, None


def _ended(view: GrantView) -> ConflictError:
    why = "it is used up"
    if view.revoked_at is not None:
        why = f"{view.revoked_by} revoked it at {in_utc(view.revoked_at)}"
    elif view.ended == "expired":
        why = f"it expired at {in_utc(view.expires_at)}"
    return ConflictError(
        f"this grant has ended already: {why}",
        code="grant_ended",
        ended=view.ended,
        revoked_by=view.revoked_by,
        revoked_at=view.revoked_at,
    )


def _invalid(message: str, member: str) -> InvalidInputError:
    return InvalidInputError(message, code="invalid_grant", errors=[{"pointer": f"/{member}", "message": message}])
