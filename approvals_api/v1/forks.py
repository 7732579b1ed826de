"""Dry runs, and the plans of forks and dry runs: which results they would reuse and what would run again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import Query, Response

from turngate.approvals_api.http.dependencies import RunReaderDep, ServicesDep, StarterDep
from turngate.approvals_api.http.exact_routes import api_router
from turngate.approvals_api.http.problems import problems
from turngate.approvals_api.runs import dry_run
from turngate.approvals_api.runs import plan as run_plan
from turngate.approvals_api.runs.overrides import listed
from turngate.approvals_api.v1.bodies import MAX_STEP, ModelName, ReplayBody
from turngate.approvals_api.v1.new_runs import STARTED, started
from turngate.approvals_api.v1.parameters import Id, IdempotencyKey, RunId
from turngate.approvals_api.validation.text import STORABLE
from turngate.wire.orders import DryRunOrder, ForkOrder
from turngate.wire.plans import ForkPlan
from turngate.wire.runs import RunSummary

router = api_router("runs")

NO_STEP = problems({422: "`no_such_step`, `unknown_agent`, `unknown_tool`: the message lists those there are"})
DRY_RUN_STARTED = {**STARTED, **problems({409: "`dry_replay`: it is one itself; or `idempotency_key_reused`"})}
MAX_TOOLS_CHARS = 10_000

Step = Annotated[int | None, Query(ge=1, le=MAX_STEP, description="The closed step to start after.")]
Agent = Annotated[Id | None, Query(description="Another agent.")]
Model = Annotated[ModelName | None, Query(description="Another model.")]
Tools = Annotated[
    str | None,
    Query(
        max_length=MAX_TOOLS_CHARS,
        pattern=STORABLE,
        description="Names with commas between them: the agent has only these of its tools; empty: none.",
    ),
]
Plain = Annotated[bool, Query(description="Take over none of the run's overrides.")]


@router.get("/runs/{run_id}/fork", responses=NO_STEP)
async def preview_fork(
    run_id: RunId,
    services: ServicesDep,
    _principal: RunReaderDep,
    step: Step = None,
    agent: Agent = None,
    model: Model = None,
    tools: Tools = None,
    plain: Plain = False,
    summarise: Annotated[bool, Query(description="A model first writes a summary, which replaces the past.")] = False,
) -> ForkPlan:
    """Show what a fork would do.

    Which recorded results it starts from, what has happened already and is not undone, what the model may do again, and what
    differs. Changes nothing.
    """
    order = ForkOrder(step=step, agent=agent, model=model, tools=listed(tools), plain=plain, summarise=summarise)
    return await run_plan.plan_fork(services, run_id, order)


@router.get("/runs/{run_id}/replay", responses=NO_STEP)
async def preview_replay(
    run_id: RunId,
    services: ServicesDep,
    _principal: RunReaderDep,
    step: Step = None,
    agent: Agent = None,
    model: Model = None,
    tools: Tools = None,
    plain: Plain = False,
) -> ForkPlan:
    """Show what a dry run would do: which recorded results answer its calls, and what differs. Changes nothing."""
    order = DryRunOrder(step=step, agent=agent, model=model, tools=listed(tools), plain=plain)
    return await run_plan.plan_dry_run(services, run_id, order)


@router.post("/runs/{run_id}/replay", status_code=HTTPStatus.CREATED, responses=DRY_RUN_STARTED)
async def replay_run(
    run_id: RunId,
    body: ReplayBody,
    services: ServicesDep,
    principal: StarterDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> RunSummary:
    """Start a dry run.

    It takes this run's task again: the model is called, policy judges, and calls get the results that are recorded here. A
    call that this run did not make is closed as a divergence. No tool runs, and no person is asked. Compare the two runs to
    see the differences.
    """
    run = await dry_run.start_dry_run(services, principal, run_id, body.order, idempotency_key=idempotency_key)
    return started(run, response)
