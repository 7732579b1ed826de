"""Runs and conversations: start, look, talk on, stop."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response

from approvals_api import forking, run_views, starting
from approvals_api.cursors import decode_cursor
from approvals_api.dependencies import RunReaderDep, ServicesDep, StarterDep
from approvals_api.interrupting import interrupt
from approvals_api.read_models import MessageView, Page, RunDetail, RunSummary
from approvals_api.v1.bodies import Cursor, ForkBody, IdempotencyKey, InterruptBody, Limit, MessageBody, StartRunBody
from turngate.domain.requests import RunStatus

router = APIRouter(tags=["runs"])


@router.post("/runs", status_code=HTTPStatus.CREATED)
async def start_run(
    body: StartRunBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start a run; the same Idempotency-Key with the same body returns the first run again."""
    run = await starting.start(
        services,
        principal,
        agent=body.agent,
        text=body.input,
        conversation_id=body.conversation_id,
        workspace=body.workspace,
        model=body.model,
        idempotency_key=idempotency_key,
    )
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run_views.run_summary(run)


@router.get("/runs")
async def list_runs(
    services: ServicesDep,
    _principal: RunReaderDep,
    cursor: Cursor = None,
    limit: Limit = 50,
    status: RunStatus | None = None,
) -> Page[RunSummary]:
    """List runs, newest first."""
    before = decode_cursor(cursor)
    async with services.database.read() as conn:
        return await run_views.run_page(conn, limit=limit, before=before, status=status)


@router.get("/runs/{run_id}")
async def get_run(run_id: str, services: ServicesDep, _principal: RunReaderDep) -> RunDetail:
    """Show a run with its steps and calls."""
    async with services.database.read() as conn:
        return await run_views.run_detail(conn, run_id)


@router.post("/runs/{run_id}/messages", status_code=HTTPStatus.CREATED)
async def send_message(
    run_id: str,
    body: MessageBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start the next run of this run's conversation, with its agent, model and workspace."""
    async with services.database.read() as conn:
        earlier = await run_views.existing_run(conn, run_id)
    run = await starting.start(
        services,
        principal,
        agent=earlier.agent,
        text=body.input,
        conversation_id=earlier.conversation_id,
        workspace=earlier.workspace,
        model=earlier.model or None,
        idempotency_key=idempotency_key,
    )
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run_views.run_summary(run)


@router.post("/runs/{run_id}/fork", status_code=HTTPStatus.CREATED)
async def fork_run(
    run_id: str,
    body: ForkBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start a run in a new conversation that shares this run's past up to a closed step; this run stays as it is."""
    run = await forking.fork(
        services,
        principal,
        run_id,
        text=body.text,
        step=body.step,
        agent=body.agent,
        model=body.model,
        workspace=body.workspace,
        idempotency_key=idempotency_key,
    )
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run_views.run_summary(run)


@router.post("/runs/{run_id}/interrupt", status_code=HTTPStatus.ACCEPTED)
async def interrupt_run(
    run_id: str, services: ServicesDep, principal: StarterDep, body: InterruptBody | None = None
) -> RunSummary:
    """Stop a run; it ends a moment later, so the answer still shows it as it is now."""
    return run_views.run_summary(await interrupt(services, principal, run_id, reason=body.reason if body else ""))


@router.get("/conversations/{conversation_id}/messages")
async def conversation_messages(
    conversation_id: str, services: ServicesDep, _principal: RunReaderDep
) -> Page[MessageView]:
    """Show a conversation from its first message to its newest closed one."""
    async with services.database.read() as conn:
        return Page(items=await run_views.conversation_messages(conn, conversation_id))
