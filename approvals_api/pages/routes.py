"""All pages. Every page works by plain GET and POST; GET never changes state."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.pages import request_routes, result_routes, run_routes, session_routes

router = APIRouter(include_in_schema=False)
router.include_router(session_routes.router)
router.include_router(request_routes.router)
router.include_router(run_routes.router)
router.include_router(result_routes.router)
