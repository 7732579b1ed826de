"""Crashes of a builder's code: each has an id in the store, in the log line and where people look; answers stay as they were."""

from __future__ import annotations

import html
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from sqlalchemy import text
from structlog.testing import capture_logs
from support.api.api_server import Api, api_on
from support.engine.scenes import Scenes
from support.engine.stack import Cast, call, says, stack
from temporalio.client import Client

from turngate import tool
from turngate.activities.engine.error_log import Where, at_call, keeping_crashes, report
from turngate.approvals_api.gateway.client import Gateway
from turngate.cli.follow.request import show_request
from turngate.domain.agents.hooks import Generate, Hooks, RunScope
from turngate.domain.conversation.messages import Message, ModelResponse
from turngate.domain.crashes import report_crash
from turngate.domain.tools.control_calls import WaitUntil
from turngate.domain.tools.declare import control_call_tool
from turngate.domain.tools.preview import Preview
from turngate.store.database import Database
from turngate.store.runs import errors as stored_errors
from turngate.store.runs import runs
from turngate.wire.requests import RequestDetail


class Params(BaseModel):
    name: str = "x"


def bug(what: str) -> ZeroDivisionError:
    return ZeroDivisionError(f"the {what}'s own problem")


def preview(params: Params, workspace: Path | None) -> Preview:
    raise bug("preview")


def summary(params: Params) -> str:
    raise bug("summary")


async def precondition(params: Params) -> str:
    raise bug("precondition")


@tool(effect="read", ask=True, preview=preview, summary=summary, precondition=precondition)
async def gated(params: Params) -> str:
    """Wait for a person."""
    return params.name


def predicate(params: Params) -> bool:
    raise bug("predicate")


@tool(effect="read", ask=predicate)
async def judged(params: Params) -> str:
    """Be judged."""
    return params.name


def present(params: Params, result: object) -> Any:
    raise bug("presenter")


@tool(effect="read", ask=False, present=present)
async def presented() -> str:
    """Be shown."""
    return "seen"


class Checked(BaseModel):
    name: str = "x"

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        raise bug(f"validator of {name!r}")


@tool(effect="read", ask=False)
async def validated(params: Checked) -> str:
    """Be validated."""
    return params.name


class Broken(Hooks):
    async def before_model(self, scope: RunScope, messages: Sequence[Message], generate: Generate) -> Sequence[Message]:
        if messages[1].text == "hooks":
            raise bug("before_model")
        return messages

    async def after_step(self, scope: RunScope, results: Sequence[Message]) -> None:
        if any(part.tool_name == "presented" for message in results for part in message.results):
            raise bug("after_step")


def interpret(params: BaseModel) -> WaitUntil:
    raise bug("interpreter")


nap = control_call_tool(name="nap", description="Nap.", params=Params, interpret=interpret, ask=False)


DONE = says("Done.")
SCENES: dict[str, list[ModelResponse | Exception]] = {
    "gated": [says(call("gated", "{}")), DONE],
    "judged": [says(call("judged", "{}")), DONE],
    "presented": [says(call("presented", "{}")), DONE],
    "validated": [says(call("validated", '{"name": "y"}')), DONE],
    "nap": [says(call("nap", "{}")), DONE],
    "hooks": [DONE],
}


@pytest.fixture(scope="module")
async def crashing(client: Client, sqlite_template, tmp_path_factory) -> AsyncIterator[Api]:
    file = shutil.copy(sqlite_template, tmp_path_factory.mktemp("crashing") / "turngate.db")
    database = Database(f"sqlite:///{file}")
    tools, model = (gated, judged, presented, validated, nap), Cast(test=Scenes(SCENES))
    async with (
        stack(client, database, *tools, model=model, hooks=[Broken()]) as engine,
        api_on(engine, Gateway(client)) as api,
    ):
        yield api
    await database.close()


async def ended(api: Api, run_id: str) -> list[dict[str, Any]]:
    """Return the errors that `explain` has of a run that has completed."""
    async with api.stack.database.read() as conn:
        run = await runs.get(conn, run_id)
    assert run is not None
    assert (await api.stack.ended(run)).status == "completed"
    explanation = (await api.operator.get(f"/api/v1/runs/{run_id}/explanation")).json()
    assert explanation["cause"].startswith("It completed, in spite of an error on the way: ")
    return [each for each in explanation["errors"] if "bug" in each["traceback"]]


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        pytest.param(
            "presented", [("presenter failed", "presented"), ("after_step hook failed", "Broken")], id="shown"
        ),
        pytest.param("validated", [("parameters could not be validated", "validated")], id="validator"),
        pytest.param("nap", [("interpret failed", "nap")], id="interpreter"),
        pytest.param("hooks", [("before_model hook failed", "Broken")], id="transform"),
    ],
)
async def test_what_crashes_beside_a_call_has_an_id(crashing: Api, scene: str, expected: list[tuple[str, str]]) -> None:
    """Traceback, worker and build are stored, and the log line names the id; the run completes as before."""
    with capture_logs() as lines:
        errors = await ended(crashing, (await crashing.start(scene))["id"])
    assert [(each["says"], each["about"]) for each in errors] == expected
    for each in errors:
        assert "own problem" in each["message"]
        assert "ZeroDivisionError" in each["traceback"]
        assert (each["worker"], each["build"]) == (crashing.stack.engine.worker, crashing.stack.engine.build)
        assert [line["event"] for line in lines if line.get("error") == each["id"]] == [each["says"]]


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ("gated", ["precondition failed", "preview failed", "summary failed"]),
        ("judged", ["ask predicate failed"]),
    ],
)
async def test_a_request_names_what_crashed_about_its_call(
    crashing: Api, scene: str, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """I2: the person is asked as before; page, terminal and API have the ids; an agent's token sees no text of them."""
    started = await crashing.start(scene)
    request = await crashing.request(started)
    assert sorted(each["says"] for each in request["crashes"]) == expected
    assert {each["about"] for each in request["crashes"]} == {scene}
    page = html.unescape(await crashing.page(f"/requests/{request['id']}"))
    show_request(RequestDetail.model_validate(request))
    printed = capsys.readouterr().out
    for each in request["crashes"]:
        assert f"turngate logs {each['id']}" in page
        assert f"turngate logs {each['id']}" in printed
        async with crashing.stack.database.read() as conn:
            stored = await stored_errors.get(conn, each["id"])
        assert stored is not None
        assert (stored.step, stored.tool_call_id) == (1, request["tool_call_id"])
        assert "ZeroDivisionError" in stored.traceback
    await crashing.decide(request, "reject", message="no")
    await ended(crashing, started["id"])
    seen = await crashing.agent.get(f"/api/v1/runs/{started['id']}/explanation")
    assert "own problem" not in seen.text
    assert "ZeroDivisionError" in (await crashing.operator.get(f"/api/v1/runs/{started['id']}/explanation")).text


async def test_no_crash_is_lost_with_a_transaction_that_rolls_back(crashing: Api) -> None:
    """What crashed within a transaction is stored after it, although that was undone; without a crash nothing is written."""
    engine = crashing.stack.engine

    async def undone() -> None:
        async with keeping_crashes(engine, Where(run_id="run-undone")), engine.database.write() as conn:
            await conn.execute(text("DELETE FROM errors"))
            with at_call("c7", 3):
                report_crash("preview failed", bug("preview"), tool="gated")
                report_crash("preview failed", bug("preview"), tool="gated")
            raise LookupError("rolled back")

    await report(engine, "tool crashed", bug("tool"), Where(run_id="run-before"))
    with pytest.raises(LookupError, match="rolled back"):
        await undone()
    async with engine.database.read() as conn:
        (stored,) = await stored_errors.newest(conn, run_id="run-undone", limit=5)
        assert await stored_errors.newest(conn, run_id="run-before", limit=5)
    assert (stored.says, stored.tool_call_id, stored.step) == ("preview failed", "c7", 3)


async def test_where_nothing_crashes_nothing_is_written(monkeypatch: pytest.MonkeyPatch, crashing: Api) -> None:
    """The hot path pays no statement for it."""
    engine = crashing.stack.engine
    monkeypatch.setattr(Database, "write", lambda _self: pytest.fail("a transaction was opened"))
    async with keeping_crashes(engine, Where(run_id="run-quiet")):
        with at_call("c1", 1):
            pass
