"""What workers publish about their app."""

from __future__ import annotations

import asyncio

from turngate import Agent, App, Policy, Toolkit
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.policy import policies


async def test_workers_that_start_at_once_all_publish(database: Database) -> None:
    """Several processes publish the same agents at the same instant: none fails, and each agent is stored once."""
    app = App(
        agents=[Agent(name=name, instructions="", toolkit=Toolkit.of(), model="scripted:x") for name in ("a", "b", "c")]
    )

    async def publish() -> None:
        async with database.write() as conn:
            await agents.publish(conn, app, task_queue="q")
            await policies.publish(conn, task_queue="q", policy=Policy(), file="", tools=[])

    await asyncio.gather(*(publish() for _ in range(6)))
    async with database.read() as conn:
        assert [agent.name for agent in await agents.every(conn)] == ["a", "b", "c"]
        assert [agent.task_queue for agent in await agents.every(conn)] == ["q"] * 3
