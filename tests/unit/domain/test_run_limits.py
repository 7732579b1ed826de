"""Limits of a run as a deployment sets them."""

from __future__ import annotations

from turngate.domain.contract import RunLimits


def test_a_deployments_heartbeat_changes_no_other_limit() -> None:
    """The agent's limits stay as they are."""
    limits = RunLimits(steps=7, concurrency=2, budgets_ask=True)
    assert limits.with_heartbeat(3) == RunLimits(steps=7, concurrency=2, budgets_ask=True, heartbeat_timeout_seconds=3)
