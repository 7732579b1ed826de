"""Explanations: each class of failed run, and what live runs wait for, by API, terminal and page, over real runs."""

from __future__ import annotations

import asyncio
import html
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel
from support.api.api_server import Api, api_on
from support.engine.scenes import Scenes
from support.engine.stack import Cast, Stack, call, person, says, stack, until
from temporalio.client import Client

from turngate import Limits, ToolFailure, tool
from turngate.approvals_api.app import create_app
from turngate.approvals_api.gateway.client import Gateway
from turngate.approvals_api.gateway.workflow_status import WorkflowLook
from turngate.approvals_api.pages.run_context import stalls_of
from turngate.approvals_api.runs import explain, stalled
from turngate.approvals_api.runs.views import run_detail
from turngate.approvals_api.settings import ApiSettings
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.frontends.tui.run_text import explanation_text
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import runs
from turngate.store.tables import runs as runs_table
from turngate.wire.explanation import Explanation

LIMITS = Limits(steps=2, malformed_in_a_row=2, model_retry=timedelta(milliseconds=600))
UI = "http://127.0.0.1:8233/namespaces/default/workflows"
LOOK = says(call("look", "{}"))
RESERVE = says(call("reserve", "{}"))
DEAF = asyncio.Event()


class SoldOut(ToolFailure):
    left: int


class Nothing(BaseModel):
    pass


@tool(effect="read", ask=False)
async def look() -> str:
    """Look."""
    return "seen"


@tool(effect="once", ask=True, failures=[SoldOut], failure_mode="raise")
async def reserve() -> None:
    """Reserve."""
    raise SoldOut(left=0)


@tool(effect="read", ask=False)
async def linger() -> str:
    """Take long."""
    await DEAF.wait()
    return "at last"


def model_error(error_class: Any, *, retryable: bool) -> ModelError:
    return ModelError("no way\x1b[31m", error_class=error_class, retryable=retryable, retry_after_seconds=0.2)


SCENES: dict[str, list[ModelResponse | ModelError]] = {
    "unreachable": [model_error("unreachable", retryable=True)],
    "refused": [LOOK, model_error("authentication", retryable=False)],
    "malformed": [LOOK.model_copy(update={"malformed": "a brace is missing"})],
    "step_cap": [LOOK],
    "tool_raised": [RESERVE],
    "linger": [says(call("linger", "{}"))],
    "deaf": [],
    "done": [says("Done.")],
    "no answer": [model_error("bad_response", retryable=False)],
}


@pytest.fixture(scope="module")
async def troubled(client: Client, sqlite_template, tmp_path_factory) -> AsyncIterator[Api]:
    """An API whose agent does what a scene says, with Temporal's pages at a known address."""
    file = shutil.copy(sqlite_template, tmp_path_factory.mktemp("troubled") / "turngate.db")
    database = Database(f"sqlite:///{file}")
    tools = (look, reserve, linger)
    async with (
        stack(client, database, *tools, model=Cast(test=Scenes(SCENES, DEAF)), limits=LIMITS) as engine,
        api_on(engine, Gateway(client), temporal_pages=UI) as api,
    ):
        yield api
        DEAF.set()
    await database.close()


async def stored(engine: Stack, run_id: str) -> runs.Run:
    async with engine.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    return run


async def explained(api: Api, run_id: str) -> dict[str, Any]:
    answer = await api.operator.get(f"/api/v1/runs/{run_id}/explanation")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def played(api: Api, scene: str, **body: Any) -> dict[str, Any]:
    """Play a scene to its end, approving what it asks for; return the explanation."""
    started = await api.start(scene, **body)
    if scene == "tool_raised":
        assert (await api.decide(await api.request(started))).status_code == 200
    await api.stack.ended(await stored(api.stack, started["id"]))
    return await explained(api, started["id"])


@dataclass(frozen=True)
class Expected:
    """``steps``: the numbers of the steps around it; ``actions``: how the commands start, in order, None: no command."""

    failure: str
    error_class: str
    step: int
    steps: list[int]
    cause: str
    actions: list[str | None]


FORK, SAY = "turngate fork", "turngate run --agent agent --conv"
RETRY = "turngate retry RUN"
SCRIPT = None  # the model is a script: fix it
EXPECTED = {
    "unreachable": Expected(
        "model_unreachable", "unreachable", 1, [], "could not be reached",
        [SCRIPT, RETRY, SAY, f"{RETRY} --model"],
    ),
    "refused": Expected(
        "model_refused", "authentication", 2, [1], "refused the key", [SCRIPT, RETRY, SAY, f"{FORK} RUN --step 1"]
    ),
    "malformed": Expected(
        "malformed_output", "malformed", 2, [1, 2], "nothing could be run from",
        [f"{FORK} RUN --step 2", f"{RETRY} --model", RETRY, SAY, None],
    ),
    "step_cap": Expected("budget", "step_cap", 2, [1, 2], "used up the steps", [RETRY, SAY, None, f"{FORK} RUN --step 2"]),
    "tool_raised": Expected(
        "tool_raised", "tool_raised", 1, [1], 'failure_mode="raise"', [None, RETRY, SAY, f"{FORK} RUN --step 1"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", EXPECTED)
async def test_each_class_of_failure_has_its_sentence_and_actions(troubled: Api, scene: str) -> None:
    """A failed run's explanation names the class, the failing step, the cause and what to do, the likeliest first."""
    explanation, expected = await played(troubled, scene), EXPECTED[scene]
    assert (explanation["failure"], explanation["run"]["error_class"]) == (expected.failure, expected.error_class)
    assert (explanation["step"], [step["step"] for step in explanation["steps"]]) == (expected.step, expected.steps)
    assert expected.cause in explanation["cause"]
    assert explanation["cause"].count(". ") == 0, "one sentence"
    run_id = explanation["run"]["id"]
    assert explanation["temporal_url"] == f"{UI}/{run_id}"
    commands = [action["command"] for action in explanation["actions"]]
    assert len(commands) == len(expected.actions)
    for command, start in zip(commands, expected.actions, strict=True):
        assert command is start is None or command.startswith(start.replace("RUN", run_id)), (command, start)


async def test_a_run_whose_app_does_not_fit_is_a_configuration_failure(troubled: Api) -> None:
    """A model that no worker knows: its class, no response, and a check of the app as the first thing to do."""
    explanation = await played(troubled, "done", model="scripted:nowhere")
    assert (explanation["failure"], explanation["step"], explanation["steps"]) == ("configuration", 1, [])
    assert "there is no model" in explanation["run"]["reason"]
    assert explanation["actions"][0]["command"] == "turngate doctor APP"


async def test_a_script_that_fails_a_run_is_to_be_fixed(troubled: Api) -> None:
    """No server and no key is to blame: the first thing to do is to fix the script, and then the run can be retried."""
    explanation = await played(troubled, "no answer")
    assert explanation["cause"] == "The script that plays the model has no answer here."
    fix, *others = explanation["actions"]
    assert (fix["text"][:15], fix["command"]) == ("Fix the script:", None)
    assert "server's address" not in str(explanation["actions"])
    assert any((each["command"] or "").startswith("turngate retry") for each in others)
    await troubled.stack.change(runs_table, {"id": explanation["run"]["id"]}, model="openai:gpt")
    by_provider = await explained(troubled, explanation["run"]["id"])
    assert by_provider["actions"][0]["command"] == "turngate doctor APP --probe"
    assert by_provider["cause"].startswith("The model's server answered")


async def test_an_answer_that_broke_off_is_explained(troubled: Api) -> None:
    """What the model had said is in the explanation, in `explain` and in the terminal UI's view, for the step at hand only."""
    explanation = await played(troubled, "malformed")
    run_id, step = explanation["run"]["id"], explanation["step"]
    async with troubled.stack.database.write() as conn:
        for at, text in ((step, "Half an\x1b[2J answer"), (step + 7, "elsewhere")):
            payload = {"step": at, "attempt": 2, "text": text, "error_id": "err-4k7mp-2xq9t"}
            await events.append(conn, run_id, [("model.broke_off", payload)])
    explanation = await explained(troubled, run_id)
    (broken,) = explanation["unfinished"]
    assert (broken["step"], broken["attempt"], broken["text"]) == (step, 2, "Half an\x1b[2J answer")
    printed = await troubled.printed("explain", run_id)
    drawn = explanation_text(Explanation.model_validate(explanation))
    for text in (printed, "\n".join(each.text.plain for each in drawn.lines)):
        assert "broke off" in text
        assert "Half an" in text
        assert "\x1b" not in text


@pytest.mark.exhaustive
async def test_a_failure_comes_with_its_calls_decisions_and_attempts(troubled: Api) -> None:
    """The failing call with its verdict, who approved it and when, its execution; and the attempts of an unreachable model."""
    explanation = await played(troubled, "tool_raised")
    [step] = explanation["steps"]
    [call] = step["calls"]
    [request] = call["requests"]
    assert (call["verdict"]["answer"], request["verb"], request["decided_by"]) == (
        "ask",
        "approve",
        f"ada-{troubled.name}",
    )
    assert (call["execution"], call["attempts"], call["result"]["kind"]) == ("failed", 1, "sold_out")
    assert call["started_at"] <= call["ended_at"] <= explanation["run"]["ended_at"]
    away = await played(troubled, "unreachable")
    assert [each["attempt"] for each in away["model_attempts"]] == [*range(1, len(away["model_attempts"]) + 1)]
    assert away["model_attempts"][0]["error_class"] == "unreachable"


@pytest.mark.exhaustive
async def test_the_terminal_says_the_same(troubled: Api) -> None:
    """`turngate explain`: cause, reason, decisions, attempts, links, actions; nothing that obeys an escape sequence."""
    explanation = await played(troubled, "tool_raised")
    output = await troubled.printed("explain", explanation["run"]["id"])
    commands = [action["command"].split(" ") for action in explanation["actions"] if action["command"]]
    assert output.splitlines()[0] == "failed at step 1  tool raised, agent agent"
    for text in (
        explanation["cause"],
        "'reserve' failed: sold_out",
        f"approval approved by ada-{troubled.name} at ",
        "execution failed in ",
        explanation["temporal_url"],
        *(
            " ".join([*words[:2], "--url", troubled.url, *words[2:]]) for words in commands
        ),  # as the stack was named here
    ):
        assert text in output
    away = await played(troubled, "unreachable")
    output = await troubled.printed("explain", away["run"]["id"])
    assert re.search(r"model attempt 1 at \S+ \S+ unreachable: no way⟨U\+001B⟩\[31m", output)
    assert "\x1b" not in output
    assert '"failure":"model_unreachable"' in await troubled.printed("explain", away["run"]["id"], "--json")


@pytest.mark.exhaustive
async def test_the_page_of_a_failed_run_explains_it(troubled: Api) -> None:
    """The page says step, class, cause and every action of the API's explanation."""
    explanation = await played(troubled, "refused")
    page = html.unescape(await troubled.page(f"/runs/{explanation['run']['id']}"))
    section = page.partition('<section class="explanation"')[2].partition("</section>")[0]
    assert "The run failed at step 2: model refused" in section
    assert explanation["cause"] in section
    assert explanation["temporal_url"] in section
    for action in explanation["actions"]:
        assert action["href"] is None or f'href="{action["href"]}"' in section
    assert section.count("<li>") == len(explanation["actions"])


# Live runs


async def waits(api: Api, run_id: str, kind: str, *, alone: bool = False) -> dict[str, Any]:
    """The explanation, once the first thing that the run waits for is of this kind; ``alone``: and the only one.

    For a moment there is a request while the model's activity, which opened it, still counts as running.
    """

    async def look() -> dict[str, Any] | None:
        explanation = await explained(api, run_id)
        kinds = [each["kind"] for each in explanation["waits_for"]]
        return explanation if (kinds if alone else kinds[:1]) == [kind] else None

    return await until(look, f"run that waits for {kind}")


@pytest.mark.parametrize(
    ("scene", "kind", "says"),
    [
        ("tool_raised", "person", "reserve waits for a person's approval."),
        ("linger", "tool", "linger runs."),
        ("deaf", "model", "The model was called and has not answered yet."),
    ],
)
async def test_a_live_run_says_what_it_waits_for(troubled: Api, scene: str, kind: str, says: str) -> None:
    """A person (with the request), a tool that runs, a model that has not answered: each since when, and what to do."""
    started = await troubled.start(scene)
    explanation = await waits(troubled, started["id"], kind, alone=True)
    [reason] = explanation["waits_for"]
    assert (explanation["cause"], reason["says"], explanation["failure"]) == (says, says, None)
    assert started["created_at"] <= reason["since"]
    [action] = explanation["actions"]
    if kind == "person":
        assert action["href"] == f"/requests/{reason['request_id']}"
    else:
        assert action["command"] == f"turngate interrupt {started['id']}"
    await troubled.operator.post(f"/api/v1/runs/{started['id']}/interrupt", json={"reason": "enough"})
    await troubled.stack.ended(await stored(troubled.stack, started["id"]))
    ended = await explained(troubled, started["id"])
    assert (ended["cause"], ended["run"]["reason"]) == (f"It was interrupted by ada-{troubled.name}.", "enough")


async def test_a_held_run_says_who_holds_it(troubled: Api) -> None:
    """A pause comes before anything else that the run waits for, and counts as stalled at once."""
    request = await troubled.request(await troubled.start("tool_raised"))
    await troubled.operator.post(f"/api/v1/runs/{request['run_id']}/pause", json={"reason": "lunch"})
    explanation = await waits(troubled, request["run_id"], "paused")
    assert [each["kind"] for each in explanation["waits_for"]] == ["paused", "person"]
    assert explanation["cause"] == f"It is paused by ada-{troubled.name}: lunch"
    assert explanation["actions"][0]["command"] == f"turngate resume {request['run_id']}"
    stuck = (await troubled.operator.get("/api/v1/stuck-runs")).json()["items"]
    assert [each["run"]["id"] for each in stuck] == [request["run_id"]]
    await troubled.operator.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={})
    await troubled.stack.ended(await stored(troubled.stack, request["run_id"]))


async def test_a_run_that_has_not_waited_long_is_not_stuck(troubled: Api) -> None:
    """With a limit of zero, a run that has just asked a person is listed; ended runs never are."""
    request = await troubled.request(await troubled.start("tool_raised"))
    assert (await troubled.operator.get("/api/v1/stuck-runs")).json()["items"] == []
    now = (await troubled.operator.get("/api/v1/stuck-runs?still_for_seconds=0")).json()
    assert [(each["run"]["id"], each["waits_for"]["kind"]) for each in now["items"]] == [(request["run_id"], "person")]
    assert now["next_cursor"] is None
    await troubled.operator.post(f"/api/v1/runs/{request['run_id']}/interrupt", json={})
    await troubled.stack.ended(await stored(troubled.stack, request["run_id"]))


async def test_stuck_runs_are_listed_with_one_reason_each(idle: Api) -> None:
    """Runs without a worker are all in the list, over pages; the terminal goes through them."""
    older, newer = await idle.start("hello"), await idle.start("hello")
    first = (await idle.operator.get("/api/v1/stuck-runs?limit=1")).json()
    second = (await idle.operator.get(f"/api/v1/stuck-runs?limit=1&cursor={first['next_cursor']}")).json()
    listed = [(each["run"]["id"], each["waits_for"]["kind"]) for page in (first, second) for each in page["items"]]
    assert listed == [(newer["id"], "no_worker"), (older["id"], "no_worker")]
    assert second["next_cursor"] is None
    lines = [line.split("\t") for line in (await idle.printed("runs", "--stuck")).splitlines()]
    assert [line[:2] for line in lines] == [[newer["id"], "no worker"], [older["id"], "no worker"]]


async def started_long_ago(api: Api, run_id: str) -> None:
    await api.stack.change(runs_table, {"id": run_id}, created_at="2026-01-01T00:00:00.000000+00:00")


async def test_a_run_without_a_worker_or_a_workflow_says_so(idle: Api, client: Client) -> None:
    """No worker polls its queue; later its workflow is gone, which a run that has just started is not accused of."""
    started = await idle.start("hello")
    explanation = await waits(idle, started["id"], "no_worker")
    assert idle.stack.task_queue in explanation["cause"]
    assert explanation["waits_for"][0]["since"] is not None
    assert explanation["actions"][0]["command"] == "turngate worker APP"
    await client.get_workflow_handle(started["id"]).terminate()
    assert (await explained(idle, started["id"]))["waits_for"] == []
    await started_long_ago(idle, started["id"])
    explanation = await explained(idle, started["id"])
    assert [each["kind"] for each in explanation["waits_for"]] == ["workflow_gone"]
    assert explanation["actions"][0]["command"] == f"turngate recover {started['id']}"
    assert (await idle.stack.services.gateway.look("run_that_never_was")).state == "gone"


async def stalls_on_page(api: Api, run_id: str, client: Client) -> str:
    """Return what the page of a run says of its waits; empty: nothing. ``client``: the page's way to Temporal."""
    pages = create_app(database=api.stack.database, gateway=Gateway(client), settings=ApiSettings())
    known = {"cookies": api.operator.cookies, "headers": {"Accept": "text/html"}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url="http://127.0.0.1", **known) as browser:
        page = await browser.get(f"/runs/{run_id}")
    assert page.status_code == 200, page.text
    return html.unescape(page.text).partition('id="stalls"')[2].partition("</section>")[0]


async def page_says(api: Api, run_id: str, client: Client, *wanted: str) -> None:
    """Wait until the page of a run says all of this of its waits; of nothing: until it says nothing."""

    async def look() -> bool | None:
        section = await stalls_on_page(api, run_id, client)
        return (all(each in section for each in wanted) if wanted else not section) or None

    await until(look, f"a page with {wanted}")


async def test_the_page_of_a_live_run_says_what_holds_it_up(idle: Api, client: Client) -> None:
    """The cause and the command of `explain`: no worker, then no workflow. Of a run that has just started it accuses no one."""
    started = await idle.start("hello")
    explanation = await waits(idle, started["id"], "no_worker")
    command = f"<code><bdi lang translate=no>{explanation['actions'][0]['command']}</bdi></code>"
    await page_says(idle, started["id"], client, explanation["cause"].partition("'")[0], idle.stack.task_queue, command)
    await client.get_workflow_handle(started["id"]).terminate()
    await page_says(idle, started["id"], client)
    await started_long_ago(idle, started["id"])
    await page_says(
        idle, started["id"], client, f"<code><bdi lang translate=no>turngate recover {started['id']}</bdi></code>"
    )


async def test_the_page_of_a_live_run_does_not_need_temporal(api: Api, client: Client) -> None:
    """It says that Temporal is away. The request that has only just been opened holds nothing up yet."""
    request = await api.gated()
    await page_says(api, request["run_id"], client)
    nowhere = await Client.connect("127.0.0.1:1", lazy=True)
    section = await stalls_on_page(api, request["run_id"], nowhere)
    assert "Temporal does not answer" in section
    assert "<code><bdi lang translate=no>turngate doctor</bdi></code>" in section


class Silent(Gateway):
    """Never answers."""

    async def look(self, run_id: str) -> WorkflowLook:
        await asyncio.Event().wait()
        raise AssertionError(run_id)


async def test_the_page_does_not_wait_for_a_silent_temporal(idle: Api, client: Client) -> None:
    """The page gives up the look, and says that there was no answer."""
    started = await idle.start("hello")
    services = replace(idle.stack.services, gateway=Silent(client))
    async with services.database.read() as conn:
        run = await run_detail(conn, started["id"])
    [(reason, action)] = await stalls_of(services, run, [])
    assert (reason.kind, action is not None) == ("temporal_away", True)


class TooLate(Gateway):
    """Looks at a workflow only when its run has just ended, as happens between two looks."""

    def __init__(self, client: Client, database: Database) -> None:
        super().__init__(client)
        self.database = database

    async def look(self, run_id: str) -> WorkflowLook:
        async with self.database.write() as conn:
            await runs.end(conn, run_id, runs.Ending(status="interrupted"))
            await events.append(conn, run_id, [("run.ended", {"status": "interrupted"})])
        return await super().look(run_id)


async def test_a_run_that_ends_meanwhile_is_not_lost(idle: Api, client: Client) -> None:
    """Its workflow is rightly gone: it is explained as ended, and no list of stalled runs has it."""
    services = replace(idle.stack.services, gateway=TooLate(client, idle.stack.database))
    first, second = await idle.start("hello"), await idle.start("hello")
    for each in (first, second):
        await client.get_workflow_handle(each["id"]).terminate()
        await started_long_ago(idle, each["id"])
    assert (await explain.explain(services, person("ada"), first["id"])).cause == "It was interrupted."
    page = await stalled.stuck_page(services, limit=50, before=None, still_for=timedelta(0))
    assert page.items == []
    third = await idle.start("hello")
    await client.get_workflow_handle(third["id"]).terminate()
    await started_long_ago(idle, third["id"])
    async with services.database.read() as conn:
        run = await run_detail(conn, third["id"])
    assert await stalls_of(services, run, []) == []


async def test_a_temporal_that_is_away_is_no_error(api: Api, cut_off: Api) -> None:
    """The explanation has what the store knows, and says that the workflow can't be looked at."""
    request = await api.gated()
    explanation = await explained(cut_off, request["run_id"])
    assert [each["kind"] for each in explanation["waits_for"]] == ["person", "temporal_away"]
    assert (await api.operator.get("/api/v1/runs/none/explanation")).status_code == 404
