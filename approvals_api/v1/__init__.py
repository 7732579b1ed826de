"""The JSON API, version 1: one router per noun. No rules here: endpoints translate between HTTP and the operations."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.v1 import (
    agents,
    audit,
    events,
    external_calls,
    forks,
    grants,
    notifications,
    people,
    policy,
    requests,
    runs,
    schedules,
)

router = APIRouter(prefix="/api/v1")
router.include_router(runs.router)
router.include_router(runs.conversations)
router.include_router(forks.router)
router.include_router(external_calls.router)
router.include_router(schedules.router)
router.include_router(events.router)
router.include_router(requests.router)
router.include_router(agents.router)
router.include_router(notifications.router)
router.include_router(people.router)
router.include_router(audit.router)
router.include_router(policy.router)
router.include_router(grants.router)
