"""Runs: the list, one run's timeline, starting and steering one, comparing two, whole results."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from turngate.approvals_api.http.authentication import check_form_token
from turngate.approvals_api.http.dependencies import RunReaderDep, ServicesDep, StarterDep
from turngate.approvals_api.pages.fork_forms import by_control, key_of, text_of, word_of
from turngate.approvals_api.pages.frames import frame_of, typed_of
from turngate.approvals_api.pages.pictures import family as family_tree
from turngate.approvals_api.pages.pictures import timeline as pictures
from turngate.approvals_api.pages.pictures import tree
from turngate.approvals_api.pages.pictures.drawing import lasted, moment
from turngate.approvals_api.pages.result_text import page_of, readable
from turngate.approvals_api.pages.run_context import STALLED_AFTER, RunContext, context_of, stalls_of
from turngate.approvals_api.pages.templating import Frame, render
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.principal import Principal
from turngate.approvals_api.runs import retry, send_message, start
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.compare import compare
from turngate.approvals_api.runs.control import interrupt, pause, resume
from turngate.approvals_api.runs.explain import errors_of_run, explained_end
from turngate.approvals_api.runs.family import Member, family_of
from turngate.approvals_api.runs.results import StoredResult, whole_result
from turngate.approvals_api.runs.stalled import stuck_page
from turngate.approvals_api.runs.switch_model import offered_models, switch_model
from turngate.approvals_api.runs.timeline import RecordedRun, recorded_run, timeline_of
from turngate.approvals_api.services import Services
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import InvalidInputError, NotFoundError, TurngateError
from turngate.domain.requests import UnattendedAsks, WhileRunning
from turngate.domain.runs.failure_classes import FailureClass
from turngate.domain.runs.run_filter import RunFilter
from turngate.store.live import progress
from turngate.store.requests import requests
from turngate.store.runs import runs
from turngate.text.run_words import WAITS_FOR, by_cause
from turngate.wire.explanation import ErrorView, WaitReason
from turngate.wire.orders import MessageOrder, StartOrder
from turngate.wire.problems import status_of
from turngate.wire.runs import RunDetail, RunSummary

router = APIRouter(include_in_schema=False)


Word = TypeVar("Word", bound=str)

PAGE_SIZE: Final = 50
Tab = Literal["all", "running", "stalled", "completed", "failed", "interrupted"]
TABS: Final[tuple[Tab, ...]] = ("all", "running", "stalled", "completed", "failed", "interrupted")
Condition = Annotated[str, Query(max_length=255, pattern=STORABLE)]
WHILE_RUNNING: Final[tuple[WhileRunning, ...]] = ("queue", "inject", "supersede")
UNATTENDED: Final[tuple[UnattendedAsks, ...]] = ("deny", "park", "rules")
MAX_CURSOR_CHARS: Final = 500
MAX_SECONDS: Final = 1e9
"""Of a run: some thirty years."""
PROGRESS_LINES: Final = 20
"""As many as the script keeps on the page."""


@router.get("/runs")
async def run_list(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    status: Tab = "all",
    search: Condition = "",
    agent: Condition = "",
    cause: FailureClass | Literal[""] = "",
    cursor: Annotated[str | None, Query(max_length=MAX_CURSOR_CHARS)] = None,
) -> HTMLResponse:
    """Show runs, newest first, under the filter in the URL; or the live ones that are stalled, by what they wait for."""
    before = decode_cursor(cursor)
    if status == "stalled":
        return await _show_stalled(request, services, principal, before, cursor)
    wanted = RunFilter(
        status=None if status == "all" else status, search=search or None, agent=agent or None, cause=cause or None
    )
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        page = await run_views.run_page(conn, wanted, limit=PAGE_SIZE, before=before)
        agents = await runs.agents_among(conn, RunFilter(status=wanted.status))
    return render(
        "runs.html",
        frame=frame,
        every=TABS,
        tab=status,
        filter=wanted,
        conditions=wanted.model_copy(update={"status": None}).query,
        causes=get_args(FailureClass),
        agents=agents,
        page=page,
        cursor=cursor,
        is_encrypted=services.database.is_encrypted,
        state=_list_state(page.items),
    )


async def _show_stalled(
    request: Request, services: Services, principal: Principal, before: tuple[str, str] | None, cursor: str | None
) -> HTMLResponse:
    page = await stuck_page(services, limit=PAGE_SIZE, before=before, still_for=STALLED_AFTER)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    state = _list_state([each.run for each in page.items])
    return render(
        "stalled.html",
        frame=frame,
        every=TABS,
        tab="stalled",
        groups=by_cause(page.items),
        words=WAITS_FOR,
        page=page,
        cursor=cursor,
        state=state,
    )


@router.get("/runs/new")
async def new_run(request: Request, services: ServicesDep, principal: StarterDep) -> HTMLResponse:
    """Show the form that starts a run."""
    return await _show_new(request, services, principal, {}, None)


@router.post("/runs/new")
async def start_run(request: Request, services: ServicesDep, principal: StarterDep) -> Response:
    """Start a run by form."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        order = StartOrder(
            agent=typed.get("agent", ""),
            input=text_of(typed, "input"),
            workspace=word_of(typed, "workspace"),
            model=word_of(typed, "model"),
            unattended=_choice(typed.get("unattended", ""), UNATTENDED, "/unattended"),
        )
        run = await start.start(services, principal, order, idempotency_key=typed.get("key") or None)
    except TurngateError as error:
        return await _show_new(request, services, principal, typed, error)
    return RedirectResponse(f"/runs/{run.id}", HTTPStatus.SEE_OTHER)


@router.get("/runs/{run_id}")
async def run_page(request: Request, services: ServicesDep, principal: RunReaderDep, run_id: str) -> HTMLResponse:
    """Show a run: its answer on top, then every step with its calls."""
    return await _show_run(request, services, principal, run_id, {}, None)


@router.post("/runs/{run_id}")
async def act_on_run(request: Request, services: ServicesDep, principal: StarterDep, run_id: str) -> Response:
    """Interrupt, pause or resume a run, switch its model, retry it, or send a message to its conversation."""
    typed = await typed_of(request)
    try:
        check_form_token(request, typed.get("csrf_token"))
        match typed.get("action"):
            case "interrupt":
                await interrupt(services, principal, run_id, reason=typed.get("reason", "").strip())
                target = run_id
            case "retry":
                key = typed.get("key") or None
                model = word_of(typed, "model")
                target = (await retry.retry(services, principal, run_id, model=model, idempotency_key=key)).id
            case "pause":
                await pause(services, principal, run_id, reason=typed.get("reason", "").strip())
                target = run_id
            case "model":
                await switch_model(services, principal, run_id, model=typed.get("model", "").strip())
                target = run_id
            case "resume":
                await resume(services, principal, run_id)
                target = run_id
            case "message":
                target = await _send_message(services, principal, run_id, typed)
            case _:
                raise InvalidInputError("this form has no known action: use the buttons on this page")
    except NotFoundError:
        raise
    except TurngateError as error:
        return await _show_run(request, services, principal, run_id, typed, error)
    return RedirectResponse(f"/runs/{target}", HTTPStatus.SEE_OTHER)


async def _send_message(services: Services, principal: Principal, run_id: str, typed: Mapping[str, str]) -> str:
    """Send a message to the conversation; returns the id of the run that takes it."""
    message = MessageOrder(
        input=typed.get("input", "").replace("\r\n", "\n"),
        while_running=_choice(typed.get("while_running", ""), WHILE_RUNNING, "/while_running"),
    )
    sent = await send_message.send(services, principal, run_id, message, idempotency_key=typed.get("key") or None)
    return sent.run.id


async def _show_new(
    request: Request, services: Services, principal: Principal, typed: Mapping[str, str], error: TurngateError | None
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        agents = await run_views.agent_list(conn)
        models = await offered_models(conn)
    return render(
        "new_run.html",
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        agents=sorted(agents, key=lambda agent: bool(agent.sub_agent_of)),
        models=models,
        typed=typed,
        error=error,
        errors=by_control(error),
        key=key_of(typed, error),
    )


async def _show_run(
    request: Request,
    services: Services,
    principal: Principal,
    run_id: str,
    typed: Mapping[str, str],
    error: TurngateError | None,
) -> HTMLResponse:
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        run = await run_views.run_detail(conn, run_id)
        explanation = None
        if run.status == "failed":
            explanation = await explained_end(services, conn, principal, run)
            run_errors = explanation.errors
        else:
            run_errors = await errors_of_run(conn, principal, run_id)
        lines = await progress.newest_of_executing(conn, run_id, limit=PROGRESS_LINES)
        around = await context_of(conn, run)
        family = await family_of(conn, run_id)
        models = [] if run.status == "completed" else await offered_models(conn)
        recorded = None if run.ended_at is None else await recorded_run(conn, run_id, frame.now)
        pending = await requests.pending_of(conn, [run_id])
    stalls = [] if run.ended_at is not None else await stalls_of(services, run, pending)
    # A hostile megabyte takes a second to escape: not on the event loop, where every other request would wait.
    return await asyncio.to_thread(
        _draw_run,
        recorded,
        frame=frame,
        status=HTTPStatus.OK if error is None else status_of(error),
        run=run,
        explanation=explanation,
        stalls=stalls,
        run_errors=run_errors,
        progress=lines,
        models=models,
        around=around,
        typed=typed,
        error=error,
        errors=by_control(error),
        key=key_of(typed, error),
        family=family,
        family_tree=family_tree,
        state=_run_state(run, around, family, run_errors, [reason for reason, _action in stalls]),
    )


def _draw_run(recorded: RecordedRun | None, **context: Any) -> HTMLResponse:
    """Return the page of a run. ``recorded`` None: it is live, and has no picture yet."""
    picture = None if recorded is None else pictures.picture_of(timeline_of(recorded), most_rows=pictures.OVERVIEW_ROWS)
    return render("run.html", picture=picture, **context)


def _run_state(
    run: RunDetail,
    around: RunContext,
    family: Sequence[Member],
    run_errors: Sequence[ErrorView],
    stalls: Sequence[WaitReason],
) -> str:
    """Return a text that differs whenever the page would."""
    calls = [
        f"{call.tool_call_id} {call.execution} {call.attempts} {call.settled_at} {[each.status for each in call.requests]}"
        for step in run.steps
        for call in step.calls
    ]
    waiting = [message.id for message in run.waiting_messages]
    facts = run.status, run.paused_at or "", run.agent, run.model, run.model_chosen_by or "", run.fell_back_from or ""
    closed = [f"{step.closed_at} {step.nudge is None}" for step in run.steps]
    forks = [f"{each.run.id} {each.run.status}" for each in family]
    failed = [each.id for each in run_errors]
    held_up = [f"{each.kind} {each.says}" for each in stalls]
    return framed_sha256(*facts, *closed, *calls, *waiting, *forks, *failed, *held_up, around.state)[:16]


def _list_state(items: list[RunSummary]) -> str:
    return framed_sha256(*(f"{item.id} {item.status} {item.step}" for item in items))[:16]


def _choice(chosen: str, offered: Sequence[Word], pointer: str) -> Word | None:
    """Return the answer that was chosen, None for the first, empty one; raises InvalidInputError for another."""
    if not chosen:
        return None
    choice = next((each for each in offered if each == chosen), None)
    if choice is None:
        message = "choose one of the options of this form"
        raise InvalidInputError(message, errors=[{"pointer": pointer, "message": message}])
    return choice


# The timeline: when what happened.


Seconds = Annotated[float, Query(ge=0, le=MAX_SECONDS, allow_inf_nan=False)]


@router.get("/runs/{run_id}/timeline")
async def timeline_page(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    run_id: str,
    begin: Annotated[Seconds | None, Query(alias="from")] = None,
    end: Annotated[Seconds | None, Query(alias="to")] = None,
) -> HTMLResponse:
    """Show a run's timeline, or the part of it between two moments, in seconds from its start."""
    window = None if begin is None and end is None else _window(begin or 0.0, end)
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        recorded = await recorded_run(conn, run_id, frame.now)
    # A long run has tens of thousands of spans: not on the event loop.
    return await asyncio.to_thread(_draw_timeline, frame, recorded, window)


def _window(begin: float, end: float | None) -> pictures.Window:
    window = pictures.Window(begin=begin, end=MAX_SECONDS if end is None else end)
    if window.end - window.begin < pictures.SHORTEST_SECONDS:
        message = f"`to` has to be at least {pictures.SHORTEST_SECONDS} seconds after `from`"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}])
    return window


def _draw_timeline(frame: Frame, recorded: RecordedRun, window: pictures.Window | None) -> HTMLResponse:
    return render(
        "timeline.html",
        frame=frame,
        run=run_views.run_summary(recorded.run),
        picture=pictures.picture_of(timeline_of(recorded), window),
        address=functools.partial(pictures.address, recorded.run.id),
        around=pictures.around,
        note=pictures.note,
        moment=moment,
        lasted=lasted,
    )


# Two runs side by side.


@router.get("/runs/{run_id}/compare/{other_id}")
async def compare_page(
    request: Request, services: ServicesDep, principal: RunReaderDep, run_id: str, other_id: str
) -> HTMLResponse:
    """Show what two runs share, and where and in what they differ."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
    comparison = await compare(services.database, run_id, other_id)
    # A hostile megabyte takes a second to escape: not on the event loop, where every other request would wait.
    return await asyncio.to_thread(render, "compare.html", frame=frame, comparison=comparison, tree=tree)


# Whole results, page by page and as a file: what a run's page and the model are shown in part.


# By query, not by path: a call's id is the provider's own, and browsers take `..` in a path for more than a name.
CallId = Annotated[str, Query(alias="call", max_length=1_000)]


@router.get("/runs/{run_id}/result")
async def result_page(
    request: Request,
    services: ServicesDep,
    principal: RunReaderDep,
    run_id: str,
    call_id: CallId,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> HTMLResponse:
    """Show one page of a whole result."""
    async with services.database.read() as conn:
        frame = await frame_of(conn, request, principal)
        stored = await whole_result(conn, run_id, call_id)
    return await asyncio.to_thread(_render, frame, stored, offset)


@router.get("/runs/{run_id}/result.txt")
async def result_file(services: ServicesDep, _principal: RunReaderDep, run_id: str, call_id: CallId) -> Response:
    """Send a whole result as a text file: never shown by the browser, whatever it holds."""
    async with services.database.read() as conn:
        stored = await whole_result(conn, run_id, call_id)
    text = await asyncio.to_thread(readable, stored.body)
    headers = {"Content-Disposition": 'attachment; filename="result.txt"', "X-Content-Type-Options": "nosniff"}
    return Response(text.encode(errors="replace"), media_type="text/plain", headers=headers)


def _render(frame: Frame, stored: StoredResult, offset: int) -> HTMLResponse:
    # A whole result may have megabytes: parsing it does not belong on the event loop.
    page = page_of(readable(stored.body), offset)
    return render("result.html", frame=frame, run=stored.run, call=stored.call, result=stored.result, page=page)
