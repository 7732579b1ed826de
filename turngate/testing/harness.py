"""One engine on a store and a Temporal client that the caller opened: every test of an engine uses it.

:func:`turngate.testing.running_app` opens both for a builder; the project's own tests share them between tests.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

from temporalio.client import Client
from temporalio.testing import TimeSkipper, TimeSkippingConfig, WorkflowEnvironment

from turngate.activities.engine.engine import Engine, ModelResolver
from turngate.approvals_api.events.feed import EventFeed
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.services import Services
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.agents.model_profiles import Profiles
from turngate.models.port import LanguageModel
from turngate.models.registry import declared_models
from turngate.runtime.app_loader import LoadedApp, publish_agents
from turngate.runtime.temporal_client import with_keys_of
from turngate.runtime.worker_group import WorkerGroup
from turngate.runtime.workspaces import ANYWHERE
from turngate.store import agents
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.worker import WorkerOptions, build_engine, build_worker

Value = TypeVar("Value")

STARTER: Final = Principal(name="starter", via="session", scopes=OPERATOR_SCOPES)
OPERATOR: Final = Principal(name="operator", via="session", scopes=OPERATOR_SCOPES)
DEADLINE_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.02
TIME_SKIPPING: Final = (
    "frontend.WorkflowTimeSkippingEnabled=true",
    # How long a timer's task may be delayed. The server's default of 1 s would slow each skip.
    'history.timerProcessorMaxTimeShift="10ms"',
)


async def until(
    look: Callable[[], Awaitable[Value | None]],
    what: str,
    seconds: float = DEADLINE_SECONDS,
    *,
    why: Callable[[], Awaitable[str]] | None = None,
) -> Value:
    """Return the first true value that ``look`` returns.

    Raises AssertionError after ``seconds``, naming ``what`` and what ``why`` says then.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = await look()
        if value:
            return value
        if time.monotonic() > deadline:
            reason = "" if why is None else f"; {await why()}"
            raise AssertionError(f"after {seconds} s: no {what}{reason}")
        await asyncio.sleep(POLL_SECONDS)


@dataclass
class OneModel:
    """Resolves every model name to one model."""

    model: LanguageModel

    def resolve(self, spec: str) -> LanguageModel:
        """Return the test's model, whatever the agents name."""
        del spec
        return self.model


class SkippedTime:
    """The time of runs on a server that lets a test skip it, and the engine's clock, which is ahead by all that was skipped."""

    def __init__(self, skipper: TimeSkipper | WorkflowEnvironment) -> None:
        self._skipper = skipper
        self._ahead = timedelta(0)
        self.client = skipper.client

    @classmethod
    def of(cls, client: Client) -> Self:
        """Return the time of a server that was started with :data:`TIME_SKIPPING`. Nothing is skipped yet."""
        return cls(TimeSkipper(client, config=TimeSkippingConfig(enabled=False)))

    def now(self) -> datetime:
        """Return what the engine's clock says."""
        return now() + self._ahead

    async def forward(self, run_id: str, by: timedelta) -> bool:
        """Skip time for a run; every timer on the way fires. False: the run ended earlier."""
        self._ahead += by  # before its timers fire, or what they start would come too early
        return await self._skipper.fast_forward(self.client.get_workflow_handle(run_id), by)


class EngineHarness:
    """One engine: its store, its Temporal client, the API's operations on both, and workers on its own task queue."""

    def __init__(self, client: Client, database: Database, engine: Engine, task_queue: str) -> None:
        self.client = client
        self.database = database
        self.engine = engine
        self.task_queue = task_queue
        self.services = Services(
            database=database,
            gateway=Gateway(client, eager=True),
            feed=EventFeed(database),
            settings=ApiSettings(heartbeat_timeout_seconds=2, workspaces=ANYWHERE),
        )

    def worker(self, **options: Any) -> WorkerGroup:
        """Return a worker, which runs while it is entered. ``options``: those of ``worker.WorkerOptions``."""
        # One poller: each costs the server some work when a worker starts and stops, as it does for every test.
        return build_worker(self.client, self.engine, self.task_queue, WorkerOptions(**{"pollers": 1, **options}))


async def build_harness(
    app: LoadedApp,
    server: Client | SkippedTime,
    database: Database,
    models: ModelResolver,
    *,
    profiles: Profiles | None = None,
) -> EngineHarness:
    """Publish a checked app's agents and return its engine. No worker runs yet.

    Args:
        app: as ``turngate.runtime.app_loader.check_app`` returns it.
        server: a client that is connected with Turngate's data converter, or the time of its server, if that can be skipped.
        database: migrated.
        models: resolves the agents' model names.
        profiles: named models that runs may ask for.
    """
    task_queue = f"test-{secrets.token_hex(4)}"
    await publish_agents(app, database, task_queue=task_queue)
    named = Profiles() if profiles is None else profiles
    async with database.write() as conn:
        declared = declared_models(app.app, named)
        await agents.publish_model_names(conn, named, (), task_queue=task_queue, declared=declared)
    engine = build_engine(app, database, models, profiles, grace=False, workspaces=ANYWHERE)
    if isinstance(server, SkippedTime):
        engine, server = replace(engine, clock=server.now), server.client
    return EngineHarness(with_keys_of(server, database), database, engine, task_queue)
