"""A machine's token names only what it started; a schedule is changed by its maker or an admin (issue 15, I13)."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api, token_for

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi.json"
SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}
READS = ("", "/fork?step=1", "/replay", "/explanation", "/events", "/calls/c1/result")
STEERS = ("messages", "interrupt", "pause", "resume", "retry", "fork", "replay", "model")
BODIES: dict[str, dict[str, Any]] = {
    "messages": {"input": "do something else"},
    "fork": {"text": "continue"},
    "replay": {},
    "model": {"model": "scripted:other"},
}


@pytest.fixture
async def intruder(api: Api) -> AsyncIterator[httpx.AsyncClient]:
    """Another agent's token, with the same scopes."""
    headers = await token_for(api.stack.database, f"mallory-{secrets.token_hex(3)}", "runs:write", "requests:read")
    async with httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False) as client:
        yield client


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_i13_a_machine_reads_no_run_it_did_not_start(api: Api, intruder: httpx.AsyncClient) -> None:
    """Nothing of another's run, conversation or request can be read, alone or in a list; one's own run can."""
    request = await api.gated("pay 7")
    run = (await api.agent.get(f"/api/v1/runs/{request['run_id']}")).json()
    own = (await intruder.post("/api/v1/runs", json={"agent": "agent", "input": "hello"})).json()
    for path in READS:
        assert refused(await intruder.get(f"/api/v1/runs/{run['id']}{path}")) == (403, "not_own_run"), path
    others = (
        f"/api/v1/conversations/{run['conversation_id']}/messages",
        f"/api/v1/runs/{own['id']}/comparison/{run['id']}",
        f"/api/v1/requests/{request['id']}",
        f"/api/v1/requests/{request['id']}/comments",
        f"/api/v1/requests?run_id={run['id']}",
        f"/api/v1/audit?run_id={run['id']}",
        f"/api/v1/audit/chains/{run['id']}",
        "/api/v1/requests",
        "/api/v1/requests/count",
        "/api/v1/audit",
        "/api/v1/events",
        "/api/v1/grants",
        "/api/v1/notifications/deliveries",
    )
    for path in others:
        assert refused(await intruder.get(path)) == (403, "not_own_run"), path
    for path in ("health", "policy", "policy/versions", "policy/shadow"):
        assert refused(await intruder.get(f"/api/v1/{path}")) == (403, "not_own_run"), path
    listed = (await intruder.get("/api/v1/runs")).json()["items"]
    assert {each["started_by"] for each in listed} == {own["started_by"]}
    assert (await intruder.get(f"/api/v1/runs/{own['id']}")).status_code == 200
    assert (await intruder.get(f"/api/v1/requests?run_id={own['id']}")).status_code == 200


async def test_i13_no_route_shows_a_machine_what_others_started(api: Api, intruder: httpx.AsyncClient) -> None:
    """Every route, asked with one's own and with foreign ids in path, query and body, shows and changes nothing of a foreign run.

    An endpoint that takes no notice of a ``run_id`` must not be opened by one.
    """
    request = await api.gated("pay 7")
    run = (await api.agent.get(f"/api/v1/runs/{request['run_id']}")).json()
    own = (await intruder.post("/api/v1/runs", json={"agent": "agent", "input": "hello"})).json()
    foreign = {"run_id": run["id"], "conversation_id": run["conversation_id"], "request_id": request["id"]}
    mine = {"run_id": own["id"], "conversation_id": own["conversation_id"]}
    leaks: dict[str, list[str]] = {}
    for pattern, operations in json.loads(OPENAPI.read_text())["paths"].items():
        for ids, query in ((foreign, foreign), (mine, foreign), (mine, mine)):
            names = {"other_id": foreign["run_id"], "call_id": ids["run_id"], "request_id": request["id"]} | ids
            path = re.sub(r"\{(\w+)\}", lambda match, names=names: names.get(match[1], "1"), pattern)
            for method, operation in operations.items():
                declared = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
                values = query | {"progress": "all", "deltas": "all", "after": 0}
                params = {name: value for name, value in values.items() if name in declared}
                body = (
                    None if method == "get" else {**query, "decisions": [{"id": request["id"], "decision": "reject"}]}
                )
                response = intruder.stream(method.upper(), path, params=params, json=body)
                async with response as answer:
                    text = await beginning_of(answer)
                if answer.is_success and any(each in text for each in (*foreign.values(), run["started_by"], "pay 7")):
                    leaks.setdefault(f"{method} {pattern}", []).append(text[:300])
    assert leaks == {}
    assert (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()["status"] == "pending"


async def beginning_of(answer: httpx.Response) -> str:
    """Return what an answer says; of a stream, what it says within a moment."""
    text = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            async for piece in answer.aiter_text():
                text += piece
    return text


async def test_i13_a_machine_steers_no_run_it_did_not_start(api: Api, intruder: httpx.AsyncClient) -> None:
    """Each way to steer is 403, and the run's requests are as they were; nor can it join the conversation."""
    request = await api.gated("pay 8")
    path = f"/api/v1/runs/{request['run_id']}"
    for what in STEERS:
        answer = await intruder.post(f"{path}/{what}", json=BODIES.get(what))
        assert refused(answer) == (403, "not_own_run"), what
    run = (await api.agent.get(path)).json()
    body = {"agent": "agent", "input": "what did they say?", "conversation_id": run["conversation_id"]}
    assert refused(await intruder.post("/api/v1/runs", json=body)) == (403, "not_own_run")
    whole = {**body, "name": f"s-{secrets.token_hex(4)}", "timetable": SELDOM, "conversation": "continue"}
    assert refused(await intruder.post("/api/v1/schedules", json=whole)) == (403, "not_own_run")
    assert (run["status"], run["paused_at"]) == ("running", None)
    assert (await api.operator.get(f"/api/v1/requests/{request['id']}")).json()["status"] == "pending"


async def test_runs_all_lifts_the_limit(api: Api) -> None:
    """With runs:all a machine that starts runs reads and steers everyone's; with runs:all alone it only reads."""
    request = await api.gated("pay 9")
    path = f"/api/v1/runs/{request['run_id']}"
    steers = await token_for(api.stack.database, f"ops-{api.name}", "runs:write", "runs:all")
    reads = await token_for(api.stack.database, f"watch-{api.name}", "runs:all")
    assert (await api.stranger.get(path, headers=reads)).status_code == 200
    assert refused(await api.stranger.post(f"{path}/interrupt", headers=reads)) == (403, "missing_scope")
    assert (await api.stranger.get(path, headers=steers)).status_code == 200
    assert (await api.stranger.post(f"{path}/interrupt", headers=steers)).status_code == 202


async def test_a_schedule_is_changed_by_its_maker_or_an_admin(api: Api, intruder: httpx.AsyncClient) -> None:
    """Neither an agent's token nor another operator rewrites or deletes a schedule; an admin may."""
    whole = {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hello", "timetable": SELDOM}
    schedule = (await api.operator.post("/api/v1/schedules", json=whole)).json()
    path, change = f"/api/v1/schedules/{schedule['id']}", {"revision": schedule["revision"], "input": "pay mallory"}
    for method, url, body in (
        ("GET", path, None),
        ("PATCH", path, change),
        ("DELETE", path, None),
        ("POST", f"{path}/pause", None),
        ("POST", f"{path}/resume", None),
        ("POST", f"{path}/run", None),
    ):
        assert refused(await intruder.request(method, url, json=body)) == (403, "not_own_run"), (method, url)
    by_name = await intruder.patch(f"/api/v1/schedules/{whole['name']}", json=change)
    assert refused(by_name) == (403, "not_own_run")
    assert (await intruder.get("/api/v1/schedules")).json()["items"] == []
    everything = await token_for(api.stack.database, f"all-{api.name}", "runs:write", "runs:all")
    assert refused(await api.stranger.patch(path, json=change, headers=everything)) == (403, "not_your_schedule")
    assert refused(await api.stranger.delete(path, headers=everything)) == (403, "not_your_schedule")
    assert (await api.operator.get(path)).json()["input"] == "hello"
    admin = await token_for(api.stack.database, f"root-{api.name}", "admin")
    changed = await api.stranger.patch(path, json={**change, "input": "hello again"}, headers=admin)
    assert (changed.status_code, changed.json()["input"]) == (200, "hello again")
    assert (await api.operator.delete(path)).status_code == 200
