"""The API under test on a real socket, an agent that follows its input, and a client for each kind of credential."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel
from support.engine.stack import Stack, call, says, stack
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment
from typer.testing import CliRunner

from turngate.activities.call_model import CallModel
from turngate.approvals_api.app import create_api_app, create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.http.authentication import SESSION_COOKIE
from turngate.approvals_api.principal import OPERATOR_SCOPES, Principal
from turngate.approvals_api.runs.order import checked_order, record
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.domain.contract import CallModelInput
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.identity import UNBOUND, TokenBounds
from turngate.domain.policy.policy import Policy, Rule
from turngate.domain.tools.declare import interaction_tool, tool
from turngate.domain.tools.tool import Tool
from turngate.models.port import LanguageModel, ModelRequest
from turngate.runtime.temporal_client import data_converter
from turngate.runtime.workspaces import ANYWHERE, Workspaces
from turngate.store import agents
from turngate.store.access import access, people, sessions, tokens
from turngate.store.database import Database
from turngate.store.runs import runs
from turngate.wire.orders import StartOrder


def not_thirteen(cents: int) -> int:
    if cents == 13:
        raise ValueError("unlucky")
    return cents


class Amount(BaseModel):
    """A check that JSON Schema cannot express: only the worker, which has the type, refuses 13."""

    cents: Annotated[int, AfterValidator(not_thirteen)]
    note: str = ""


class Question(BaseModel):
    text: str


class Reply(BaseModel):
    answer: str


@tool(effect="once", ask=True)
async def pay(params: Amount) -> dict[str, int]:
    """Pay an amount."""
    return {"paid": params.cents}


@tool(effect="once", ask=True)
async def pay_shared(params: Amount) -> dict[str, int]:
    """Pay from the shared account."""
    return {"paid": params.cents}


ask_person = interaction_tool(name="ask_person", description="Ask a person.", params=Question, answer=Reply)
TOOLS = (pay, pay_shared, ask_person)
POLICY = Policy(rule=[Rule(name="four-eyes", verdict="ask", tools=["pay_shared"], starter_may_decide=False)])


class TextScript:
    """Does what the last user message says: ``pay N``, ``pay_shared N``, ``ask_person TEXT``; anything else is answered."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        last = request.messages[-1]
        name, _space, rest = last.text.partition(" ")
        if last.role != "user" or name not in {each.name for each in TOOLS}:
            return says("Done.")
        arguments = {"text": rest} if name == "ask_person" else {"cents": int(rest)}
        return says(f"I will use {name}.", call(name, json.dumps(arguments)))

    async def aclose(self) -> None:
        return None


@contextlib.asynccontextmanager
async def serving(app: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """Serve the app on a loopback port (0: any free one); yields its URL.

    By uvicorn in the test's own loop, without its main loop, which looks for a signal or an end ten times a second.
    """
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1, timeout_keep_alive=60
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await app.state.services.feed.close()  # without a signal, uvicorn waits for open streams
        await _shut_down(server)


async def _shut_down(server: uvicorn.Server) -> None:
    """End a server as uvicorn does, but without its pause of a tenth of a second."""
    for each in server.servers:
        each.close()
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(server.config.timeout_graceful_shutdown):
            while state.connections or state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.002)
    for task in state.tasks:
        task.cancel()
    await server.lifespan.shutdown()


@contextlib.asynccontextmanager
async def reader(client: Client, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """Serve API and pages over a store; yields a program that may read requests, and so every run."""
    app = create_app(database=database, gateway=Gateway(client), settings=ApiSettings())
    headers = await token_for(database, f"reader-{secrets.token_hex(4)}", "requests:read")
    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30) as http,
    ):
        yield http


@dataclass
class Api:
    """The API under test. ``operator``: logged in by cookie; ``agent``: a token that may start and read, not decide."""

    name: str
    url: str
    settings: ApiSettings
    stack: Stack
    operator: httpx.AsyncClient
    agent: httpx.AsyncClient
    stranger: httpx.AsyncClient

    async def start(self, text: str, **body: Any) -> dict[str, Any]:
        """Start a run as a client does: again under the same key while Temporal is too busy to answer."""
        key = {"Idempotency-Key": secrets.token_hex(8)}
        for _ in range(5):
            answer = await self.agent.post("/api/v1/runs", json={"agent": "agent", "input": text, **body}, headers=key)
            if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                break
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def gated(self, text: str = "pay 5") -> dict[str, Any]:
        """Start a run and return its first pending request as the API shows it."""
        return await self.request(await self.start(text))

    async def request(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the first pending request of a run as the API shows it."""
        async with self.stack.database.read() as conn:
            stored = await runs.get(conn, run["id"])
        assert stored is not None
        request = await self.stack.request(stored)
        return (await self.operator.get(f"/api/v1/requests/{request.id}")).json()

    async def decide(
        self, request: dict[str, Any], verb: str = "approve", *, key: str | None = None, by: Any = None, **body: Any
    ) -> httpx.Response:
        return await (by or self.operator).post(
            f"/api/v1/requests/{request['id']}/decisions",
            json={"decision": verb, "digest": request["digest"], **body},
            headers={"Idempotency-Key": key} if key else {},
        )

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[httpx.AsyncClient]:
        """The pages of this API, in this process, as the operator's browser asks for them."""
        services = self.stack.services
        pages = create_app(database=services.database, gateway=services.gateway, settings=self.settings)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(pages),
            base_url="http://127.0.0.1",
            cookies=dict(self.operator.cookies),
            headers={"Accept": "text/html"},
        ) as browser:
            yield browser

    async def page(self, path: str) -> str:
        """The HTML of a page, as the operator gets it."""
        async with self.browser() as browser:
            answer = await browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def printed(self, *words: str, code: int = 0, scopes: Sequence[access.Scope] = ("admin",)) -> str:
        """What a command prints that is typed with a token of these scopes. ``code``: with which it ends."""
        token = await token_for(self.stack.database, "cli", *scopes)
        environment = {"TURNGATE_TOKEN": token["Authorization"].removeprefix("Bearer ")}
        command = [*words, "--url", self.url]
        answer = await asyncio.to_thread(CliRunner().invoke, commands, command, env=environment)
        assert answer.exit_code == code, answer.output
        return answer.output if code else answer.stdout


class Planned(Api):
    """An API whose runs wait at their first request: the activity that plans a step is called for it, and nothing follows.

    Without Temporal and a worker: for what people read and order before a call runs.
    """

    async def start(self, text: str, *, by_operator: bool = False, **body: Any) -> dict[str, Any]:
        """Record a run of the agent's token, or of the operator, and let its first step be planned."""
        starter = Principal(name=f"bot-{self.name}", via="token", scopes=("runs:write", "requests:read"), machine=True)
        if by_operator:
            starter = Principal(name=f"ada-{self.name}", via="session", scopes=OPERATOR_SCOPES)
        order = await checked_order(StartOrder(agent="agent", input=text, **body), starter)
        async with self.stack.database.write() as conn:
            agent = await agents.get(conn, "agent")
            assert agent is not None
            run = await record(conn, starter, agent, order)
        step = CallModel(self.stack.engine).call_model
        await ActivityEnvironment().run(step, CallModelInput(run_id=run.id, step=1))
        return (await self.operator.get(f"/api/v1/runs/{run.id}")).json()


async def session_for(database: Database, name: str) -> dict[str, str]:
    async with database.write() as conn:
        return {SESSION_COOKIE: await sessions.begin(conn, await people.id_of(conn, name))}


async def token_for(
    database: Database, name: str, *scopes: access.Scope, bounds: TokenBounds = UNBOUND
) -> dict[str, str]:
    async with database.write() as conn:
        secret = await tokens.issue(conn, tokens.NewToken(name=name, scopes=scopes, bounds=bounds))
    return {"Authorization": f"Bearer {secret}"}


@contextlib.asynccontextmanager
async def api_on(
    engine: Stack,
    gateway: Gateway,
    name: str | None = None,
    *,
    temporal_pages: str | None = None,
    workspaces: Workspaces = ANYWHERE,
    kind: type[Api] = Api,
) -> AsyncIterator[Api]:
    """Serve an API on the engine. ``name``: the second part of its people's names, after their role; None: a random one."""
    settings = ApiSettings(
        heartbeat_timeout_seconds=2,
        sse_ping=timedelta(milliseconds=300),
        temporal_pages=temporal_pages,
        workspaces=workspaces,
    )
    app = create_api_app(database=engine.database, gateway=gateway, settings=settings)
    name = name or secrets.token_hex(3)
    async with contextlib.AsyncExitStack() as clients:
        url = await clients.enter_async_context(serving(app))

        async def connected(**options: Any) -> httpx.AsyncClient:
            return await clients.enter_async_context(
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, **options)
            )

        yield kind(
            name=name,
            url=url,
            settings=settings,
            stack=engine,
            operator=await connected(
                cookies=await session_for(engine.database, f"ada-{name}"), headers={"Origin": url}
            ),
            agent=await connected(
                headers=await token_for(engine.database, f"bot-{name}", "runs:write", "requests:read")
            ),
            stranger=await connected(),
        )


@contextlib.asynccontextmanager
async def planned_on(
    database: Database, *tools: Tool, model: LanguageModel | None = None, policy: Policy = POLICY
) -> AsyncIterator[Planned]:
    """Serve an API over a store whose runs wait at their first request (:class:`Planned`). No ``tools``: ``TOOLS``."""
    nowhere = await Client.connect("127.0.0.1:1", lazy=True, data_converter=data_converter())
    async with (
        stack(
            nowhere, database, *(tools or TOOLS), model=model or TextScript(), policy=policy, working=False
        ) as engine,
        api_on(engine, Gateway(nowhere), kind=Planned) as api,
    ):
        assert isinstance(api, Planned)
        yield api
