"""The JSON API, version 1: one router per noun. No rules here: endpoints translate between HTTP and the inner functions."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.v1 import (
    agents,
    audit,
    bulk,
    claims,
    comments,
    comparisons,
    events,
    explanations,
    external_calls,
    grants,
    me,
    notifications,
    policy,
    presence,
    previews,
    requests,
    results,
    runs,
    saved_views,
    schedules,
    sessions,
    tokens,
)

router = APIRouter(prefix="/api/v1")
router.include_router(runs.router)
router.include_router(runs.conversations)
router.include_router(external_calls.router)
router.include_router(schedules.router)
router.include_router(results.router)
router.include_router(explanations.router)
router.include_router(comparisons.router)
router.include_router(previews.router)
router.include_router(events.router)
router.include_router(requests.router)
router.include_router(claims.router)
router.include_router(comments.router)
router.include_router(presence.router)
router.include_router(saved_views.router)
router.include_router(agents.router)
router.include_router(notifications.router)
router.include_router(me.router)
router.include_router(sessions.router)
router.include_router(tokens.router)
router.include_router(audit.router)
router.include_router(policy.router)
router.include_router(grants.router)
router.include_router(bulk.router)
