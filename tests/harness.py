"""A whole engine in one process for tests: real store, real Temporal, real worker, the API's inner functions.

Only the model is a script, which is also what a user may choose.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

import worker as composition
from activities.engine import Engine
from approvals_api import decisions, starting
from approvals_api.feed import EventFeed
from approvals_api.gateway import Gateway
from approvals_api.principals import OPERATOR_SCOPES, Principal
from approvals_api.services import Services
from approvals_api.settings import ApiSettings
from turngate.domain.agents import Agent, App, Limits
from turngate.domain.contract import InterruptInput
from turngate.domain.messages import Message, ModelResponse, TextPart, ToolCallPart
from turngate.domain.policy import Policy
from turngate.domain.toolkit import Toolkit
from turngate.domain.tools import Tool
from turngate.models.port import LanguageModel, ModelRequest
from turngate.runtime.app_loader import check_app
from turngate.store import calls, events, executions, messages, requests, runs
from turngate.store.database import Database

Found = TypeVar("Found")
DEADLINE_SECONDS = 20.0

STARTER = Principal(name="starter", via="session", scopes=OPERATOR_SCOPES)
OPERATOR = Principal(name="operator", via="session", scopes=OPERATOR_SCOPES)


def call(name: str, raw_input: str, call_id: str = "") -> ToolCallPart:
    return ToolCallPart(tool_call_id=call_id, tool_name=name, input=raw_input)


def says(*parts: ToolCallPart | str, finish_reason: str | None = None) -> ModelResponse:
    """A model's response: text and calls."""
    made = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    has_calls = any(isinstance(part, ToolCallPart) for part in made)
    reason = finish_reason or ("tool_calls" if has_calls else "stop")
    return ModelResponse(message=Message(role="assistant", parts=made), finish_reason=reason, model="scripted:test")


class ListModel:
    """Answers the n-th request of a run with the n-th response; keeps what it was sent."""

    name = "scripted:test"

    def __init__(self, *responses: ModelResponse | Exception) -> None:
        self.responses = list(responses)
        self.seen: list[ModelRequest] = []

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.seen.append(request)
        response = self.responses[min(len(self.seen), len(self.responses)) - 1]
        if isinstance(response, Exception):
            raise response
        return response

    async def aclose(self) -> None:
        return None


@dataclass
class OneModel:
    """Resolves every spec to one model."""

    model: LanguageModel

    def resolve(self, spec: str) -> LanguageModel:
        del spec
        return self.model


async def until(look: Callable[[], Awaitable[Found | None]], what: str, seconds: float = DEADLINE_SECONDS) -> Found:
    """Return what ``look`` finds, as soon as it finds it; fails after the deadline saying what never came."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s: no {what}")
        await asyncio.sleep(0.02)


class Stack:
    """One engine under test."""

    def __init__(self, client: Client, database: Database, engine: Engine, task_queue: str) -> None:
        self.client = client
        self.database = database
        self.engine = engine
        self.task_queue = task_queue
        self.services = Services(
            database=database,
            gateway=Gateway(client, update_wait=timedelta(seconds=15)),
            feed=EventFeed(database),
            settings=ApiSettings(heartbeat_timeout_seconds=2),
        )

    def worker(self, **options: Any) -> Worker:
        """A worker with the cache off, so that every workflow task replays."""
        return composition.build_worker(
            self.client, self.engine, task_queue=self.task_queue, **{"max_cached_workflows": 0, **options}
        )

    async def start(self, text: str = "go", **options: Any) -> runs.Run:
        options.setdefault("agent", "agent")
        return await starting.start(self.services, options.pop("by", STARTER), text=text, **options)

    async def request(self, run: runs.Run, *, kind: str | None = None, tool: str | None = None) -> requests.Request:
        """The run's pending request, once there is one."""

        async def look() -> requests.Request | None:
            async with self.database.read() as conn:
                found = await requests.of_run(conn, run.id)
            return next(
                (
                    each
                    for each in found
                    if each.status == "pending" and kind in {None, each.kind} and tool in {None, each.tool_name}
                ),
                None,
            )

        return await until(look, f"pending request ({kind or 'any kind'}, {tool or 'any tool'})")

    async def decide(self, request: requests.Request, verb: str, **options: Any) -> decisions.DecisionAnswer:
        by = options.pop("by", OPERATOR)
        options.setdefault("digest", request.digest)
        return await decisions.submit(self.services, by, request_id=request.id, verb=verb, **options)

    def impatient(self) -> Stack:
        """Let decisions go as Signals after half a second: for tests without a worker."""
        gateway = Gateway(self.client, update_wait=timedelta(seconds=0.5))
        self.services = replace(self.services, gateway=gateway)
        return self

    async def interrupt(self, run: runs.Run, reason: str = "enough") -> None:
        await self.services.gateway.interrupt(run.id, InterruptInput(by="operator", reason=reason))

    async def ended(self, run: runs.Run, seconds: float = DEADLINE_SECONDS) -> runs.Run:
        """The run, once it is not running any more."""

        async def look() -> runs.Run | None:
            async with self.database.read() as conn:
                found = await runs.get(conn, run.id)
            return found if found is not None and found.status != "running" else None

        return await until(look, f"end of run {run.id}", seconds)

    async def history(self, run: runs.Run) -> list[Message]:
        async with self.database.read() as conn:
            found = await runs.get(conn, run.id)
            assert found is not None
            return [stored.message for stored in await messages.path_to(conn, found.head_message_id)]

    async def results(self, run: runs.Run) -> dict[str, Any]:
        """Tool call id → result."""
        async with self.database.read() as conn:
            return {each.tool_call_id: each.settled_result for each in await calls.of_run(conn, run.id)}

    async def executions(self, run: runs.Run) -> dict[str, executions.Execution]:
        async with self.database.read() as conn:
            return {each.tool_call_id: each for each in await executions.of_run(conn, run.id)}

    async def events(self, run: runs.Run) -> list[events.Event]:
        async with self.database.read() as conn:
            return await events.after(conn, 0, run_id=run.id)

    async def event(self, run: runs.Run, kind: str) -> events.Event:
        async def look() -> events.Event | None:
            return next((each for each in await self.events(run) if each.type == kind), None)

        return await until(look, f"event {kind}")

    def workflow(self, run: runs.Run) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(run.id)


@asynccontextmanager
async def stack(
    client: Client,
    database: Database,
    *tools: Tool,
    model: LanguageModel,
    policy: Policy | None = None,
    limits: Limits | None = None,
    services: Any = None,
    working: bool = True,
) -> AsyncIterator[Stack]:
    """An engine with one agent named ``agent``; ``working``: a worker runs inside the block."""
    agent = Agent(
        name="agent",
        instructions="Be brief.",
        toolkit=Toolkit.of(*tools),
        model="scripted:test",
        limits=limits or Limits(),
    )
    app = check_app(App(agents=[agent], policy=policy, services=services), base=Path.cwd())
    task_queue = f"test-{secrets.token_hex(4)}"
    await composition.publish_agents(app, database, task_queue=task_queue)
    engine = composition.build_engine(app, database, OneModel(model))
    made = Stack(client, database, engine, task_queue)
    if not working:
        yield made
        return
    async with made.worker():
        yield made
