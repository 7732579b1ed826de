"""What workers publish about their app."""

from __future__ import annotations

import asyncio

from sqlalchemy import update

from turngate import Agent, App, Policy, Toolkit
from turngate.store import agents
from turngate.store.database import Database
from turngate.store.policy import policies
from turngate.store.tables import agents as table


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


async def test_a_renamed_agent_is_offered_no_more(sqlite: Database) -> None:
    """Its runs still find it; lists have what the newest app of each task queue has."""

    async def publish(queue: str, *names: str) -> None:
        some = [Agent(name=name, instructions="", toolkit=Toolkit.of(), model="scripted:x") for name in names]
        async with sqlite.write() as conn:
            await agents.publish(conn, App(agents=some), task_queue=queue)

    await publish("q", "old", "stays")
    await publish("other", "elsewhere")
    async with sqlite.write() as conn:
        await conn.execute(update(table).values(published_at="2026-01-01T00:00:00.000000+00:00"))
    await publish("q", "new", "stays")
    async with sqlite.read() as conn:
        assert [each.name for each in await agents.current(conn)] == ["elsewhere", "new", "stays"]
        assert await agents.get(conn, "old") is not None
