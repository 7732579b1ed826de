"""The terminal UI over a real engine and its API, driven by Textual's own pilot."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.api.api_server import Api, api_on
from support.engine.stack import stack
from support.programs.tui_person import POLICY, TOOLS, Talker
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.store.database import Database


@pytest.fixture
async def api(client: Client, sqlite: Database) -> AsyncIterator[Api]:
    """The API with a worker, an inbox of the test's own, and a model that streams."""
    async with (
        stack(client, sqlite, *TOOLS, model=Talker(), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
