"""Grants at the edge: which may be made from a request, by whom; made by itself, listed and revoked."""

from __future__ import annotations

from approvals_api.http.authentication import Principal
from turngate.domain.errors import ForbiddenError, InvalidInputError
from turngate.domain.policy.grants import WantedGrant
from turngate.domain.policy.policy import NOBODYS_RULES
from turngate.domain.runs.requests import Verb
from turngate.store.requests.requests import Request
from turngate.wire.requests import RequestDetail


def ungrantable(request: Request | RequestDetail) -> str | None:
    """Return why no grant can answer calls like this one, in words for people; None when one can."""
    if request.kind != "approval":
        return "only a call that runs can be granted"
    if request.risk == "high":
        return "a call of high risk is decided one by one"
    if request.quorum > 1:
        return "a call that several people have to approve is decided one by one"
    if request.rule not in NOBODYS_RULES and not request.ask_terms.grantable:
        return f"rule {request.rule!r} asks for each such call, and no grant beats it (grantable = true in it would let one)"
    return None


def check_grant(request: Request, principal: Principal, wanted: WantedGrant, *, verb: Verb, args: str | None) -> None:
    """Check a grant that is to be made with a decision, before anything is saved.

    Raises:
        InvalidInputError: it cannot be granted, or the pattern does not fit the very call that is decided.
        ForbiddenError: a grant for everyone needs an admin (code ``not_eligible``).
    """
    problem = ungrantable(request)
    if problem is None and verb not in {"approve", "edit"}:
        problem = "a grant goes with approve or edit"
    decided = args if verb == "edit" and args is not None else request.input
    if problem is None and not wanted.pattern.fits_text(request.tool_name, decided):
        problem = "the pattern does not fit the call that is decided here: it would grant something nobody looked at"
    if problem is not None:
        raise InvalidInputError(problem, code="invalid_grant", errors=[{"pointer": "/grant", "message": problem}])
    require_scope(principal, wanted)


def require_scope(principal: Principal, wanted: WantedGrant) -> None:
    """Raise ForbiddenError unless this principal may make a grant of this scope: one for everyone is an admin's."""
    if wanted.scope == "everyone" and principal.role != "admin":
        raise ForbiddenError(
            "a grant for every agent needs an admin; grant it to this run or this agent", code="not_eligible"
        )
