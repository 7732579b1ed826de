"""Runs and conversations: start, show, send messages, stop, explain, compare."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated

from fastapi import Path, Query, Response

from turngate.approvals_api.http.dependencies import (
    NAMES_NO_RUN,
    OperatorDep,
    RunReaderDep,
    ServicesDep,
    SightDep,
    StarterDep,
)
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.paging import decode_cursor
from turngate.approvals_api.runs import explain, fork, retry, stalled, start
from turngate.approvals_api.runs import send_message as message_operations
from turngate.approvals_api.runs import views as run_views
from turngate.approvals_api.runs.compare import compare
from turngate.approvals_api.runs.control import interrupt, pause, resume
from turngate.approvals_api.runs.explain import error_by_id, newest_errors
from turngate.approvals_api.runs.family import family_for
from turngate.approvals_api.runs.results import whole_result
from turngate.approvals_api.runs.switch_model import switch_model
from turngate.approvals_api.v1.bodies import ForkBody, InterruptBody, MessageBody, ModelBody, RetryBody, StartRunBody
from turngate.approvals_api.v1.new_runs import STARTED, started
from turngate.approvals_api.v1.parameters import ConversationId, Cursor, IdempotencyKey, Limit, RunId, ToolCallId
from turngate.approvals_api.validation.text import STORABLE
from turngate.domain.requests import RunStatus
from turngate.domain.runs.failure_classes import FailureClass
from turngate.domain.runs.run_filter import RunFilter
from turngate.store.runs import runs
from turngate.wire.calls import WholeResult
from turngate.wire.comparison import Comparison
from turngate.wire.explanation import ErrorView, Explanation, StuckRun, WaitKind
from turngate.wire.runs import MessageView, RunDetail, RunSummary
from turngate.wire.view import Page

router = api_router("runs")


def _condition(description: str) -> object:
    return Query(description=description, min_length=1, max_length=255, pattern=STORABLE)


conversations = api_router("conversations")


errors = api_router("errors")


@router.post("/runs", status_code=HTTPStatus.CREATED, responses=STARTED, dependencies=[NAMES_NO_RUN])
async def start_run(
    body: StartRunBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start a run.

    The same Idempotency-Key with the same body returns the first run again.
    """
    run = await start.start(services, principal, body.order, idempotency_key=idempotency_key)
    return started(run, response)


@router.get("/runs")
async def list_runs(
    services: ServicesDep,
    _principal: RunReaderDep,
    sight: SightDep,
    cursor: Cursor = None,
    limit: Limit = 50,
    status: Annotated[RunStatus | None, Query(description="Only runs of this status.")] = None,
    search: Annotated[
        str | None,
        _condition(
            "Only runs in which each of these words occurs: in the task, the agents, an id, who started it, or why it ended. "
            f"Looks through the newest {runs.MOST_SEARCHED:,} runs; a page may be empty and not the last. An encrypted "
            "store can't search tasks."
        ),
    ] = None,
    agent: Annotated[str | None, _condition("Only this agent's.")] = None,
    cause: Annotated[
        FailureClass | None, Query(description="Only runs that failed like this, as their explanation says.")
    ] = None,
) -> Page[RunSummary]:
    """List runs, newest first. A machine's token that starts runs sees its own, unless it holds `runs:all`."""
    before = decode_cursor(cursor)
    wanted = RunFilter(status=status, search=search, agent=agent, cause=cause)
    async with services.database.read() as conn:
        return await run_views.run_page(conn, wanted, limit=limit, before=before, started_by=sight.started_by)


@router.get("/runs/{run_id}")
async def get_run(run_id: RunId, services: ServicesDep, _principal: RunReaderDep) -> RunDetail:
    """Show a run with its steps and calls."""
    async with services.database.read() as conn:
        return await run_views.run_detail(conn, run_id)


@router.post(
    "/runs/{run_id}/messages",
    status_code=HTTPStatus.CREATED,
    responses={202: {"model": RunSummary, "description": "A live run takes the message"}, **STARTED},
)
async def send_message(
    run_id: RunId,
    body: MessageBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Send a message to this run's conversation.

    It starts the conversation's next run, with this run's agent, model and workspace. While a run is live, that run takes the
    message, now or when it has ended: the answer is 202 then, and shows the live run.
    """
    sent = await message_operations.send(services, principal, run_id, body.order, idempotency_key=idempotency_key)
    if sent.message is not None:
        response.status_code = HTTPStatus.ACCEPTED
    return started(sent.run, response)


@router.post("/runs/{run_id}/fork", status_code=HTTPStatus.CREATED, responses=STARTED)
async def fork_run(
    run_id: RunId,
    body: ForkBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Fork a run.

    Starts a run in a new conversation that shares this run's past up to a closed step; this run stays as it is. The fork may
    have its own instructions, tools and policy; `GET` shows beforehand what it reuses and what runs again.
    """
    run = await fork.fork(services, principal, run_id, body.order, idempotency_key=idempotency_key)
    return started(run, response)


@router.post("/runs/{run_id}/retry", status_code=HTTPStatus.CREATED, responses=STARTED)
async def retry_run(
    run_id: RunId,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    body: RetryBody | None = None,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Retry a run.

    Starts a run that continues where this one failed or was interrupted, in the same conversation, without a new message.
    What the run did stays done. The model makes the calls that its end closed again if it still needs them.
    """
    model = None if body is None else body.model
    run = await retry.retry(services, principal, run_id, model=model, idempotency_key=idempotency_key)
    return started(run, response)


@router.post(
    "/runs/{run_id}/interrupt",
    status_code=HTTPStatus.ACCEPTED,
    responses=problems({409: "`run_ended`: there is nothing to stop"}),
)
async def interrupt_run(
    run_id: RunId, services: ServicesDep, principal: StarterDep, body: InterruptBody | None = None
) -> RunSummary:
    """Stop a run.

    It ends a moment later, so the answer still shows it as it is now. A repeat changes nothing more.
    """
    return run_views.run_summary(await interrupt(services, principal, run_id, reason=body.reason if body else ""))


@router.post(
    "/runs/{run_id}/pause",
    status_code=HTTPStatus.ACCEPTED,
    responses=problems({409: "`run_ended`: there is nothing to pause"}),
)
async def pause_run(
    run_id: RunId, services: ServicesDep, principal: StarterDep, body: InterruptBody | None = None
) -> RunSummary:
    """Pause a run.

    Running calls finish, and requests can be decided; nothing new starts until the run is resumed. It is paused a moment
    later, so the answer still shows it as it is now. A repeat changes nothing more.
    """
    return run_views.run_summary(await pause(services, principal, run_id, reason=body.reason if body else ""))


@router.post(
    "/runs/{run_id}/resume",
    status_code=HTTPStatus.ACCEPTED,
    responses=problems({409: "`run_ended`: there is nothing to resume"}),
)
async def resume_run(run_id: RunId, services: ServicesDep, principal: StarterDep) -> RunSummary:
    """Resume a paused run. If it is not paused, nothing changes."""
    return run_views.run_summary(await resume(services, principal, run_id))


@router.post(
    "/runs/{run_id}/model",
    responses=problems({409: "`run_ended`: no model request follows. `no_model`: its calls are external"}),
)
async def switch_model_of_run(
    run_id: RunId, body: ModelBody, services: ServicesDep, principal: StarterDep
) -> RunSummary:
    """Switch a live run's model.

    The next model request goes to it, and so does one that waits for its next attempt. It answers until the run ends or the
    next switch. A repeat changes nothing more. A model that no worker knows is 422 `unknown_model`.
    """
    return run_views.run_summary(await switch_model(services, principal, run_id, model=body.model))


@conversations.get("/conversations/{conversation_id}/messages")
async def list_messages(
    conversation_id: ConversationId, services: ServicesDep, _principal: RunReaderDep
) -> Page[MessageView]:
    """List the messages of a conversation.

    From the first message to the newest one of a closed step.
    """
    async with services.database.read() as conn:
        return Page(items=await run_views.conversation_messages(conn, conversation_id))


# Comparisons: two runs side by side.


OtherId = Annotated[str, Path(description="The other run's id.", max_length=255, pattern=STORABLE)]


@router.get("/runs/{run_id}/comparison/{other_id}", responses=problems({422: "`same_run`: name two different runs"}))
async def compare_runs(run_id: RunId, other_id: OtherId, services: ServicesDep, _principal: RunReaderDep) -> Comparison:
    """Show two runs side by side.

    A run and its fork or retry, or two runs of one task: the past they share, and where and how they differ.
    """
    return await compare(services.database, run_id, other_id)


# Explanations: why a run failed, what a live one waits for, and which live ones are stalled.


StillFor = Annotated[
    int,
    Query(
        ge=0, le=31_536_000, description="How long a person, a tool or a model may take before the run counts as stuck."
    ),
]


@router.get("/runs/{run_id}/explanation")
async def explain_run(run_id: RunId, services: ServicesDep, principal: RunReaderDep) -> Explanation:
    """Explain a run: why it failed, or what it waits for.

    With the calls, decisions and attempts around that point, what to do next, and the runs it was forked from or to.
    """
    explanation = await explain.explain(services, principal, run_id)
    async with services.database.read() as conn:
        family = await family_for(conn, principal, run_id)
    return explanation.model_copy(update={"family": family})


@router.get("/stuck-runs")
async def list_stuck_runs(
    services: ServicesDep,
    _principal: RunReaderDep,
    sight: SightDep,
    cursor: Cursor = None,
    limit: Limit = 50,
    still_for_seconds: StillFor = 60,
    cause: Annotated[
        WaitKind | None, Query(description="Only runs that wait for this; `person`: those that need a decision.")
    ] = None,
) -> Page[StuckRun]:
    """List the stalled live runs, newest first, each with its reason.

    A page checks `limit` live runs and lists the stalled ones: it may be empty and not the last.
    """
    before = decode_cursor(cursor)
    still_for = timedelta(seconds=still_for_seconds)
    return await stalled.stuck_page(
        services, limit=limit, before=before, still_for=still_for, cause=cause, started_by=sight.started_by
    )


# Whole results, of which the model may have been shown a part.


# A call's id is the provider's own: it may hold a slash, which ends a plain path parameter.
@router.get("/runs/{run_id}/calls/{tool_call_id:path}/result", response_model=WholeResult)
async def get_result(
    run_id: RunId, tool_call_id: ToolCallId, services: ServicesDep, _principal: RunReaderDep
) -> Response:
    """Show the whole result of a call.

    Even if the model was shown only a part of it. 404 with ``no_result_yet`` while the call is open.
    """
    async with services.database.read() as conn:
        stored = await whole_result(conn, run_id, tool_call_id)
    return Response(stored.document.encode(errors="replace"), media_type="application/json")


@errors.get("/errors")
async def list_errors(
    services: ServicesDep,
    principal: OperatorDep,
    run_id: Annotated[
        str | None, Query(description="Only errors of this run.", max_length=255, pattern=STORABLE)
    ] = None,
    limit: Limit = 50,
) -> Page[ErrorView]:
    """List the newest errors of runs.

    Crashes of tools and hooks, and requests that a model or its provider failed, newest first, with text and traceback.
    """
    return Page(items=await newest_errors(services, principal, run_id=run_id, limit=limit))


@errors.get("/errors/{error_id}")
async def get_error(
    error_id: Annotated[str, Path(description="Its id, such as `err-4k7mp-2xq9t`.", max_length=255, pattern=STORABLE)],
    services: ServicesDep,
    principal: OperatorDep,
) -> ErrorView:
    """Show an error of a run by its id."""
    return await error_by_id(services, principal, error_id)
