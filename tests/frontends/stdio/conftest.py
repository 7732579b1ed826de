"""One real engine and its API for the drivers, each of which is a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.api.api_server import Api, api_on
from support.api.frontend_app import POLICY, TOOLS, Talker
from support.engine.stack import stack
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.store.database import Database


@pytest.fixture(scope="session")
async def driven_api(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """The API with a worker, and a model that streams."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('drivers')}/turngate.db")
    await database.migrate()
    async with (
        stack(client, database, *TOOLS, model=Talker(), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
    await database.close()
