"""The worker of an app as a part of this process."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import WorkerDeploymentConfig

from turngate.approvals_api.gateway.task_queues import look_at_queue
from turngate.cli import builders_app, terminal
from turngate.cli.parts.confinement import confine_tools, workspaces_of
from turngate.cli.parts.stop import bounded
from turngate.domain.errors import ConfigurationError
from turngate.models.registry import Models, build_models, declared_models
from turngate.runtime.app_loader import LoadedApp, by_ids, publish_agents
from turngate.runtime.loop_watch import LoopWatch
from turngate.runtime.settings import Settings
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.runs import known_traces
from turngate.worker import WorkerOptions, build_engine, build_worker

if TYPE_CHECKING:
    from turngate.runtime.traces.current import CurrentSpans

logger = logging.getLogger(__name__)

ASK_WAIT: Final = timedelta(seconds=3)
SIGN_OFF_SECONDS: Final = 1.0
"""What a worker needs after the grace of its activities."""


@asynccontextmanager
async def serving_worker(
    settings: Settings,
    app: LoadedApp,
    client: Client,
    database: Database,
    deployment: WorkerDeploymentConfig | None = None,
    models: Models | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Publish the app's agents and run its worker. Yields the task, which ends when the worker fails.

    ``deployment``: as of :class:`worker.WorkerOptions`. ``models``: closed at the end; None: those of the settings.
    """
    shorten_failures(details=settings.log_format == "json")
    models = models or build_models(settings, script_base=app.base)
    await asyncio.to_thread(confine_tools, settings, builders_app.app_files(app, settings, models.profiles))
    _warn_of_models(app, models)
    for warning in builders_app.warnings(app):
        logger.warning("%s", warning)
    tracing = await current_spans(settings)
    app = await by_ids(app, database)
    engine = build_engine(
        app,
        database,
        models,
        models.profiles,
        streaming=settings.streaming,
        workspaces=workspaces_of(settings),
        build=None if deployment is None else deployment.version.build_id,
        tracing=tracing,
    )
    if database.meter is not None:
        database.meter.expect(tools=tool_names(app), models=[agent.model for agent in app.agents.values()])
    options = WorkerOptions(
        tool_calls_at_once=settings.tool_calls_at_once,
        model_requests_at_once=settings.model_requests_at_once,
        deployment=deployment,
        graceful_shutdown_seconds=settings.stop_grace_seconds,
    )
    worker = build_worker(client, engine, settings.task_queue, options)
    await publish_agents(app, database, task_queue=settings.task_queue)
    async with database.write() as conn:
        declared = declared_models(app.app, models.profiles)
        await agents.publish_model_names(
            conn, models.profiles, models.providers, task_queue=settings.task_queue, declared=declared
        )
    if (new_runs := await new_runs_note(client, settings.task_queue, deployment)) is not None:
        terminal.note(new_runs)
    task = asyncio.create_task(worker.run(), name="worker")
    try:
        async with LoopWatch("the worker", file=settings.health_file) as watch:
            try:
                yield task
            finally:
                watch.drain()
                if not task.done():
                    limit = settings.stop_grace_seconds + SIGN_OFF_SECONDS
                    await bounded(worker.shutdown(), limit, "the worker did not stop")
    finally:
        await models.aclose()
        if tracing is not None:
            await tracing.end()


async def current_spans(settings: Settings) -> CurrentSpans | None:
    """Return what names the current span of handlers; None: no traces are exported. Raises as :attr:`Settings.tracing`."""
    if settings.tracing is None:
        return None
    from turngate.runtime.traces.current import CurrentSpans  # noqa: PLC0415 - an extra

    known_traces.keep()
    return CurrentSpans.install()


def tool_names(app: LoadedApp) -> list[str]:
    """Return the names of all tools that the app's agents have."""
    return sorted({tool.name for agent in app.agents.values() for tool in agent.toolkit})


async def new_runs_note(client: Client, task_queue: str, deployment: WorkerDeploymentConfig | None) -> str | None:
    """Return what a worker must say about new runs; None: it gets them, as one expects, or Temporal doesn't say."""
    try:
        current = (await look_at_queue(client, task_queue, wait=ASK_WAIT)).current_build
    except (RPCError, RuntimeError):
        return None
    if deployment is None:
        if current is None:
            return None
        return (
            f"this worker gets no new runs: build {current} is current, and this worker has no build. Start it with "
            f"--build-id {shlex.quote(current)} if it has the code of that build, or give new runs to workers without a "
            "build: `turngate builds --unset-current`"
        )
    own = deployment.version.build_id
    if current == own:
        return f"its build {own} is current: it gets new runs"
    others = "no build is current" if current is None else f"build {current} is current"
    return f"its build is {own}, and {others}: it gets new runs after `turngate builds --set-current {own}`"


def _warn_of_models(app: LoadedApp, models: Models) -> None:
    """Warn at the start of each agent whose model cannot be used. Its runs will fail; the others still run."""
    for agent in app.agents.values():
        try:
            models.resolve(agent.model)
        except ConfigurationError as error:
            logger.warning("runs of agent %r will fail: %s", agent.name, error.message)


def shorten_failures(*, details: bool) -> None:
    """Shorten the SDK's log lines about failed activities in this process. Safe to repeat.

    The SDK logs every failed attempt with a traceback and all it knows about the activity: a model that is down for a minute
    would fill the terminal. ``details``: keep the SDK's structured fields on each line (for logs that programs read).
    """
    activity.logger.activity_info_on_message = False
    activity.logger.activity_info_on_extra = details
    workflow.logger.workflow_info_on_message = False
    workflow.logger.workflow_info_on_extra = details
    sdk = activity.logger.base_logger
    if not any(isinstance(present, _FailureLines) for present in sdk.filters):
        sdk.addFilter(_FailureLines())


class _FailureLines(logging.Filter):
    """Says which activity failed and why. Only a bug keeps its traceback: Turngate's own failures are ApplicationErrors."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not activity.in_activity():
            return True
        info = activity.info()
        record.msg = "%s of %s failed, attempt %s: %s"
        record.args = (info.activity_type, info.workflow_id, info.attempt, error)
        if isinstance(error, ApplicationError):
            record.exc_info = None
        return True
