"""One real engine and its API, shared by the session; each test starts runs of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from shutil import copy

import pytest
from support.api.api_server import POLICY, TOOLS, Api, TextScript, api_on, planned_on
from support.engine.stack import stack
from support.engine.sub_agent_app import LIMITS, Acting, World
from support.stores.statement_cache import compiled_once
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.recovery.redelivery import keep_redelivering
from turngate.runtime.temporal_client import data_converter
from turngate.store.database import Database


@pytest.fixture(scope="session")
async def api_database(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('api')}/turngate.db")
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture(scope="session")
async def api(client: Client, api_database: Database) -> AsyncIterator[Api]:
    """The API with a worker."""
    async with (
        stack(client, api_database, *TOOLS, model=TextScript(), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api


@pytest.fixture(scope="session")
async def planned(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """The API over a store of its own, without Temporal: a run waits at its first request, whose call never runs."""
    database = compiled_once(Database(f"sqlite:///{copy(sqlite_template, tmp_path_factory.mktemp('planned'))}"))
    async with planned_on(database) as api:
        yield api
    await database.close()


@pytest.fixture
async def idle(client: Client, sqlite: Database) -> AsyncIterator[Api]:
    """The API without a worker; run one with ``async with api.stack.worker()``."""
    async with (
        stack(client, sqlite, *TOOLS, model=TextScript(), policy=POLICY, working=False) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def office(client: Client, sqlite: Database, world: World) -> AsyncIterator[Api]:
    """The API of an app whose agent has sub-agents, control calls, tools from outside and results too large to display."""
    async with (
        stack(client, sqlite, *world.tools(), model=Acting(), limits=LIMITS) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api


@pytest.fixture
async def cut_off(api: Api) -> AsyncIterator[Api]:
    """The same store with an API that can't reach Temporal: a real client, and a port where no server listens.

    Another process tells runs at its next look what they have missed.
    """
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    telling = asyncio.create_task(keep_redelivering(api.stack.services, grace=timedelta(0), pause_seconds=0.1))
    async with api_on(api.stack, Gateway(nowhere), api.name) as unreachable:
        yield unreachable
    telling.cancel()
