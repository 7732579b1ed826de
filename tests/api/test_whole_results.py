"""Results that the model gets in part: whole over the API, in the client and in the terminal."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.api.api_server import Api, token_for
from support.engine.sub_agent_app import LIMITS, log_of, step, task
from support.stores.changed_rows import planted_calls

from turngate.client import SyncTurngateClient
from turngate.domain.errors import NotFoundError
from turngate.domain.tools.results import TOOL_RESULT, Failure, Ok
from turngate.store.runs import calls, runs

CHARS = 50_000


async def made_calls(api: Api, *calls_: tuple[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """Run these calls in one step; return the run's id and its calls."""
    run = await api.start(task(step(*calls_)))
    async with api.stack.database.read() as conn:
        stored = await runs.get(conn, run["id"])
    assert stored is not None
    await api.stack.ended(stored)
    view = (await api.operator.get(f"/api/v1/runs/{run['id']}")).json()
    return run["id"], view["steps"][0]["calls"]


async def test_a_clipped_result_is_returned_whole(office: Api) -> None:
    """The run says how much of it is there; the result's own address has all of it, also of a result that was not clipped."""
    run_id, (clipped, short) = await made_calls(office, ("read_log", {"chars": CHARS}), ("read_log", {"chars": 20}))
    assert clipped["in_part"] == {
        "shown_chars": len(clipped["result"]["value"]["head"]) + len(clipped["result"]["value"]["tail"]),
        "total_chars": clipped["result"]["value"]["total_chars"],
    }
    assert clipped["in_part"]["shown_chars"] == LIMITS.result_chars
    assert short["in_part"] is None
    for call, chars in ((clipped, CHARS), (short, 20)):
        answer = await office.operator.get(f"/api/v1/runs/{run_id}/calls/{call['tool_call_id']}/result")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == {"result": {"tag": "ok", "value": {"value": log_of(chars)}}}


async def test_no_number_of_a_whole_result_is_rewritten(office: Api) -> None:
    """The answer has the stored text byte for byte: a reader that keeps digits gets the tool's."""
    run_id, (call,) = await made_calls(office, ("list_rows", {"chars": 500}))
    answer = await office.operator.get(f"/api/v1/runs/{run_id}/calls/{call['tool_call_id']}/result")
    whole = json.dumps({"rows": [{"n": n, "rate": 1.1} for n in range(500)], "more": None}, separators=(",", ":"))
    assert answer.text == f'{{"result":{{"tag":"ok","value":{whole}}}}}'


async def test_who_may_read_runs_may_read_results(office: Api) -> None:
    """Not without a credential; with a token that reads requests; not with one that has none of a run's scopes."""
    run_id, (call,) = await made_calls(office, ("read_log", {"chars": 20}))
    path = f"/api/v1/runs/{run_id}/calls/{call['tool_call_id']}/result"
    assert (await office.stranger.get(path)).status_code == 401
    assert (await office.agent.get(path)).status_code == 200
    useless = await token_for(office.stack.database, "useless")
    refused = await office.stranger.get(path, headers=useless)
    assert (refused.status_code, refused.json()["code"]) == (403, "missing_scope")


async def test_what_is_not_there_is_a_404_problem(office: Api) -> None:
    """No run, no call, a call that is still open: each says so as problem+json."""
    request = await office.start(task(step(("pay", {"cents": 1}))))
    async with office.stack.database.read() as conn:
        stored = await runs.get(conn, request["id"])
    assert stored is not None
    waits = await office.stack.request(stored)
    for path, code in (
        ("/runs/run_none/calls/x/result", "not_found"),
        (f"/runs/{stored.id}/calls/none/result", "not_found"),
        (f"/runs/{stored.id}/calls/a%2Fb/c/result", "not_found"),
        (f"/runs/{stored.id}/calls/{waits.tool_call_id}/result", "no_result_yet"),
    ):
        answer = await office.operator.get(f"/api/v1{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, code), path
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("call_id", ["a/b", "call 1?x=2#y", "ünï%2F", "..%", "result"])
async def test_any_id_of_a_provider_leads_to_its_call(office: Api, call_id: str) -> None:
    """Slashes, question marks, percent signs and letters of any kind in a call's id lead to its result."""
    run_id, (call,) = await made_calls(office, ("read_log", {"chars": 20}))
    failed = Failure(kind="busy", reason="Later.", fields={"tried": 3})
    async with office.stack.database.read() as conn:
        first = await calls.get(conn, run_id, call["tool_call_id"])
    assert first is not None
    row = {**vars(first), "tool_call_id": call_id, "position": 1, "result": failed.model_dump_json()}
    token = (await token_for(office.stack.database, "cli", "requests:read"))["Authorization"]
    async with planted_calls(office.stack.database, [calls.Call(**row)]):
        with SyncTurngateClient(office.url, token=token.removeprefix("Bearer ")) as reader:
            document = await asyncio.to_thread(reader.get_result_text, run_id, call_id)
            assert TOOL_RESULT.validate_python(json.loads(document)["result"]) == failed
            with pytest.raises(NotFoundError):
                await asyncio.to_thread(reader.get_result_text, run_id, f"{call_id}x")


@pytest.mark.exhaustive
async def test_the_command_prints_all_of_it(office: Api, tmp_path: Path) -> None:
    """`turngate result`: a text as it is, rows as indented JSON, --out into a file, --json as the API sends it."""
    run_id, (log, rows) = await made_calls(office, ("read_log", {"chars": CHARS}), ("list_rows", {"chars": 200}))
    printed = partial(office.printed, "result", scopes=["requests:read"])
    assert await printed(run_id, log["tool_call_id"]) == log_of(CHARS) + "\n"
    assert '    {\n      "n": 1,\n      "rate": 1.1\n    }' in await printed(run_id, rows["tool_call_id"])
    file = tmp_path / "log.txt"
    assert await printed(run_id, log["tool_call_id"], "--out", str(file)) == ""
    assert file.read_text(encoding="utf-8") == log_of(CHARS)
    whole = json.loads(await printed(run_id, log["tool_call_id"], "--json"))
    assert TOOL_RESULT.validate_python(whole["result"]) == Ok(value={"value": log_of(CHARS)})
    assert "has no call 'none'" in await printed(run_id, "none", code=1)
