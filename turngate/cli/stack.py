"""Turngate's parts in one process, started in order and stopped in reverse: first the API, then the worker, then Temporal.

Each part is an async context manager: ``turngate up`` is all of them, ``turngate worker`` and ``turngate api`` are some.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import WorkerDeploymentConfig

from approvals_api.app import create_app
from approvals_api.gateway.client import Gateway
from turngate.cli import builders_app, stores, terminal
from turngate.cli.api_server import ApiServer
from turngate.cli.api_settings import api_settings, configured_channels
from turngate.cli.builders_app import build_models
from turngate.cli.temporal_link import connect_when_there
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.models.registry import Models, declared_models
from turngate.notifications.configuration import Channel
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.locations import RunningStack
from turngate.runtime.loop_watch import LoopWatch
from turngate.runtime.settings import Settings
from turngate.runtime.workspaces import Workspaces
from turngate.store import agents
from turngate.store.database import Database
from turngate.toolkits.confinement import machine
from turngate.toolkits.private_files import PRIVATE_FILES
from worker import WorkerOptions, build_engine, build_worker, publish_agents

logger = logging.getLogger(__name__)

WORKER_STOP_SECONDS: Final = 6.0
"""The worker gives running activities 5 s (worker.py). It needs a little more to sign off."""
TEMPORAL_STOP_SECONDS: Final = 1.5
"""An orderly stop takes 1.1 s. A killed server loses nothing, so there is no point in waiting longer."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The running parts. ``parts``: tasks that end only when their part fails or is stopped."""

    settings: Settings
    database: Database
    temporal_address: str
    temporal_ui_url: str | None
    parts: list[asyncio.Task[None]]

    async def until(self, stop: asyncio.Event) -> None:
        """Return when ``stop`` is set. Raises a part's error when the part ends by itself."""
        await until_stopped(stop, self.parts)


@asynccontextmanager
async def whole_stack(
    settings: Settings, app: LoadedApp, listener: socket.socket, *, temporal_ui: bool = False
) -> AsyncIterator[Stack]:
    """Run everything: embedded Temporal (unless TEMPORAL_ADDRESS is set), store, worker and API on ``listener``.

    Raises ConfigurationError or UnavailableError, with the fix, when a part cannot start. The parts before it are stopped.
    """
    async with AsyncExitStack() as running:
        running.callback(listener.close)
        require_no_other_stack(settings)
        channels = configured_channels(settings)
        settings.ensure_data_dir()
        # Temporal's server is a process of its own, so it starts while this one opens the store.
        starting = asyncio.create_task(running.enter_async_context(_temporal(settings, ui=temporal_ui)))
        try:
            database = await running.enter_async_context(stores.opened_store(settings, migrate=True))
            temporal_address, ui_url = await starting
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        settings = settings.model_copy(update={"temporal_ui_url": ui_url or settings.temporal_ui_url})
        await running.enter_async_context(signing_log(settings, database))
        client = await connect_when_there(
            settings.model_copy(update={"temporal_address": temporal_address}), terminal.note
        )
        await stores.ensure_cli_token(database, settings.data_dir)
        worker = await running.enter_async_context(serving_worker(settings, app, client, database))
        api = await running.enter_async_context(serving_api(settings, client, database, listener, channels))
        await running.enter_async_context(announced(settings, temporal_address))
        yield Stack(
            settings=settings,
            database=database,
            temporal_address=temporal_address,
            temporal_ui_url=ui_url,
            parts=[worker, api],
        )


def require_no_other_stack(settings: Settings) -> None:
    """Raise ConfigurationError when a stack already runs from this data directory."""
    other = RunningStack.read(settings.data_dir)
    if other is not None:
        raise ConfigurationError(
            f"Turngate already runs from {settings.data_dir}: process {other.pid} at {other.api_url}. "
            "Use it, stop it, or choose another directory with --data-dir"
        )


@asynccontextmanager
async def _temporal(settings: Settings, *, ui: bool) -> AsyncIterator[tuple[str, str | None]]:
    """Yield the address of Temporal and of its pages: those of the settings, or of a server that runs meanwhile."""
    if settings.temporal_address is not None:
        yield settings.temporal_address, None
        return
    async with embedded_temporal(settings, settings.temporal_port, ui=ui) as server:
        yield server.address, server.ui_url


@asynccontextmanager
async def embedded_temporal(settings: Settings, port: int | None, *, ui: bool) -> AsyncIterator[EmbeddedTemporal]:
    """Run the embedded Temporal server from the data directory."""
    server = EmbeddedTemporal(settings.data_dir, port, ui=ui)
    await server.start()
    try:
        yield server
    finally:
        await _bounded(
            server.stop(), TEMPORAL_STOP_SECONDS, "Temporal was killed, which loses nothing, because it did not stop"
        )


@asynccontextmanager
async def signing_log(settings: Settings, database: Database) -> AsyncIterator[None]:
    """Sign the log if the settings name a key: from before anything writes events until nothing does any more."""
    if settings.audit_key_file is None:
        yield
        return
    from turngate.runtime import signed_heads  # noqa: PLC0415 - cryptography is slow to import, and few sign

    async with signed_heads.signing_log(settings, database):
        yield


def signing_files(settings: Settings) -> list[Path]:
    """Return the files that the log is signed with and into, which no tool may read or change."""
    return [path for path in (settings.audit_key_file, settings.audit_heads) if path is not None]


@asynccontextmanager
async def serving_worker(
    settings: Settings,
    app: LoadedApp,
    client: Client,
    database: Database,
    deployment: WorkerDeploymentConfig | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Publish the app's agents and run its worker. Yields the task, which ends when the worker fails.

    ``deployment``: as of :class:`worker.WorkerOptions`.
    """
    shorten_failures(details=settings.log_format == "json")
    await asyncio.to_thread(confine_tools, settings)
    models = build_models(settings, script_base=app.base)
    _warn_of_models(app, models)
    for warning in builders_app.warnings(app):
        logger.warning("%s", warning)
    engine = build_engine(
        app, database, models, models.profiles, streaming=settings.streaming, workspaces=workspaces_of(settings)
    )
    options = WorkerOptions(
        tool_calls_at_once=settings.tool_calls_at_once,
        model_requests_at_once=settings.model_requests_at_once,
        deployment=deployment,
    )
    worker = build_worker(client, engine, settings.task_queue, options)
    await publish_agents(app, database, task_queue=settings.task_queue)
    async with database.write() as conn:
        declared = declared_models(app.app, models.profiles)
        await agents.publish_model_names(
            conn, models.profiles, models.providers, task_queue=settings.task_queue, declared=declared
        )
    task = asyncio.create_task(worker.run(), name="worker")
    try:
        async with LoopWatch("the worker", file=settings.health_file):
            yield task
    finally:
        if not task.done():
            await _bounded(worker.shutdown(), WORKER_STOP_SECONDS, "the worker did not stop")
        await models.aclose()


def workspaces_of(settings: Settings) -> Workspaces:
    """Return where runs may work, and keep Turngate's own files from this process's file tools."""
    PRIVATE_FILES.add(directories=[settings.data_dir], databases=settings.database_files, files=signing_files(settings))
    return Workspaces(roots=settings.workspaces or ())


def confine_tools(settings: Settings) -> None:
    """Confine the processes of this process's tools, and keep other processes of its user from its memory.

    Warns when this machine can't confine them.
    """
    machine.keep_memory_private()
    confinement = tool_confinement(settings)
    machine.use(confinement)
    if confinement.backend is None:
        logger.warning("%s", unconfined_warning(confinement))


def tool_confinement(settings: Settings) -> machine.Confinement:
    """Find out how this machine confines tools' processes, as the settings want it."""
    return machine.find(
        hidden=[settings.data_dir, *signing_files(settings)],
        readable=settings.tool_paths,
        tool_user=settings.tool_user,
        allow_unconfined=settings.allow_unconfined,
    )


def unconfined_warning(confinement: machine.Confinement) -> str:
    """Say that tools' processes are not confined here, what follows, and what to do."""
    follows = "they are not started without --allow-unconfined"
    if confinement.allow_unconfined:
        follows = "they run unconfined, as --allow-unconfined says, and each call asks a person"
    return (
        f"this machine can't confine the processes of tools such as bash, so {follows} ({'; '.join(confinement.why)}). "
        "Install bubblewrap, or use Linux 6.7 or newer, or set TURNGATE_TOOL_USER to a user of their own"
    )


def _warn_of_models(app: LoadedApp, models: Models) -> None:
    """Warn at the start of each agent whose model cannot be used. Its runs will fail; the others still run."""
    for agent in app.agents.values():
        try:
            models.resolve(agent.model)
        except ConfigurationError as error:
            logger.warning("runs of agent %r will fail: %s", agent.name, error.message)


@asynccontextmanager
async def serving_api(
    settings: Settings,
    client: Client,
    database: Database,
    listener: socket.socket,
    channels: tuple[Channel, ...] = (),
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve API and pages on ``listener``, and notify ``channels``. Yields the task, which ends with the server.

    The app itself starts the workflows of runs that a crash left recorded only (``approvals_api.app``).
    """
    of_api = api_settings(settings, channels, workspaces_of(settings))
    gateway = Gateway(client)
    server = ApiServer(
        create_app(database=database, gateway=gateway, settings=of_api),
        listener,
        access_log=settings.log_level == "debug",
    )
    try:
        await server.start()
        if server.task is None:  # pragma: no cover - start() made it
            raise RuntimeError("the API has no task")
        yield server.task
    finally:
        await server.stop()


@asynccontextmanager
async def announced(settings: Settings, temporal_address: str) -> AsyncIterator[RunningStack]:
    """Write the note by which commands and other processes find this stack, and remove it when the stack ends."""
    note = RunningStack(temporal_address=temporal_address, api_url=settings.resolved_api_url)
    note.write(settings.data_dir)
    try:
        yield note
    finally:
        note.remove(settings.data_dir)


async def until_stopped(stop: asyncio.Event, parts: list[asyncio.Task[None]]) -> None:
    """Return when ``stop`` is set. Raise a part's error, or UnavailableError, when the part ends by itself."""
    waiting = asyncio.create_task(stop.wait())
    try:
        done, _pending = await asyncio.wait([waiting, *parts], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    for part in parts:
        if part in done:
            await part
            raise UnavailableError(f"the {part.get_name()} stopped by itself; the log above says why")


async def _bounded(stopping: Awaitable[None], seconds: float, otherwise: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stopping
    except TimeoutError:
        logger.info("%s within %.1f s", otherwise, seconds)


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
