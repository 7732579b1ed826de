"""What operations work with: made once per process, passed to each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.pace import Pace
from turngate.approvals_api.settings import ApiSettings
from turngate.store.database import Database


@dataclass(frozen=True, kw_only=True)
class Services:
    """The store, the way to the workflows, the live events, the settings, and how fast people decide.

    ``read_once``: what never changes in the store, by name.
    """

    database: Database
    gateway: Gateway
    feed: EventFeed
    settings: ApiSettings
    pace: Pace = field(default_factory=lambda: Pace(0))
    read_once: dict[str, str] = field(default_factory=dict)
