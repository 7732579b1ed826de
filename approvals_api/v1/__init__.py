"""The JSON API, version 1: one router per noun. No rules here: endpoints translate between HTTP and the inner functions."""

from __future__ import annotations

from fastapi import APIRouter

from approvals_api.problems import PROBLEM_RESPONSES
from approvals_api.v1 import agents, events, requests, results, runs

router = APIRouter(prefix="/api/v1", responses=PROBLEM_RESPONSES)
router.include_router(runs.router)
router.include_router(results.router)
router.include_router(events.router)
router.include_router(requests.router)
router.include_router(agents.router)
