"""The caller, sessions and API tokens. The only secret is that of a new token."""

from __future__ import annotations

from typing import Literal

from turngate.domain.identity import UNBOUND, TokenBounds, Via
from turngate.domain.policy.terms import Role
from turngate.wire.people import Person
from turngate.wire.view import View


class MeView(View):
    """The caller. ``machine``: it uses a token without an owner. ``session_id``: None for a token."""

    name: Person
    role: Role
    scopes: list[str]
    via: Literal["session", "token"]
    machine: bool
    session_id: str | None


class SessionView(View):
    """A browser's session. ``via``: how the user logged in. ``last_seen_at``: to the minute."""

    id: str
    name: Person
    role: Role
    via: Via
    created_at: str
    expires_at: str
    last_seen_at: str
    user_agent: str


class TokenView(View):
    """An API token. ``scopes``: what it may do now. ``owner``: the user it acts as; None: it acts under its own name.

    ``bounds``: what narrows them.
    """

    id: str
    name: Person
    scopes: list[str]
    owner: Person | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    bounds: TokenBounds = UNBOUND


class NewTokenView(TokenView):
    """A new token. ``secret``: shown only this once; the store has its hash."""

    secret: str
