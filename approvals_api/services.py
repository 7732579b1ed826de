"""What every endpoint stands on, made once per process and kept on ``app.state.services``."""

from __future__ import annotations

from dataclasses import dataclass, field

from approvals_api.access.oidc import OidcProvider
from approvals_api.events.feed import EventFeed
from approvals_api.gateway.client import Gateway
from approvals_api.http.rate_limits import RateLimits
from approvals_api.settings import ApiSettings
from turngate.store.database import Database


@dataclass(frozen=True, kw_only=True)
class Services:
    """The store, the way to the workflows, the live events and the settings. ``oidc`` None: nobody logs in that way."""

    database: Database
    gateway: Gateway
    feed: EventFeed
    settings: ApiSettings
    limits: RateLimits = field(default_factory=RateLimits)
    oidc: OidcProvider | None = None
