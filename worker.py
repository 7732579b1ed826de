"""The worker process's composition root: settings → store → models → activities → Worker. No logic."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker, WorkerDeploymentConfig

from activities.call_model import CallModel
from activities.close_step import CloseStep
from activities.engine import Engine, ModelResolver
from activities.out_of_time import OutOfTime
from activities.read_result import built_in_toolkit
from activities.record_decision import RecordDecision
from activities.run_tool import RunTool
from activities.settle_call import SettleCall
from activities.steering import SteerRun
from turngate.domain.known_tools import known_tools
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.workflow_code import SANDBOX
from turngate.store import agents, policies
from turngate.store.database import Database
from workflows.agent_turn import AgentTurn


def build_engine(app: LoadedApp, database: Database, models: ModelResolver) -> Engine:
    """Return what the activities of this app stand on."""
    return Engine(
        database=database,
        agents=app.agents,
        policy=app.policy,
        policy_file=app.policy_file,
        services=app.services,
        models=models,
        built_in=built_in_toolkit(database),
    )


def build_worker(
    client: Client,
    engine: Engine,
    *,
    task_queue: str,
    max_cached_workflows: int = 1000,
    activity_slots: int = 100,
    graceful_shutdown_seconds: float = 5.0,
    deployment: WorkerDeploymentConfig | None = None,
) -> Worker:
    """Return a worker for the workflow and every activity; run it with ``async with`` or ``run()``.

    ``graceful_shutdown_seconds``: how long running tools may go on after the worker is told to stop. ``deployment``: the
    build it is of; None: of none, so it takes every run.
    """
    model, tool, closing = CallModel(engine), RunTool(engine), CloseStep(engine)
    decision, waiting, steering = RecordDecision(engine), OutOfTime(engine), SteerRun(engine)
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[AgentTurn],
        activities=[
            model.call_model,
            tool.run_tool,
            decision.record_decision,
            waiting.record_expiry,
            waiting.climb_ladder,
            steering.note_pause,
            steering.supersede_requests,
            closing.close_step,
            SettleCall(engine).settle_call,
        ],
        workflow_runner=SANDBOX,
        deployment_config=deployment,
        max_cached_workflows=max_cached_workflows,
        max_concurrent_activities=activity_slots,
        # An interrupt reaches a running activity with its heartbeat's answer; the SDK's default makes that 6.5 s.
        max_heartbeat_throttle_interval=timedelta(milliseconds=500),
        # After a worker is killed, its tasks wait this long for it. The default (10 s) is longer than an operator's
        # decision waits for an answer (3 s).
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        graceful_shutdown_timeout=timedelta(seconds=graceful_shutdown_seconds),
    )


async def publish_agents(app: LoadedApp, database: Database, *, task_queue: str) -> None:
    """Tell the API which agents this worker runs, and under which rules."""
    async with database.write() as conn:
        await agents.publish(conn, app.app, task_queue=task_queue)
        await policies.publish(
            conn,
            task_queue=task_queue,
            policy=app.policy,
            file="" if app.policy_file is None else str(app.policy_file),
            tools=known_tools(app.app),
        )
