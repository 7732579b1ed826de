"""The JSON API, version 1: one router per noun. No rules here: endpoints translate between HTTP and the operations."""

from __future__ import annotations

from turngate.approvals_api.v1 import (
    agents,
    audit,
    events,
    external_calls,
    forks,
    grants,
    health,
    notifications,
    people,
    policy,
    requests,
    retention,
    runs,
    schedules,
)

routers = (
    runs.router,
    runs.conversations,
    runs.errors,
    forks.router,
    external_calls.router,
    schedules.router,
    events.router,
    requests.router,
    agents.router,
    notifications.router,
    people.router,
    audit.router,
    policy.router,
    grants.router,
    retention.router,
    health.router,
)
