"""Turngate's side: the real engine on a real store, started and decided through the API's inner functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from bench.sides import Ask, Side
from pydantic import BaseModel
from sqlalchemy import text
from support.engine.stack import OPERATOR, STARTER, Stack, call, says, stack
from temporalio.client import Client

from turngate import ToolContext, tool
from turngate import worker as composition
from turngate.approvals_api.requests import decide as decide_request
from turngate.approvals_api.runs import start as start_run
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.tools.tool import Tool
from turngate.models.port import ModelRequest
from turngate.runtime.traces.current import CurrentSpans
from turngate.store.database import Database
from turngate.wire.orders import DecisionOrder, StartOrder

INBOX_POLL_SECONDS = 0.02
PENDING = text("SELECT id, run_id, digest FROM requests WHERE status = 'pending'")


class Amount(BaseModel):
    cents: int


class GatedModel:
    """Asks for one payment, then answers."""

    name = "scripted:bench"
    asks = says("I will pay.", call("pay", '{"cents": 5}', "c1"))
    answers = says("Done.")

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return self.answers if request.messages[-1].role == "tool" else self.asks

    async def aclose(self) -> None:
        return None


class Turngate(Side):
    """The engine under measurement."""

    def __init__(self, name: str, engine: Stack) -> None:
        super().__init__(name, engine.client)  # with the keys of its store
        self.engine = engine
        # What a user runs: the cache on, unlike the tests' own.
        self.worker = composition.build_worker(engine.client, engine.engine, task_queue=engine.task_queue)
        # The tests' shorter heartbeat is not what a user runs with.
        self.services = replace(engine.services, settings=ApiSettings())
        self._seen: set[str] = set()
        self._waiting = 0
        self._wanted = asyncio.Event()

    async def start(self, conversation_id: str | None = None) -> str:
        self._waiting += 1
        self._wanted.set()
        order = StartOrder(agent="agent", input="go", conversation_id=conversation_id)
        run = await start_run.start(self.services, STARTER, order)
        return run.id

    async def decide(self, ask: Ask) -> None:
        order = DecisionOrder(verb="approve", digest=ask.digest)
        await decide_request.submit(self.services, OPERATOR, ask.request_id, order)

    async def watch_inbox(self) -> None:
        """Announce every request, until cancelled; polls only while a turn has not asked yet, so it slows no one else.

        It is the measuring device, not the thing measured: one narrow query in place of the page that people look at.
        """
        while True:
            await self._wanted.wait()
            async with self.engine.database.read() as conn:
                for request_id, run_id, digest in await conn.execute(PENDING):
                    if request_id not in self._seen:
                        self._seen.add(request_id)
                        self._waiting -= 1
                        self.tell(Ask(turn_id=run_id, request_id=request_id, digest=digest))
            if self._waiting == 0:
                self._wanted.clear()
            await asyncio.sleep(INBOX_POLL_SECONDS)


@asynccontextmanager
async def turngate(
    name: str, client: Client, database: Database, *, tracing: CurrentSpans | None = None
) -> AsyncIterator[Turngate]:
    """Turngate with its worker and one agent, whose tool ``pay`` is ``once`` and asks. ``tracing``: as of the engine."""
    sides: list[Turngate] = []
    async with stack(client, database, _pay(sides), model=GatedModel(), working=False) as engine:
        engine.engine = replace(engine.engine, tracing=tracing)
        side = Turngate(name, engine)
        sides.append(side)
        watcher = asyncio.create_task(side.watch_inbox(), name=f"watch inbox of {name}")
        try:
            async with side.worker:
                yield side
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher


def _pay(sides: list[Turngate]) -> Tool:
    @tool(effect="once", ask=True)
    async def pay(params: Amount, ctx: ToolContext) -> dict[str, int]:
        """Pay an amount."""
        sides[0].handlers.note(ctx.run_id)
        return {"paid": params.cents}

    return pay


async def fresh_sqlite(directory: Path, name: str) -> Database:
    """Return a new migrated SQLite database."""
    database = Database(f"sqlite:///{directory}/{name}.db")
    await database.migrate()
    return database
