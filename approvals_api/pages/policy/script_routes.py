"""The scripts of ``turngate dev``: what a scripted model plays, which entry each request took, and one step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ServicesDep, playground_of
from turngate.approvals_api.lookups import existing_run
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.control import resume
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.domain.runs.run_filter import RunFilter
from turngate.store.database import Connection
from turngate.store.runs import messages
from turngate.store.runs.runs import Run
from turngate.wire.playground import PaceOrder, RunMessages
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

MOST_RUNS: Final = 20
Name = Annotated[str, Query(max_length=255, pattern=STORABLE)]


@router.get("/playground/script")
async def script_page(
    request: Request, services: ServicesDep, principal: OperatorDep, agent: Name = "", run: Name = "", script: Name = ""
) -> HTMLResponse:
    """Show a script of an agent, and what a run took of it. ``agent`` may be left out if there is a run."""
    return await _show(request, services, principal, {"agent": agent, "run": run, "script": script}, None)


@router.post("/playground/script")
async def step_on(request: Request, services: ServicesDep, principal: OperatorDep) -> Response:
    """Resume a run, or let all runs pause after each answer of a scripted model."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        principal.require("runs:write")
        match typed.get("action"):
            case "step" | "free":
                order = PaceOrder(one_step_at_a_time=typed["action"] == "step")
                await playground_of(request).set_pace(order)
            case "resume":
                await resume(services, principal, typed.get("run", ""))
            case _:
                raise InvalidInputError("this form has no known action: use the buttons on this page")
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show(request, services, principal, typed, error)
    place = urlencode({name: typed.get(name, "") for name in ("agent", "run", "script")})
    return RedirectResponse(f"/playground/script?{place}", HTTPStatus.SEE_OTHER)


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    typed: Mapping[str, str],
    error: TurngateError | None,
) -> HTMLResponse:
    playground, agent, run_id = playground_of(request), typed.get("agent", ""), typed.get("run", "")
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        run = await existing_run(conn, run_id) if run_id else None
        agent = agent if run is None else run.agent
        if agent not in playground.tools:
            raise NotFoundError(f"the app has no agent {agent!r}")
        listed = await run_views.run_page(conn, RunFilter(agent=agent), limit=MOST_RUNS)
        conversation = None if run is None else await _messages_of(conn, run)
    script = await asyncio.to_thread(playground.script_steps, agent, typed.get("script", ""), conversation)
    return render(
        "script.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        agent=agent,
        script=script,
        runs=listed.items,
        run=run,
        one_step=playground.one_step_at_a_time,
        error=error,
    )


async def _messages_of(conn: Connection, run: Run) -> RunMessages:
    """Return what the run's model has read and said."""
    path = await messages.path_to(conn, run.head_message_id)
    known = {each.id for each in path}
    written = [messages.stored(row) for row in await messages.rows_of_run(conn, run.id)]
    later = [each for each in written if each.id not in known and each.message.role == "assistant" and each.step]
    newest = max(later, key=lambda each: each.step or 0, default=None)
    return RunMessages(
        closed=[(each.step if each.run_id == run.id else None, each.message) for each in path],
        open=None if newest is None else (newest.step or 0, newest.message),
        asks_again=run.status == "running" or (run.status == "failed" and newest is None),
    )
