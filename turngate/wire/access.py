"""Who is asking, where people are logged in, and the tokens that programs hold. Never a secret, but a new token's."""

from __future__ import annotations

from typing import Literal

from turngate.domain.identity import Via
from turngate.domain.policy.terms import Role
from turngate.wire.view import View


class MeView(View):
    """Whoever asks. ``machine``: a token that belongs to no one. ``session_id``: None for a token."""

    name: str
    role: Role
    scopes: list[str]
    via: Literal["session", "token"]
    machine: bool
    session_id: str | None


class SessionView(View):
    """A browser that is logged in. ``via``: how it came in. ``last_seen_at``: to the minute."""

    id: str
    name: str
    role: Role
    via: Via
    created_at: str
    expires_at: str
    last_seen_at: str
    user_agent: str


class TokenView(View):
    """An API token. ``scopes``: what it may do now. ``owner``: the user whose name it acts under; None: its own name."""

    id: str
    name: str
    scopes: list[str]
    owner: str | None
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class NewTokenView(TokenView):
    """A token as it was made. ``secret``: shown this once, and stored only as a hash."""

    secret: str
