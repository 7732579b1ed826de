"""The call about an installation's health."""

from __future__ import annotations

from turngate.client.calls import Call, get, model
from turngate.wire.health import HealthView


def get_health() -> Call[HealthView]:
    """Check the store, Temporal, the workers and what waits, and return what is wrong with its fix."""
    return get("/health", model(HealthView))
