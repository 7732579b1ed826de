"""The API's settings, as one frozen value; the composition root makes it from turngate's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from turngate.domain.policy.terms import Role
from turngate.http_environment import is_loopback
from turngate.notifications.configuration import Channel
from turngate.runtime.traces.switch import TraceSettings
from turngate.runtime.workspaces import Workspaces
from turngate.store.access.sessions import IDLE_LIMIT
from turngate.wire.events import HEARTBEAT_SECONDS

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names a browser on this machine may call a server that is bound to loopback."""

ATTEMPT_SECONDS: Final = 600
"""How long a person may take to log in at the provider."""


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """How people log in by an OpenID provider (OpenID Connect Core 1.0, Authorization Code flow).

    ``issuer``: exactly as the provider spells it. ``role_claim``: the claim whose value, or one of whose values, gives a
    role; a name with dots leads into nested claims. ``default_role``: for a person to whom it gives none; None: refused.
    ``session_lifetime``: after which a person logs in again, so that the provider says whether they still have it.
    """

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: str = "openid profile email"
    role_claim: str = "groups"
    admin_values: frozenset[str] = field(default_factory=frozenset)
    operator_values: frozenset[str] = field(default_factory=frozenset)
    viewer_values: frozenset[str] = field(default_factory=frozenset)
    default_role: Role | None = None
    session_lifetime: timedelta = timedelta(hours=1)


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by its name, or by a path with dots through nested claims (``realm_access.roles``); None: not there."""
    if path in claims:
        return claims[path]
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True, kw_only=True)
class RateLimitSettings:
    """How often one principal may send requests. ``per_second`` None: without limit, once they are authenticated.

    ``logins_per_name`` and ``logins_per_address``: failed log-ins a minute, under one name from one address and from one address;
    None: no limit.
    """

    per_second: float | None = None
    burst: int = 200
    logins_per_name: int | None = 5
    logins_per_address: int | None = 20


@dataclass(frozen=True, kw_only=True)
class RetentionSettings:
    """The retention file, and how often its rules are applied by themselves. ``every`` None: only by command."""

    file: Path
    every: timedelta | None = timedelta(days=1)


LOGIN_LINK: Final = "turngate login-link"


@dataclass(frozen=True, kw_only=True)
class ApiSettings:
    """Settings of one API process.

    ``host``: the address it is bound to; on loopback only requests for a loopback name are answered (DNS rebinding).
    ``more_host_names``: further names to answer to there, such as a reverse proxy's.
    ``sse_ping``: pause between two heartbeats of an event stream.
    ``public_url``: where browsers reach it, without a trailing slash; None: as each request says. ``session_idle``: how
    long a session may be idle before it ends. ``oidc`` None: people log in by password or link only. ``channels``: where
    notifications are sent; empty: nowhere. ``temporal_pages``: the address of
    Temporal's pages of workflows, without the slash and the id; None: not known. ``workspaces``: where runs may work; the
    workers must say the same.
    ``approval_pace``: calls that one person may approve within ten seconds (:mod:`turngate.approvals_api.pace`); 0: any number.
    ``offer_rule_after``: approved calls like one, from which on a rule is offered; 0: never.
    ``policy_four_eyes``: whether stored rules that may loosen wait for a second admin.
    ``deployment_name``: under which Temporal groups the workers' builds. ``disk``: the directory of the store; None: it is on
    a server of its own. ``tracing`` None: no traces are exported. ``retention`` None: everything is kept.
    ``login_link``: the command that prints a link into this very stack.
    """

    host: str = "127.0.0.1"
    more_host_names: frozenset[str] = field(default_factory=frozenset)
    heartbeat_timeout_seconds: int = 10
    sse_ping: timedelta = timedelta(seconds=HEARTBEAT_SECONDS)
    max_body_bytes: int = 2 * 1024 * 1024
    public_url: str | None = None
    login_link: str = LOGIN_LINK
    session_idle: timedelta = IDLE_LIMIT
    rate_limits: RateLimitSettings = field(default_factory=RateLimitSettings)
    oidc: OidcSettings | None = None
    channels: tuple[Channel, ...] = ()
    temporal_pages: str | None = None
    approval_pace: int = 0
    offer_rule_after: int = 10
    policy_four_eyes: bool = False
    deployment_name: str = "turngate"
    disk: Path | None = None
    tracing: TraceSettings | None = None
    retention: RetentionSettings | None = None
    workspaces: Workspaces = field(default_factory=Workspaces)

    @property
    def host_names(self) -> frozenset[str] | None:
        """Names that requests may be addressed to, without port; None: any."""
        return LOOPBACK_NAMES | self.more_host_names if is_loopback(self.host) else None
