"""Forks and dry runs by form. The page shows the plan, what they would reuse and run again, before the button is pressed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import ServicesDep, StarterDep
from turngate.approvals_api.pages.fork_forms import by_control, dry_run_order, fork_order, key_of
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import dry_run, fork
from turngate.approvals_api.runs import plan as run_plan
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.switch_model import offered_models
from turngate.approvals_api.services import Services
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.store.runs.runs import Run
from turngate.wire.plans import ForkPlan
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

Kind = Literal["fork", "replay"]


@router.get("/runs/{run_id}/fork")
async def fork_page(
    request: Request, services: ServicesDep, principal: StarterDep, run_id: str, step: str = ""
) -> HTMLResponse:
    """Show what a fork from a step would do, with the form that starts it."""
    return await _show(request, services, principal, run_id, "fork", {"step": step}, None)


@router.get("/runs/{run_id}/replay")
async def replay_page(
    request: Request, services: ServicesDep, principal: StarterDep, run_id: str, step: str = ""
) -> HTMLResponse:
    """Show the recorded results that would answer a dry run's calls, with the form that starts it."""
    return await _show(request, services, principal, run_id, "replay", {"step": step}, None)


@router.post("/runs/{run_id}/fork")
async def fork_by_form(request: Request, services: ServicesDep, principal: StarterDep, run_id: str) -> Response:
    """Start the fork, or show its plan for what was typed."""
    return await _act(request, services, principal, run_id, "fork")


@router.post("/runs/{run_id}/replay")
async def replay_by_form(request: Request, services: ServicesDep, principal: StarterDep, run_id: str) -> Response:
    """Start the dry run, or show its plan for what was typed."""
    return await _act(request, services, principal, run_id, "replay")


async def _act(request: Request, services: Services, principal: Principal, run_id: str, kind: Kind) -> Response:
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        if "look" in typed:
            return await _show(request, services, principal, run_id, kind, typed, None)
        run = await _start(services, principal, run_id, kind, typed)
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show(request, services, principal, run_id, kind, typed, error)
    return RedirectResponse(f"/runs/{run.id}", HTTPStatus.SEE_OTHER)


async def _start(services: Services, principal: Principal, run_id: str, kind: Kind, typed: Mapping[str, str]) -> Run:
    key = typed.get("key") or None
    if kind == "replay":
        return await dry_run.start_dry_run(services, principal, run_id, dry_run_order(typed), idempotency_key=key)
    return await fork.fork(services, principal, run_id, fork_order(typed), idempotency_key=key)


async def _plan(services: Services, run_id: str, kind: Kind, typed: Mapping[str, str]) -> ForkPlan:
    if kind == "replay":
        return await run_plan.plan_dry_run(services, run_id, dry_run_order(typed))
    return await run_plan.plan_fork(services, run_id, fork_order(typed))


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    run_id: str,
    kind: Kind,
    typed: Mapping[str, str],
    error: TurngateError | None,
) -> HTMLResponse:
    plan: ForkPlan | None = None
    try:
        plan = await _plan(services, run_id, kind, typed)
    except InvalidInputError as problem:  # the page says so, and its form can fix it
        error = error or problem
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        run = await run_views.run_detail(conn, run_id)
        agents = await run_views.agent_list(conn)
        models = await offered_models(conn)
    # A hostile megabyte takes a second to escape: not on the event loop, where every other request would wait.
    return await asyncio.to_thread(
        render,
        f"{kind}.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        run=run,
        agents=agents,
        models=models,
        closed=[step.step for step in run.steps if step.closed_at is not None],
        plan=plan,
        may_give_policy=principal.may("admin"),
        typed=typed,
        error=error,
        errors=by_control(error),
        key=key_of(typed, error),
    )
