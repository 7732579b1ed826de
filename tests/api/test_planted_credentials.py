"""500 planted credentials of 30 shapes, in every text of one run, on no surface without a reveal.

But those in a call's arguments that only look like one are shown to who may decide the call, for as long as it waits (I6).
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
from pydantic import BaseModel, SecretStr
from support.api_server import Api, api_on, serving, session_for, token_for
from support.engine import call, says, stack, until
from support.notification_receivers import receiving, webhook_channel
from support.planted_credentials import LETTERS, Credential, Maker, planted
from support.sse_client import watching
from support.tui_person import person_at
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import Preview, ToolContext, tool
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

FREE = planted(440)
MAKER = Maker(19)
DECLARED = [Credential("declared", value, value) for value in (MAKER.chars(LETTERS, 20) for _each in range(60))]
ALL = [*FREE, *DECLARED]


def texts(first: int, last: int) -> str:
    return "\n".join(f"word {each.text} word" for each in FREE[first:last])


TASK, THOUGHT, WORDS, COMMAND, PROGRESS, LOG, RESULT, ERROR, LAST = (
    texts(at, at + size)
    for at, size in ((0, 50), (50, 20), (70, 50), (120, 100), (220, 40), (260, 40), (300, 60), (360, 20), (380, 60))
)
SENTINEL = "that is all I say"


class Order(BaseModel):
    command: str
    keys: list[SecretStr]


class Deployed(BaseModel):
    output: str
    used: list[str]


def deploy_preview(params: Order, _workspace: object) -> Preview:
    return Preview(kind="text", text=f"{params.command} {[each.get_secret_value() for each in params.keys]}")


def logs(params: Order) -> None:
    keys = [each.get_secret_value() for each in params.keys]
    structlog.get_logger("tool").warning("deploys", output=LOG, parts=keys, line=f"{params!r} {params.command}")


@tool(effect="once", ask=True, preview=deploy_preview)
async def deploy(params: Order, ctx: ToolContext) -> Deployed:
    """Deploy."""
    ctx.emit({"text": PROGRESS, "keys": [each.get_secret_value() for each in params.keys], "command": params.command})
    logs(params)
    return Deployed(output=RESULT, used=[each.get_secret_value() for each in params.keys])


@tool(effect="idempotent", ask=False)
async def crash(params: Order) -> str:
    """Crash."""
    logs(params)
    raise RuntimeError(f"{ERROR} {params.command} {[each.get_secret_value() for each in params.keys]}")


ORDER = json.dumps({"command": COMMAND, "keys": [each.text for each in DECLARED]})


class Careless:
    """Says everything it knows in every step."""

    name = "scripted:test"

    def __init__(self, watched: list[str]) -> None:
        self.seen: list[ModelRequest] = []
        self.watched = watched

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return await self.stream(request, lambda _delta: None)

    async def stream(self, request: ModelRequest, on_delta: OnDelta) -> ModelResponse:
        self.seen.append(request)
        step = 1 + sum(each.role == "assistant" for each in request.messages)  # of a request that is sent again, too
        known = " ".join(each.text for each in DECLARED) if step > 1 else ""
        words = f"{(WORDS, known, LAST)[step - 1]} {SENTINEL}. "
        for at in range(0, len(words), 11):
            on_delta(Delta(kind="text", part=0, text=words[at : at + 11]))
        if step < 3:
            name = ("deploy", "crash")[step - 1]
            on_delta(Delta(kind="tool-call", part=1, text="", tool_name=name))
            on_delta(Delta(kind="tool-call", part=1, text=ORDER))
        await until(self._was_seen, "words of the model at a watcher")
        calls = [call(("deploy", "crash")[step - 1], ORDER, f"c{step}")] if step < 3 else []
        answer = says(words, *calls)
        parts = (ReasoningPart(text=THOUGHT), *answer.message.parts)
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


def leaks_in(text: str) -> list[Credential]:
    """The credentials of which more than the first characters are in a text, however it is escaped or wrapped."""
    plain = html.unescape(text)
    forms = [plain, plain.replace("\\\\", "\\").replace("\\/", "/"), re.sub(r"[\s│┃▏▕|]+", "", plain)]
    return [
        each for each in ALL if any(secret[4:] in form for secret in each.secret.split("\n")[:2][-1:] for form in forms)
    ]


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


async def test_500_credentials_are_on_no_surface(
    client: Client, sqlite: Database, worker_log: Callable[[], str]
) -> None:
    """Task, words, thoughts, arguments, previews, progress, logs, results, crashes and the answer; a reveal shows them."""
    assert len({each.secret for each in ALL}) == 500
    stream: list[str] = []
    model = Careless(stream)
    async with (
        receiving() as receiver,
        stack(client, sqlite, deploy, crash, model=model) as engine,
        api_on(engine, Gateway(client)) as api,
        serving(create_app(database=sqlite, gateway=Gateway(client), settings=ApiSettings())) as url,
        httpx.AsyncClient(
            base_url=url, cookies=await session_for(sqlite, "ada"), headers={"Origin": url}, trust_env=False, timeout=60
        ) as person,
    ):
        token = (await token_for(sqlite, "cli", "admin", "requests:read"))["Authorization"].removeprefix("Bearer ")
        surfaces = Surfaces(api, person, token)
        notifying = asyncio.create_task(keep_notifying(sqlite, engine.services.feed, [webhook_channel(receiver)]))
        started = await api.start(TASK)
        async with watched(api, started["id"], stream):
            request = await api.request(started)
            await surfaces.of(started["id"], request["id"], "while it waits")
            await surfaces.of_terminal("while it waits")
            items = (await api.operator.get("/api/v1/requests", params={"search": FREE[0].secret[:12]})).json()["items"]
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
    in_arguments = set(FREE[120:220])
    assert set(leaks_in(surfaces.read[f"/api/v1/requests/{request['id']} while it waits"])) == in_arguments
    visible = {where: set(leaks_in(surfaces.read[where])) for where in own_views}
    assert {where: each - in_arguments for where, each in visible.items() if not each or not each <= in_arguments} == {}
    leaks = {
        where: sorted({each.shape for each in leaked})
        for where, text in surfaces.read.items()
        if where not in own_views and (leaked := leaks_in(text))
    }
    assert leaks == {}
    assert SENTINEL in surfaces.read["stream"]
    assert "tool crashed" in surfaces.read["log"]
    values = " ".join(
        json.loads(each["value"]) if each["value"][0] == '"' else each["value"] for each in revealed.json()["secrets"]
    )
    in_call = [*FREE[:50], *FREE[70:220], *DECLARED]
    assert [each.text for each in in_call if each.secret not in values] == []
    assert json.loads(model.seen[-1].messages[2].calls[0].input) == json.loads(ORDER), "the model lost what it wrote"
