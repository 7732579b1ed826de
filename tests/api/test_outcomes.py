"""How a run ended is the same typed word everywhere: API, stream, explanation, export, terminal, pages, notifications."""

from __future__ import annotations

import asyncio
import html
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
from click.testing import Result
from support.api.api_server import Api, api_on, token_for
from support.engine.stack import call, says, stack
from temporalio.client import Client
from typer.testing import CliRunner

from turngate import Agent, Limits, NoProgress, ToolFailure, Toolkit, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.cli.main import app
from turngate.domain.conversation.messages import ModelResponse, Usage
from turngate.domain.errors import ModelError
from turngate.models.port import ModelRequest
from turngate.notifications.items import Payload, item_of
from turngate.notifications.message_text import facts
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs

LIMITS = Limits(malformed_in_a_row=1, no_progress=NoProgress(steps=1, after_nudge=1))


class Sold(ToolFailure):
    left: int


@tool(effect="read", ask=False)
async def look() -> str:
    """Look."""
    return "seen"


@tool(effect="once", ask=False, failures=[Sold], failure_mode="raise")
async def buy() -> None:
    """Buy."""
    raise Sold(left=0)


@tool(effect="once", ask=True)
async def pay() -> None:
    """Pay."""


LOOK = says(call("look", "{}")).model_copy(update={"usage": Usage(input_tokens=5, output_tokens=5)})
SCENES: dict[str, ModelResponse | ModelError] = {
    "completed": says("Done."),
    "budget": LOOK,
    "step_cap": LOOK,
    "no_progress": LOOK,
    "interrupted": says(call("pay", "{}")),
    "provider_error": ModelError("no way", error_class="authentication", retryable=False),
    "malformed": says().model_copy(update={"malformed": "a brace is missing"}),
    "error": says(call("buy", "{}")),
}


@dataclass(frozen=True)
class Ended:
    """``words``: with details, where PERSON is the one who interrupted it. ``last``: the start of the terminal's last line."""

    status: str
    error_class: str
    words: str
    last: str
    exit_code: int = 1


PERSON = "(person)"
EXPECTED = {
    "completed": Ended("completed", "", "completed", "completed after 1 step", 0),
    "budget": Ended("failed", "token_cap", "budget: token_cap", "failed after 1 step (budget: token_cap): The run used 10 "),
    "step_cap": Ended("failed", "step_cap", "step_cap", "failed after 1 step (step_cap): The run reached"),
    "no_progress": Ended("failed", "no_progress", "no_progress", "failed after 3 steps (no_progress): The last 2 steps"),
    "interrupted": Ended("interrupted", "", f"interrupted by {PERSON}", f"interrupted by {PERSON} after 1 step: enough", 3),
    "provider_error": Ended(
        "failed", "authentication", "provider_error: authentication",
        "failed after 0 steps (provider_error: authentication): no way",
    ),
    "malformed": Ended("failed", "malformed", "malformed", "failed after 1 step (malformed): The model sent"),
    "error": Ended("failed", "tool_raised", "error: tool_raised", "failed after 1 step (error: tool_raised): "),
}  # fmt: skip


class Scenes:
    """Answers as the scene says that the run was started with."""

    name = "scripted:test"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        response = SCENES[next(message.text for message in request.messages if message.text in SCENES)]
        if isinstance(response, ModelError):
            raise response
        return response

    async def aclose(self) -> None:
        return None


@pytest.fixture(scope="module")
async def ending(client: Client, sqlite_template, tmp_path_factory) -> AsyncIterator[Api]:
    """An API whose runs end as their scene says."""
    file = shutil.copy(sqlite_template, tmp_path_factory.mktemp("ending") / "turngate.db")
    database = Database(f"sqlite:///{file}")
    tight = {"budget": Limits(tokens=1), "step_cap": Limits(steps=1)}
    agents = [
        Agent(name=name, instructions="", toolkit=Toolkit.of(look), model="scripted:test", limits=limits)
        for name, limits in tight.items()
    ]
    async with (
        stack(client, database, look, buy, pay, model=Scenes(), limits=LIMITS, agents=agents) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
    await database.close()


async def played(api: Api, scene: str) -> runs.Run:
    """Play a scene to its end; an operator interrupts the one that waits."""
    agent = scene if scene in {"budget", "step_cap"} else "agent"
    run_id = (await api.start(scene, agent=agent))["id"]
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    if scene == "interrupted":
        await api.stack.request(run)
        answer = await api.operator.post(f"/api/v1/runs/{run_id}/interrupt", json={"reason": "enough"})
        assert answer.status_code == 202, answer.text
    return await api.stack.ended(run)


@dataclass(frozen=True)
class Seen:
    """What is fetched once for all scenes: the runs, and their list by API, in the terminal and as a page."""

    runs: dict[str, runs.Run]
    listed: list[dict]
    printed: str
    page: str
    browser: httpx.AsyncClient
    token: str


@pytest.fixture(scope="module")
async def seen(ending: Api) -> AsyncIterator[Seen]:
    """Every scene, played at the same time."""
    played_runs = dict(zip(EXPECTED, await asyncio.gather(*(played(ending, scene) for scene in EXPECTED)), strict=True))
    token = (await token_for(ending.stack.database, "cli", "admin"))["Authorization"].removeprefix("Bearer ")
    services = ending.stack.services
    pages = create_app(database=services.database, gateway=services.gateway, settings=services.settings)
    known = {"cookies": ending.operator.cookies, "headers": {"Accept": "text/html"}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url="http://127.0.0.1", **known) as browser:
        yield Seen(
            runs=played_runs,
            listed=(await ending.operator.get("/api/v1/runs")).json()["items"],
            printed=(await terminal(ending, token, "runs")).stdout,
            page=(await browser.get("/runs")).text,
            browser=browser,
            token=token,
        )


async def terminal(api: Api, token: str, *words: str) -> Result:
    """Run a command in a wide terminal."""
    environment = {"TURNGATE_TOKEN": token, "COLUMNS": "300"}
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", api.url], env=environment)


@pytest.mark.parametrize("scene", EXPECTED)
async def test_an_outcome_is_the_same_everywhere(ending: Api, seen: Seen, scene: str) -> None:
    """One run with this outcome, seen from every side."""
    run, expected, person = seen.runs[scene], EXPECTED[scene], f"ada-{ending.name}"
    by = person if scene == "interrupted" else None
    words, last = (text.replace(PERSON, person) for text in (expected.words, expected.last))

    async def got(path: str) -> dict:
        answer = await ending.operator.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    # The API: a run, a list of them, an explanation, a comparison.
    views = [
        await got(f"/runs/{run.id}"),
        next(each for each in seen.listed if each["id"] == run.id),
        (await got(f"/runs/{run.id}/explanation"))["run"],
        (await got(f"/runs/{run.id}/comparison/{seen.runs['error' if scene == 'completed' else 'completed'].id}"))[
            "run"
        ],
    ]
    as_one = {(each["status"], each["outcome"], each["error_class"], each["ended_by"]) for each in views}
    assert as_one == {(expected.status, scene, expected.error_class, by)}
    # The stream, and what is sent out.
    stream = (await ending.operator.get(f"/api/v1/runs/{run.id}/events")).text
    sent = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]
    assert [each["payload"]["outcome"] for each in sent if each.get("type") == "run.ended"] == [scene]
    async with ending.stack.database.read() as conn:
        item = await item_of(conn, (await events.newest(conn, run.id, "run.ended", limit=1))[0])
    assert item is not None
    assert (item.outcome, item.error_class, item.ended_by) == (scene, expected.error_class or None, by)
    assert dict(facts(item)).get("Outcome") == (None if scene == "completed" else words)
    assert Payload(items=(item,)).count == 1
    # The terminal.
    watched = await terminal(ending, seen.token, "watch", run.id)
    assert watched.exit_code == expected.exit_code, watched.output
    assert any(line.startswith(last) for line in watched.stdout.splitlines()), watched.stdout
    [row] = [line for line in seen.printed.splitlines() if run.id in line]
    assert words in row
    assert f"outcome {words}" in (await terminal(ending, seen.token, "explain", run.id)).stdout
    exported = await terminal(ending, seen.token, "export", run.id)
    if scene == "interrupted":  # an interrupt at some instant can't be repeated
        assert exported.exit_code == 1
    else:
        assert json.loads(exported.stdout)["ended"]["outcome"] == scene
    # The pages.
    of_run = (await seen.browser.get(f"/runs/{run.id}")).text.partition("<h1>")[2]
    for page in (of_run, seen.page.partition(f'href="/runs/{run.id}"')[2]):
        assert words in html.unescape(page[:700]).replace("<bdi lang translate=no>", "").replace("</bdi>", "")
