"""The worker process's composition root: settings → store → models → activities → Worker. No logic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from temporalio.client import Client
from temporalio.worker import WorkerDeploymentConfig

from turngate.activities.call_model import CallModel
from turngate.activities.close_step import CloseStep
from turngate.activities.engine.engine import Engine, ModelResolver
from turngate.activities.escalation import Escalation
from turngate.activities.execution.large_results import built_in_toolkit
from turngate.activities.open_scheduled import OpenScheduled
from turngate.activities.run_tool import RunTool
from turngate.activities.settle_call import SettleCall
from turngate.activities.steer_run import SteerRun
from turngate.domain.agents.model_profiles import Profiles
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.worker_group import Lane, WorkerGroup
from turngate.runtime.workflow_code import SANDBOX
from turngate.runtime.workspaces import Workspaces
from turngate.store.database import Database
from turngate.workflows import lanes
from turngate.workflows.agent_turn import AgentTurn
from turngate.workflows.scheduled_start import ScheduledStart

if TYPE_CHECKING:
    from turngate.runtime.traces.current import CurrentSpans

RECORD_SLOTS: Final = 20
"""Short transactions at once: more would only wait for each other's locks."""


def build_engine(
    app: LoadedApp,
    database: Database,
    models: ModelResolver,
    profiles: Profiles | None = None,
    *,
    streaming: bool = True,
    grace: bool = True,
    workspaces: Workspaces | None = None,
    build: str | None = None,
    tracing: CurrentSpans | None = None,
) -> Engine:
    """Return what this app's activities use. ``workspaces``: where runs may work; None: in no directory.

    ``build``: the worker's; None: it has none. ``tracing`` None: no traces are exported.
    """
    profiles = profiles or Profiles()
    engine = Engine(
        database=database,
        agents=app.agents,
        policy=app.policy,
        policy_file=app.policy_file,
        judge=app.app.judge,
        secrets=app.app.secrets,
        services=app.services,
        models=models,
        prices=profiles.prices(app.app.prices),
        profiles=profiles,
        built_in=built_in_toolkit(database),
        streaming=streaming,
        grace=grace,
        workspaces=workspaces or Workspaces(),
        tracing=tracing,
    )
    return engine if build is None else replace(engine, build=build)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What an operator can set of a worker.

    Attributes:
        max_cached_workflows: runs that stay in memory between two of their tasks.
        tool_calls_at_once: the others wait in Temporal, as on every lane of :mod:`turngate.workflows.lanes`.
        model_requests_at_once: None: they share the tools' slots.
        graceful_shutdown_seconds: how long running activities may continue after the worker must stop.
        deployment: the worker's build; None: it has none, so it takes every run.
        pollers: requests for tasks that wait at Temporal at once, for each kind of task on each lane. None: the SDK's number.
    """

    max_cached_workflows: int = 1000
    tool_calls_at_once: int = 100
    model_requests_at_once: int | None = None
    graceful_shutdown_seconds: float = 5.0
    deployment: WorkerDeploymentConfig | None = None
    pollers: int | None = None


def build_worker(client: Client, engine: Engine, task_queue: str, options: WorkerOptions | None = None) -> WorkerGroup:
    """Return workers for the workflow and every activity; run them with ``async with`` or ``run()``.

    ``options``: None: the defaults.
    """
    options = options or WorkerOptions()
    model, closing = CallModel(engine), CloseStep(engine)
    # Where model requests have places of their own, no tool's place is used for one.
    tool = RunTool(engine, model if options.model_requests_at_once is None else None)
    waiting, steering = Escalation(engine), SteerRun(engine)
    records: list[Callable[..., Any]] = [waiting.record_expiry, waiting.climb_ladder, closing.close_step]
    records += [steering.read_control, steering.interrupt_below, OpenScheduled(engine).open_scheduled]
    records += [SettleCall(engine).settle_call]
    tools, models = options.tool_calls_at_once, options.model_requests_at_once
    common = Lane(
        task_queue=task_queue,
        activities=[model.call_model, tool.run_tool],
        slots=tools,
        more={
            "workflows": [AgentTurn, ScheduledStart],
            "workflow_runner": SANDBOX,
            "interceptors": [lanes.Lanes(models_apart=models is not None)],
            "max_cached_workflows": options.max_cached_workflows,
            # After a worker is killed, its tasks wait this long for it; the default is 10 s.
            "sticky_queue_schedule_to_start_timeout": timedelta(seconds=2),
        },
    )
    # Always, because another worker may have separate slots for model requests and send them to this queue.
    requests = Lane(task_queue=f"{task_queue}{lanes.MODELS}", activities=[model.call_model], slots=models or tools)
    short = Lane(task_queue=f"{task_queue}{lanes.RECORDS}", activities=records, slots=RECORD_SLOTS)
    return WorkerGroup.of(
        client,
        [common, requests, short],
        grace=timedelta(seconds=options.graceful_shutdown_seconds),
        deployment=options.deployment,
        pollers=options.pollers,
    )
