"""Errors of runs: whole texts and tracebacks under ids, on the page, in the terminal and by the API, for who may see them."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, SecretStr
from structlog.testing import capture_logs
from support.api.api_server import Api, api_on
from support.engine.scenes import Scenes
from support.engine.stack import Cast, call, says, stack, until
from temporalio.client import Client

from turngate import Limits, tool
from turngate.approvals_api.gateway.client import Gateway
from turngate.domain.agents.hooks import Deny, HookedCall, Hooks, RunScope
from turngate.domain.conversation.messages import ModelResponse
from turngate.domain.errors import ModelError
from turngate.store.database import Database
from turngate.store.runs import errors as stored_errors
from turngate.store.runs import runs

LIMITS = Limits(model_retry=timedelta(seconds=30))
CHINESE = "供应商说请求太大。" * 1_300
EMOJI = "🔥\x1b[31m" * 900
TOKEN = "ghp_" + "a1B2" * 9
HOOKS_CODE = "hook's own problem"


class Login(BaseModel):
    password: SecretStr


def refuse(password: str) -> None:
    raise ConnectionError(f"refused {password}")


@tool(effect="read", ask=False)
async def crash(params: Login) -> str:
    """Crash."""
    password = params.password.get_secret_value()
    try:
        refuse(password)
    except ConnectionError as error:
        raise ValueError(f"no login with {password} and {TOKEN}") from error


@tool(effect="read", ask=False)
async def hooked() -> str:
    """Be refused by a hook."""
    return "never"


class Guard(Hooks):
    async def before_tool(self, run: RunScope, call: HookedCall) -> Deny | None:
        if call.tool_name == "hooked":
            raise KeyError(HOOKS_CODE)
        return None


SCENES: dict[str, list[ModelResponse | Exception]] = {
    "chinese": [ModelError(CHINESE, error_class="invalid_request", retryable=False)],
    "emoji": [ModelError(EMOJI, error_class="server_error", retryable=True, retry_after_seconds=20)],
    "adapter": [says(call("hooked", "{}")), TypeError("adapter's bug " + TOKEN)],
    "crash": [says(call("crash", '{"password": "hunter2hunter2"}')), says("Done.")],
}


@pytest.fixture(scope="module")
async def troubled(client: Client, sqlite_template, tmp_path_factory) -> AsyncIterator[Api]:
    file = shutil.copy(sqlite_template, tmp_path_factory.mktemp("troubled") / "turngate.db")
    database = Database(f"sqlite:///{file}")
    async with (
        stack(
            client, database, crash, hooked, model=Cast(test=Scenes(SCENES)), limits=LIMITS, hooks=[Guard()]
        ) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
    await database.close()


async def explained(api: Api, run_id: str, *, by: httpx.AsyncClient | None = None) -> dict[str, Any]:
    answer = await (by or api.operator).get(f"/api/v1/runs/{run_id}/explanation")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def played(api: Api, scene: str) -> dict[str, Any]:
    started = await api.start(scene)
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, started["id"])
    assert run is not None
    await api.stack.ended(run)
    return await explained(api, run.id)


async def test_a_long_error_of_any_script_is_shown_whole(troubled: Api) -> None:
    """35,000 bytes of Chinese: the reason has a beginning and the id; API, page, `explain` and `logs` have every character."""
    explanation = await played(troubled, "chinese")
    (error,) = explanation["errors"]
    assert (error["message"], error["traceback"], error["about"]) == (CHINESE, "", "scripted:test")
    reason = explanation["run"]["reason"]
    assert reason.startswith(CHINESE[:600])
    assert len(reason.encode()) < 2_200
    assert f"turngate logs {error['id']}" in reason
    run_id = explanation["run"]["id"]
    assert CHINESE in html.unescape(await troubled.page(f"/runs/{run_id}"))
    for output in (await troubled.printed("explain", run_id), await troubled.printed("logs", error["id"])):
        assert CHINESE in "".join(output.split())


async def test_a_long_error_of_a_live_run_is_shown_whole(troubled: Api) -> None:
    """Temporal keeps the failure of a retried activity if it is at most 4 KiB; while it waits, the run's page has all of it."""
    started = await troubled.start("emoji")

    async def attempted() -> dict[str, Any] | None:
        explanation = await explained(troubled, started["id"])
        waits = [each["says"] for each in explanation["waits_for"] if each["kind"] == "model_retrying"]
        return explanation if explanation["model_attempts"] and waits and "🔥" in waits[0] else None

    explanation = await until(attempted, "a failed request")
    (attempt,), (error,) = explanation["model_attempts"], explanation["errors"]
    assert (attempt["error_id"], error["message"]) == (error["id"], EMOJI)
    everywhere = f"{explanation['waits_for']} {await troubled.printed('explain', started['id'])}"
    assert "exceeds size limit" not in everywhere
    assert "\x1b" not in await troubled.printed("logs", started["id"])
    assert EMOJI.count("🔥") <= (html.unescape(await troubled.page(f"/runs/{started['id']}"))).count("🔥")


async def test_i13_a_crashed_tool_has_an_id_and_its_traceback_is_for_operators(troubled: Api) -> None:
    """I13: log line, page, `explain` and `logs` share the id; a secret is nowhere; the model and an agent's token see no text."""
    with capture_logs() as lines:
        explanation = await played(troubled, "crash")
    (error,) = explanation["errors"]
    assert re.fullmatch(r"err-[0-9a-hjkmnp-tv-z]{5}-[0-9a-hjkmnp-tv-z]{5}", error["id"])
    assert [line["error"] for line in lines if line["event"] == "tool crashed"] == [error["id"]]
    assert (error["says"], error["about"], error["step"], error["attempt"]) == ("tool crashed", "crash", 1, 1)
    assert "in crash" in error["traceback"]
    assert "The above exception was the direct cause" in error["traceback"]
    assert error["message"].startswith("ValueError: no login with ")
    assert (error["worker"], error["build"]) == (troubled.stack.engine.worker, troubled.stack.engine.build)
    run_id = explanation["run"]["id"]
    page, outputs = html.unescape(await troubled.page(f"/runs/{run_id}")), [await troubled.printed("explain", run_id)]
    assert f'<a href="#{error["id"]}">' in page
    assert "Traceback" in page
    spoken = error["id"].upper().replace("-", " ").removeprefix("ERR ")
    outputs += [await troubled.printed("logs", *each) for each in ((run_id,), (error["id"],), (spoken,), ())]
    assert all(error["id"] in output for output in outputs)
    assert error["worker"] in outputs[2]
    for text in (page, *outputs, str(explanation)):
        assert "hunter2hunter2" not in text
        assert TOKEN not in text
    async with troubled.stack.database.read() as conn:
        row = str(await stored_errors.get(conn, error["id"]))
    assert "in crash" in row
    assert "hunter2hunter2" not in row
    assert TOKEN not in row

    run = (await troubled.agent.get(f"/api/v1/runs/{run_id}")).json()
    assert "no login" not in str(run)
    (unseen,) = (await explained(troubled, run_id, by=troubled.agent))["errors"]
    assert [unseen[name] for name in ("message", "traceback", "worker", "build")] == [None] * 4
    for path in ("/errors", f"/errors/{error['id']}", f"/errors?run_id={run_id}"):
        assert (await troubled.agent.get(f"/api/v1{path}")).status_code == 403
        assert (await troubled.stranger.get(f"/api/v1{path}")).status_code == 401
    assert (await troubled.operator.get("/api/v1/errors/err-00000-00000")).status_code == 404
    assert (await troubled.operator.get("/api/v1/errors/nonsense")).status_code == 404


async def test_a_hook_and_an_adapter_that_crash_have_ids_too(troubled: Api) -> None:
    """Each with its traceback, in the order in which they happened."""
    explanation = await played(troubled, "adapter")
    refused, failed = explanation["errors"]
    assert (refused["says"], refused["about"]) == ("before_tool hook failed", "Guard")
    assert HOOKS_CODE in refused["message"]
    assert "in before_tool" in refused["traceback"]
    assert (failed["says"], failed["about"], failed["step"]) == ("model failed", "scripted:test", 2)
    assert "raised TypeError: adapter's bug" in failed["message"]
    assert "in generate" in failed["traceback"]
    assert TOKEN not in str(explanation)
