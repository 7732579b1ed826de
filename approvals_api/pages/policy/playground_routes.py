"""The playground of ``turngate dev``: try a call of the app, and see what would happen to it. Only there is this page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import OperatorDep, ServicesDep, playground_of
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.request_routes import draw_request_body
from turngate.approvals_api.pages.templating import render
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.services import Services
from turngate.domain.errors import TurngateError
from turngate.domain.tools.tool import ToolManifest
from turngate.forms import reader
from turngate.forms.fields import Field, Group
from turngate.forms.rows import grown, pressed
from turngate.forms.schema_fields import form_of
from turngate.forms.schema_kinds import ABSENT
from turngate.wire.playground import MAX_CHARS, Playground, Trial, TrialOrder
from turngate.wire.problems import status_of

router = APIRouter(include_in_schema=False)

PREFIX = "try"


@router.get("/playground")
async def playground_page(request: Request, services: ServicesDep, principal: OperatorDep) -> HTMLResponse:
    """Choose a tool, and get the form for its arguments."""
    return await _show(request, services, principal, dict(request.query_params))


@router.post("/playground")
async def try_call(request: Request, services: ServicesDep, principal: OperatorDep) -> HTMLResponse:
    """Say what would happen to a call. Nothing runs, nothing is stored: it is a POST because arguments may be long, or secret."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
    except TurngateError as error:
        return await _show(request, services, principal, typed, Trial(problem=error.message), status_of(error))
    tool = _tool_of(playground_of(request), typed)
    if tool is None:
        return await _show(request, services, principal, typed)
    form = _form(tool, typed)
    rows = None if form is None else pressed(form, typed)
    if rows is not None:
        return await _show(request, services, principal, rows)
    raw, errors = _input(form, typed)
    if raw is None:
        return await _show(request, services, principal, typed, errors=errors)
    order = TrialOrder(
        agent=typed["agent"],
        tool=tool.name,
        input=raw,
        task=typed.get("task", "")[:MAX_CHARS].replace("\r\n", "\n").strip(),
        by=principal.name,
    )
    trial = await playground_of(request).try_call(order)
    return await _show(request, services, principal, {**typed, "json": raw}, trial)


def _tool_of(playground: Playground, typed: Mapping[str, str]) -> ToolManifest | None:
    tools = playground.tools.get(typed.get("agent", ""), ())
    return next((tool for tool in tools if tool.name == typed.get("tool")), None)


def _form(tool: ToolManifest, typed: Mapping[str, str]) -> Field | None:
    """Return the form of a tool's arguments; None: it has none, or they fit no form."""
    form = form_of(tool.parameters, ABSENT, prefix=PREFIX)
    if form is None or (isinstance(form, Group) and not form.fields and form.more is None):
        return None
    return grown(form, typed)


def _input(form: Field | None, typed: Mapping[str, str]) -> tuple[str | None, Mapping[str, str]]:
    """Return the arguments that were typed, and what is wrong with the fields of the form."""
    if typed.get("action") == "json" or form is None:
        return typed.get("json", "").replace("\r\n", "\n")[:MAX_CHARS] or "{}", {}
    value = reader.read(form, typed)
    return value.args, value.errors


async def _show(
    request: Request,
    services: Services,
    principal: Principal,
    typed: Mapping[str, str],
    trial: Trial | None = None,
    status: int = HTTPStatus.OK,
    errors: Mapping[str, str] | None = None,
) -> HTMLResponse:
    playground = playground_of(request)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    tool = _tool_of(playground, typed)
    detail = None if trial is None else trial.request
    body = "" if detail is None else await asyncio.to_thread(draw_request_body, frame, detail)
    return render(
        "playground.html",
        frame=frame,
        status=status,
        error=playground.error,
        tools=playground.tools,
        tool=tool,
        form=None if tool is None else _form(tool, typed),
        typed=typed,
        errors=errors or {},
        trial=trial,
        body=body,
    )
