"""Who sends a request. A value: it knows neither cookies nor HTTP (``turngate.approvals_api.http.authentication`` makes it)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from turngate.domain.errors import ForbiddenError
from turngate.domain.identity import ROLE_SCOPES, UNBOUND, Scope, TokenBounds
from turngate.domain.policy.terms import Role

OPERATOR_SCOPES: frozenset[str] = ROLE_SCOPES["operator"]


@dataclass(frozen=True, kw_only=True)
class Principal:
    """A person or program that is authenticated. ``name`` is stored as ``decided_by`` or ``started_by``; no body names it.

    ``role``: as it is now. ``machine``: True for an API token without a user. ``session_id``: of the browser's
    session, None for a token. ``token_id``: the token's, None for a session. ``bounds``: the
    token's. ``traceparent``: the span in which the request was sent, as a run stores it; None: it names none.
    """

    name: str
    via: Literal["session", "token"]
    scopes: frozenset[str]
    role: Role = "operator"
    machine: bool = False
    session_id: str | None = None
    token_id: str | None = None
    bounds: TokenBounds = UNBOUND
    traceparent: str | None = field(default=None, compare=False)

    @property
    def credential(self) -> str:
        """The token or session that sends the request, to which its Idempotency-Keys belong. A name may have several."""
        if self.token_id is not None:
            return f"token:{self.token_id}"
        return f"name:{self.name}" if self.session_id is None else f"session:{self.session_id}"

    def may(self, *scopes: Scope) -> bool:
        """Tell whether the principal holds one of these scopes; ``admin`` holds all."""
        return "admin" in self.scopes or not self.scopes.isdisjoint(scopes)

    def require(self, *scopes: Scope) -> None:
        """Raise ForbiddenError (code ``missing_scope``) unless the principal holds one of these scopes (I10)."""
        if not self.may(*scopes):
            needed = " or ".join(scopes)
            raise ForbiddenError(
                f"{self.name!r} may not do this: it needs the scope {needed}. Use a credential that holds it.",
                code="missing_scope",
                needed=list(scopes),
            )
