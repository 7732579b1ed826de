"""All pages. Every page works by plain GET and POST; GET never changes state."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.pages import (
    account_routes,
    audit_routes,
    bulk_routes,
    compare_routes,
    conversation_routes,
    fork_routes,
    grant_routes,
    inbox_routes,
    notification_routes,
    policy_routes,
    request_routes,
    result_routes,
    run_routes,
    schedule_routes,
    session_routes,
    side_routes,
)

router = APIRouter(include_in_schema=False)
router.include_router(session_routes.router)
router.include_router(account_routes.router)
router.include_router(inbox_routes.router)
# Before the requests themselves: "bulk" is no request's id.
router.include_router(bulk_routes.router)
router.include_router(request_routes.router)
router.include_router(side_routes.router)
router.include_router(grant_routes.router)
router.include_router(policy_routes.router)
router.include_router(run_routes.router)
router.include_router(fork_routes.router)
router.include_router(schedule_routes.router)
router.include_router(result_routes.router)
router.include_router(conversation_routes.router)
router.include_router(compare_routes.router)
router.include_router(notification_routes.router)
router.include_router(audit_routes.router)
