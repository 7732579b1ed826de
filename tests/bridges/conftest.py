"""One real engine and its API for the programs that use a bridge; each test has a source of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.api.api_server import Api, api_on
from support.api.gate_client import Sender, sender_on
from support.engine.stack import Script, says, stack
from temporalio.client import Client

from turngate.approvals_api.gateway.client import Gateway
from turngate.domain.policy.policy import Policy, Rule
from turngate.store.database import Database

POLICY = Policy(
    rule=[
        Rule(name="looking-is-free", verdict="allow", tools=["look_up", "git_status", "slow"]),
        Rule(name="never", verdict="deny", tools=["delete_shop", "git_reset"], reason="Shops stay."),
        Rule(name="soon", verdict="ask", tools=["ship"], expires_after_seconds=1),
    ]
)


@pytest.fixture(scope="session")
async def gate_api(client: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """The API with a worker, and rules for tools from outside."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('bridges')}/turngate.db")
    await database.migrate()
    async with (
        stack(client, database, model=Script(says("Done.")), policy=POLICY) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
    await database.close()


@pytest.fixture
async def sender(gate_api: Api) -> AsyncIterator[Sender]:
    """A program outside Turngate."""
    sender = await sender_on(gate_api)
    yield sender
    await sender.client.aclose()
