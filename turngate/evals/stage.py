"""Where cases run: one embedded Temporal server and one store for all, and a worker for each set of handlers and models.

A composition root like the command line (ADR 0009). The directory has the layout of a data directory, so ``turngate up`` can
open it afterwards.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog
from temporalio.client import Client

from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.agents.app import App
from turngate.domain.contract import AgentTurnInput
from turngate.domain.runs.labels import RunLabels
from turngate.domain.text.sqlite_urls import sqlite_url
from turngate.evals.planning import Planned, with_models
from turngate.models.port import LanguageModel
from turngate.models.registry import Models, declared_models
from turngate.runtime.app_loader import LoadedApp, check_app, publish_agents
from turngate.runtime.embedded_temporal import EmbeddedTemporal
from turngate.runtime.temporal_client import data_converter
from turngate.runtime.workspaces import Workspaces
from turngate.store import agents
from turngate.store.database import Database
from turngate.testing.harness import TIME_SKIPPING, SkippedTime
from turngate.worker import WorkerOptions, build_engine, build_worker

STOP_SECONDS: Final = 0.5
TASK_QUEUE: Final = "turngate"
WORKSPACES: Final = "workspaces"
"""Where in the directory each attempt gets its copy of a case's workspace."""


class _OwnQueue(Gateway):
    """Starts runs on one worker's queue, whatever queue the store names for their agent."""

    def __init__(self, client: Client, queue: str) -> None:
        super().__init__(client)
        self._queue = queue

    async def start_run(self, start: AgentTurnInput, task_queue: str, labels: RunLabels | None = None) -> None:
        """Start the run's workflow. Raises as :meth:`Gateway.start_run`."""
        del task_queue
        await super().start_run(start, self._queue, labels)


@dataclass(frozen=True, kw_only=True)
class _OneModel:
    model: LanguageModel

    def resolve(self, spec: str) -> LanguageModel:
        """Return the case's model, whatever spec the agent names."""
        del spec
        return self.model


class Stage:
    """The server, the store and the workers. ``clock``: skips time, if an approver lets a request expire.

    ``workspaces``: the directory that the cases' copies are in.
    """

    def __init__(
        self,
        app: LoadedApp,
        models: Models,
        database: Database,
        client: Client,
        clock: SkippedTime | None,
        workspaces: Path,
    ) -> None:
        self.database = database
        self.clock = clock
        self.priced = frozenset(models.profiles.prices(app.app.prices))
        self._app = app
        self._models = models
        self._client = client
        self._workspaces = Workspaces(roots=(workspaces,))
        self._plain: Services | None = None
        self._open = AsyncExitStack()
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def services_for(self, planned: Planned) -> AsyncIterator[Services]:
        """Yield the services to start and decide a case's runs. Cases that replace nothing share one worker."""
        handlers = planned.handlers()
        if handlers or planned.model is not None or planned.models:
            app = with_models(self._app.app.with_handlers(handlers), planned.models)
            async with self._worker(app, planned.model) as services:
                yield services
            return
        async with self._opening:  # the first attempts come at once, and one worker is enough for all
            if self._plain is None:
                self._plain = await self._open.enter_async_context(self._worker(self._app.app, None))
        yield self._plain

    @asynccontextmanager
    async def _worker(self, app: App, model: LanguageModel | None) -> AsyncIterator[Services]:
        loaded = check_app(app, base=self._app.base) if app is not self._app.app else self._app
        resolver = self._models if model is None else _OneModel(model=model)
        profiles = self._models.profiles
        engine = build_engine(
            loaded, self.database, resolver, profiles, streaming=False, grace=False, workspaces=self._workspaces
        )
        if self.clock is not None:
            engine = replace(engine, clock=self.clock.now)
        queue = f"eval-{secrets.token_hex(6)}"
        services = Services(
            database=self.database,
            gateway=_OwnQueue(self._client, queue),
            feed=EventFeed(self.database),
            settings=ApiSettings(heartbeat_timeout_seconds=10, workspaces=self._workspaces),
        )
        async with build_worker(self._client, engine, queue, WorkerOptions(graceful_shutdown_seconds=STOP_SECONDS)):
            yield services

    async def aclose(self) -> None:
        """Stop the shared worker."""
        await self._open.aclose()


@asynccontextmanager
async def staged(
    app: LoadedApp, models: Models, directory: Path, *, specs: Iterable[str] = (), clock: bool
) -> AsyncIterator[Stage]:
    """Run a server and a store in a directory until the block ends, with the app's agents published.

    ``specs``: models that cases name besides those that the app declares.
    """
    if not structlog.is_configured():
        # Its default prints a traceback with every local variable: slow enough to lose a heartbeat, and full of secrets.
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[structlog.processors.add_log_level, plain])
    database = Database(sqlite_url(directory / "turngate.db"))
    try:
        await database.migrate()
        async with EmbeddedTemporal(directory, switches=TIME_SKIPPING if clock else (), lasting=False) as temporal:
            client = await Client.connect(temporal.address, data_converter=data_converter())
            skipped = SkippedTime.of(client) if clock else None
            client = client if skipped is None else skipped.client
            await publish_agents(app, database, task_queue=TASK_QUEUE)
            async with database.write() as conn:
                declared = dict.fromkeys([*declared_models(app.app, models.profiles), *specs])
                await agents.publish_model_names(
                    conn, models.profiles, models.providers, task_queue=TASK_QUEUE, declared=declared
                )
            stage = Stage(app, models, database, client, skipped, directory / WORKSPACES)
            try:
                yield stage
            finally:
                await stage.aclose()
    finally:
        await database.close()
