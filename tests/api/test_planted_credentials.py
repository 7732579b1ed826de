"""Planted credentials of 30 shapes, in every text of one run, on no surface without a reveal.

But those in a call's arguments that only look like one are shown to who may decide the call, for as long as it waits (I6).
"""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
from pydantic import BaseModel, SecretStr
from support.api.api_server import Api, api_on, serving, session_for, token_for
from support.api.sse_client import watching
from support.engine.stack import call, says, stack, until
from support.planted.credentials import LETTERS, Credential, Maker, planted
from support.programs.tui_person import person_at
from support.servers.notification_receivers import receiving, webhook_channel
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import Preview, Tool, ToolContext, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.events.notifier import keep_notifying
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.settings import ApiSettings
from turngate.cli.main import app as commands
from turngate.domain.conversation.messages import Delta, Message, ModelResponse, ReasoningPart
from turngate.models.port import ModelRequest, OnDelta
from turngate.runtime.telemetry import configure_logging
from turngate.store.database import Database
from turngate.store.runs import runs

SIZES = {
    "task": 5, "thoughts": 2, "words": 5, "command": 10, "progress": 4, "log": 4, "result": 6, "error": 2, "answer": 6
}  # fmt: skip
"""Text of the run → how many of a tenth of the credentials are in it. Six more are the arguments that are declared secret."""
SENTINEL = "that is all I say"


class Planted:
    """``times`` times fifty credentials, each in one text of a run. ``of``: text → its credentials."""

    def __init__(self, times: int) -> None:
        self.free = planted(sum(SIZES.values()) * times)
        rest, maker = iter(self.free), Maker(19)
        self.of = {name: list(itertools.islice(rest, size * times)) for name, size in SIZES.items()}
        values = [maker.chars(LETTERS, 20) for _each in range(6 * times)]
        self.declared = [Credential("declared", value, value) for value in values]
        self.order = json.dumps({"command": self.text("command"), "keys": values})

    def text(self, name: str) -> str:
        return "\n".join(f"word {each.text} word" for each in self.of[name])

    def leaks_in(self, text: str) -> list[Credential]:
        """The credentials of which more than the first characters are in a text, however it is escaped or wrapped."""
        plain = html.unescape(text)
        forms = [plain, plain.replace("\\\\", "\\").replace("\\/", "/"), re.sub(r"[\s│┃▏▕|]+", "", plain)]
        return [
            each
            for each in (*self.free, *self.declared)
            if any(secret[4:] in form for secret in each.secret.split("\n")[:2][-1:] for form in forms)
        ]


class Order(BaseModel):
    command: str
    keys: list[SecretStr]


class Deployed(BaseModel):
    output: str
    used: list[str]


def values_of(params: Order) -> list[str]:
    return [each.get_secret_value() for each in params.keys]


def deploy_preview(params: Order, _workspace: object) -> Preview:
    return Preview(kind="text", text=f"{params.command} {values_of(params)}")


def tools_of(plan: Planted) -> tuple[Tool, Tool]:
    """Two tools that write what they know wherever they can."""

    def logs(params: Order) -> None:
        line = f"{params!r} {params.command}"
        structlog.get_logger("tool").warning("deploys", output=plan.text("log"), parts=values_of(params), line=line)

    @tool(effect="once", ask=True, preview=deploy_preview)
    async def deploy(params: Order, ctx: ToolContext) -> Deployed:
        """Deploy."""
        ctx.emit({"text": plan.text("progress"), "keys": values_of(params), "command": params.command})
        logs(params)
        return Deployed(output=plan.text("result"), used=values_of(params))

    @tool(effect="idempotent", ask=False)
    async def crash(params: Order) -> str:
        """Crash."""
        logs(params)
        raise RuntimeError(f"{plan.text('error')} {params.command} {values_of(params)}")

    return deploy, crash


class Careless:
    """Says everything it knows in every step."""

    name = "scripted:test"

    def __init__(self, plan: Planted, watched: list[str]) -> None:
        self.plan = plan
        self.seen: list[ModelRequest] = []
        self.watched = watched

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return await self.stream(request, lambda _delta: None)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        self.seen.append(request)
        step = 1 + sum(each.role == "assistant" for each in request.messages)  # of a request that is sent again, too
        known = " ".join(each.text for each in self.plan.declared) if step > 1 else ""
        words = f"{(self.plan.text('words'), known, self.plan.text('answer'))[step - 1]} {SENTINEL}. "
        for at in range(0, len(words), 11):
            on_delta(Delta(kind="text", part=0, text=words[at : at + 11]))
        if step < 3:
            name = ("deploy", "crash")[step - 1]
            on_delta(Delta(kind="tool-call", part=1, text="", tool_name=name))
            on_delta(Delta(kind="tool-call", part=1, text=self.plan.order))
        await until(self._was_seen, "words of the model at a watcher")
        calls = [call(("deploy", "crash")[step - 1], self.plan.order, f"c{step}")] if step < 3 else []
        answer = says(words, *calls)
        parts = (ReasoningPart(text=self.plan.text("thoughts")), *answer.message.parts)
        return answer.model_copy(update={"message": Message(role="assistant", parts=parts)})

    async def _was_seen(self) -> bool:
        return any(SENTINEL in line for line in self.watched)

    async def aclose(self) -> None:
        return None


@pytest.fixture
def worker_log(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Log as a worker does; yields what reads the lines so far."""
    configured, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging("info", "json")
    yield lambda: capsys.readouterr().err
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)


class Surfaces:
    """What is read of the run anywhere. ``read``: surface → its text."""

    def __init__(self, api: Api, person: httpx.AsyncClient, token: str) -> None:
        self.api, self.person, self.token = api, person, token
        self.read: dict[str, str] = {}

    async def of(self, run: str, request: str, when: str, *, calls: tuple[str, ...] = ()) -> None:
        detail = (await self.api.operator.get(f"/api/v1/runs/{run}")).json()
        conversation = detail["conversation_id"]
        paths = [
            f"/api/v1/requests/{request}", "/api/v1/requests?status=all", f"/api/v1/runs/{run}", "/api/v1/runs",
            f"/api/v1/runs/{run}/explanation", f"/api/v1/conversations/{conversation}/messages", "/api/v1/audit",
            "/api/v1/stuck-runs", "/api/v1/agents", "/?status=all", "/", f"/requests/{request}", f"/runs/{run}", "/runs",
            f"/runs/{run}/conversation", "/audit", f"/requests/bulk?run_id={run}", "/decisions",
        ]  # fmt: skip
        for each in calls:
            paths += [f"/api/v1/runs/{run}/calls/{each}/result", f"/runs/{run}/result?call={each}"]
            paths += [f"/runs/{run}/result.txt?call={each}"]
        if calls:
            paths += [f"/runs/{run}/fork?step=1", f"/runs/{run}/replay"]
        for path in paths:
            answer = await (self.api.operator if path.startswith("/api") else self.person).get(path)
            assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
            self.read[f"{path} {when}"] = answer.text
        for words in (
            ["requests", "--all"], ["requests", "--all", "--json"], ["requests", "--group", "run"], ["runs"], ["runs", "--json"],
            ["explain", run], ["show", request], *([["export", run]] if calls else []),
            *[["result", run, each] for each in calls], *([["watch", run]] if calls else []),
        ):  # fmt: skip
            environment = {"TURNGATE_TOKEN": self.token, "TURNGATE_API_URL": self.api.url, "NO_COLOR": "1"}
            printed = await asyncio.to_thread(CliRunner().invoke, commands, words, env=environment)
            self.read[f"turngate {' '.join(words)} {when}"] = printed.output

    async def of_terminal(self, when: str) -> None:
        async with person_at(self.api, size=(220, 400), name=f"desk-{when}") as person:
            self.read[f"the inbox in the terminal {when}"] = await person.sees("1 waits")
            await person.opens()
            self.read[f"a request in the terminal {when}"] = await person.sees(SENTINEL)


@asynccontextmanager
async def watched(api: Api, run: str, lines: list[str]) -> AsyncIterator[None]:
    """Collect the run's stream up to its end."""

    async def collect() -> None:
        async with watching(api, f"/api/v1/runs/{run}/events") as stream:
            async for sent in stream:
                lines.append(sent.data)
                if sent.event == "run.ended":
                    return

    task = asyncio.create_task(collect())
    yield
    await task


@pytest.mark.parametrize("times", [1, 10])
async def test_planted_credentials_are_on_no_surface(
    client: Client, sqlite: Database, worker_log: Callable[[], str], times: int
) -> None:
    """Task, words, thoughts, arguments, previews, progress, logs, results, crashes and the answer; a reveal shows them."""
    plan = Planted(times)
    assert len({each.secret for each in (*plan.free, *plan.declared)}) == 50 * times
    stream: list[str] = []
    model = Careless(plan, stream)
    async with (
        receiving() as receiver,
        stack(client, sqlite, *tools_of(plan), model=model) as engine,
        api_on(engine, Gateway(client)) as api,
        serving(create_app(database=sqlite, gateway=Gateway(client), settings=ApiSettings())) as url,
        httpx.AsyncClient(
            base_url=url, cookies=await session_for(sqlite, "ada"), headers={"Origin": url}, trust_env=False, timeout=60
        ) as person,
    ):
        token = (await token_for(sqlite, "cli", "admin", "requests:read"))["Authorization"].removeprefix("Bearer ")
        surfaces = Surfaces(api, person, token)
        notifying = asyncio.create_task(keep_notifying(sqlite, engine.services.feed, [webhook_channel(receiver)]))
        started = await api.start(plan.text("task"))
        async with watched(api, started["id"], stream):
            request = await api.request(started)
            await surfaces.of(started["id"], request["id"], "while it waits")
            await surfaces.of_terminal("while it waits")
            items = (await api.operator.get("/api/v1/requests", params={"search": plan.free[0].secret[:12]})).json()[
                "items"
            ]
            assert items == []
            configure_logging("info", "json")  # the commands logged to a stream of their own
            revealed = await api.operator.post(f"/api/v1/requests/{request['id']}/reveal")
            assert (await api.decide(request, "approve")).status_code == 200
            async with sqlite.read() as conn:
                run = await runs.get(conn, started["id"])
            assert run is not None
            assert (await engine.ended(run)).status == "completed"
        await surfaces.of(run.id, request["id"], "afterwards", calls=("c1", "c2"))
        surfaces.read["stream"] = "\n".join(stream)
        surfaces.read["notification"] = "\n".join(each.body.decode() for each in await receiver.got(1))
        surfaces.read["events"] = json.dumps([dict(each.payload) for each in await engine.events(run)])
        surfaces.read["log"] = worker_log()
        notifying.cancel()
        await asyncio.gather(notifying, return_exceptions=True)
    own_views = {
        f"{where} while it waits"
        for where in (
            f"/api/v1/requests/{request['id']}", f"/requests/{request['id']}",
            f"turngate show {request['id']}", "a request in the terminal",
        )
    }  # fmt: skip
    in_arguments = set(plan.of["command"])
    assert set(plan.leaks_in(surfaces.read[f"/api/v1/requests/{request['id']} while it waits"])) == in_arguments
    assert [where for where in own_views if not in_arguments & set(plan.leaks_in(surfaces.read[where]))] == []
    # The page of several requests has a call only if it is short.
    of_deciders = own_views | {f"/requests/bulk?run_id={run.id} while it waits"}
    leaks = {
        where: sorted({each.shape for each in leaked})
        for where, text in surfaces.read.items()
        if (leaked := set(plan.leaks_in(text)) - (in_arguments if where in of_deciders else set()))
    }
    assert leaks == {}
    assert SENTINEL in surfaces.read["stream"]
    assert "tool crashed" in surfaces.read["log"]
    values = " ".join(
        json.loads(each["value"]) if each["value"][0] == '"' else each["value"] for each in revealed.json()["secrets"]
    )
    in_call = [each for name in ("task", "words", "command") for each in plan.of[name]] + plan.declared
    assert [each.text for each in in_call if each.secret not in values] == []
    assert json.loads(model.seen[-1].messages[2].calls[0].input) == json.loads(plan.order), (
        "the model lost what it wrote"
    )
