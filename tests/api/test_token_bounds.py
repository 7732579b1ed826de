"""What a token is bound to: agents, workspaces, sources, and whether its word counts that no one need be asked (issue 15)."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
from support.api.api_server import Api, token_for
from support.engine.stack import until

from turngate.domain.identity import TokenBounds

SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}


async def bound(api: Api, **bounds: Any) -> dict[str, str]:
    """Return the header of a new machine's token that starts runs and is bound to these."""
    scopes = ("runs:write", "requests:read")
    return await token_for(api.stack.database, f"b-{secrets.token_hex(4)}", *scopes, bounds=TokenBounds(**bounds))


def schedule(**more: Any) -> dict[str, Any]:
    return {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hi", "timetable": SELDOM, **more}


@pytest.mark.parametrize(
    ("agents", "status"), [(["agent"], 201), (["ag*"], 201), (["other"], 403), ([], 403), (None, 201)]
)
async def test_i13_a_token_starts_runs_of_its_agents_only(api: Api, agents: list[str] | None, status: int) -> None:
    """Whatever starts a run: an order, a schedule; 403 beyond_token with the option that would allow it."""
    header = await bound(api, agents=agents)
    for url, body in (("runs", {"agent": "agent", "input": "x"}), ("schedules", schedule())):
        answer = await api.stranger.post(f"/api/v1/{url}", json=body, headers=header)
        assert answer.status_code == status, answer.text
        if status == 403:
            assert answer.json()["code"] == "beyond_token"
            assert "--agent agent" in answer.json()["detail"]


async def test_i13_another_token_of_the_name_that_is_bound_continues_nothing_beyond(api: Api) -> None:
    """Each route that starts or continues a run; bounds belong to the token, runs to the name."""
    name = f"b-{secrets.token_hex(4)}"
    free = await token_for(api.stack.database, name, "runs:write")
    narrow = await token_for(api.stack.database, name, "runs:write", bounds=TokenBounds(agents=["other"]))
    run = (await api.stranger.post("/api/v1/runs", json={"agent": "agent", "input": "hello"}, headers=free)).json()
    path = f"/api/v1/runs/{run['id']}"

    async def is_over() -> bool:
        return bool((await api.stranger.get(path, headers=free)).json()["status"] != "running")

    await until(is_over, "end of the run")
    stored = (await api.stranger.post("/api/v1/schedules", json=schedule(), headers=free)).json()
    for url, body in (
        (f"{path}/fork", {"text": "x"}),
        (f"{path}/messages", {"input": "x"}),
        (f"{path}/replay", {"dry": True}),
        (f"/api/v1/schedules/{stored['id']}/run", None),
        (f"/api/v1/schedules/{stored['id']}/resume", None),
    ):
        answer = await api.stranger.post(url, json=body, headers=narrow)
        assert (answer.status_code, answer.json().get("code")) == (403, "beyond_token"), (url, answer.text)


async def test_i13_a_bound_token_of_the_name_only_stops_a_live_run_beyond(idle: Api) -> None:
    """A message of any kind, another model and the end of a pause: 403 beyond_token. What stops the run is allowed."""
    name = f"b-{secrets.token_hex(4)}"
    free = await token_for(idle.stack.database, name, "runs:write")
    narrow = await token_for(idle.stack.database, name, "runs:write", bounds=TokenBounds(agents=["other"]))
    run = (await idle.stranger.post("/api/v1/runs", json={"agent": "agent", "input": "hello"}, headers=free)).json()
    path = f"/api/v1/runs/{run['id']}"
    messages = [{"input": "x", "while_running": each} for each in ("queue", "inject", "supersede", None)]
    bodies = [*((f"{path}/messages", each) for each in messages), (f"{path}/model", {"model": run["model"]})]
    assert (await idle.stranger.post(f"{path}/pause", headers=narrow)).status_code == 202
    for url, body in (*bodies, (f"{path}/resume", None)):
        answer = await idle.stranger.post(url, json=body, headers=narrow)
        assert (answer.status_code, answer.json().get("code")) == (403, "beyond_token"), (url, answer.text)
    assert (await idle.stranger.post(f"{path}/interrupt", headers=narrow)).status_code == 202
    assert (await idle.stranger.post(f"{path}/resume", headers=free)).status_code == 202
    async with idle.stack.worker():

        async def is_over() -> bool:
            return bool((await idle.stranger.get(path, headers=free)).json()["status"] != "running")

        await until(is_over, "end of the run")
    assert (await idle.stranger.post(f"{path}/retry", headers=narrow)).json()["code"] == "beyond_token"


async def test_i13_a_token_works_in_its_directories_only(api: Api, tmp_path: Path) -> None:
    """By the real path; a run without a workspace is not concerned."""
    for name in ("mine/src", "yours"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mine" / "out").symlink_to(tmp_path / "yours")
    header = await bound(api, workspaces=[str(tmp_path / "mine")])
    for place, status in (
        ("mine", 201),
        ("mine/src", 201),
        ("yours", 403),
        ("mine/out", 403),
        ("mine/..", 403),
        ("", 201),
    ):
        workspace = {"workspace": str(tmp_path / place)} if place else {}
        body = {"agent": "agent", "input": "x", **workspace}
        assert (await api.stranger.post("/api/v1/runs", json=body, headers=header)).status_code == status, place
        answer = await api.stranger.post("/api/v1/schedules", json=schedule(**workspace), headers=header)
        assert answer.status_code == status, place


def external(source: str, tool: str, **declared: Any) -> dict[str, Any]:
    return {
        "source": source,
        "tool_call_id": secrets.token_hex(6),
        "tool": {"name": tool, **declared},
        "input": "{}",
        "turn": secrets.token_hex(6),
    }


async def sent(api: Api, header: dict[str, str] | None, order: dict[str, Any]) -> dict[str, Any]:
    """Send a call, as ``header`` or the operator, and return its state once policy has judged it, or the problem."""
    client, options = (api.operator, {}) if header is None else (api.stranger, {"headers": header})

    async def judged() -> dict[str, Any] | None:
        answer: dict[str, Any] = (await client.post("/api/v1/external-calls", json=order, **options)).json()
        return None if answer.get("state") == "planning" else answer

    return await until(judged, "verdict")


async def test_i13_a_token_sends_calls_of_its_sources_only(api: Api) -> None:
    """403 beyond_token for another source, and for starting an agent's run; a token with agents alone sends none."""
    header = await bound(api, sources=["shop"])
    assert (await sent(api, header, external("shop", "refund")))["state"] == "waiting"
    assert (await sent(api, header, external("bank", "refund")))["code"] == "beyond_token"
    started = await api.stranger.post("/api/v1/runs", json={"agent": "agent", "input": "x"}, headers=header)
    assert (started.status_code, started.json()["code"]) == (403, "beyond_token")
    assert (await sent(api, await bound(api, agents=["*"]), external("shop", "refund")))["code"] == "beyond_token"


async def test_i13_ask_false_counts_only_where_the_token_says_so(api: Api) -> None:
    """A sender's own word that no one need be asked asks a person; so does a person's, whose programs send calls."""
    order = {"ask": False, "effect": "read"}
    assert (await sent(api, await bound(api), external("shop", "peek", **order)))["state"] == "waiting"
    assert (await sent(api, await bound(api, sources=["shop"]), external("shop", "peek", **order)))[
        "state"
    ] == "waiting"
    assert (await sent(api, None, external("shop", "peek", **order)))["state"] == "waiting"
    trusted = await bound(api, sources=["shop"], trust_ask=True)
    assert (await sent(api, trusted, external("shop", "peek", **order)))["state"] == "ready"


async def test_i13_a_claimed_source_gets_nothing_that_is_for_the_source(idle: Api) -> None:
    """Rules and grants for a source allow the calls of tokens that are bound to it; those that deny deny everyone's."""
    rules = """
[[rule]]
name = "shop-looks"
verdict = "allow"
agents = ["external-shop"]
tools = ["look"]
[[rule]]
name = "all-may-list"
verdict = "allow"
tools = ["list"]
[[rule]]
name = "shop-never-drops"
verdict = "deny"
agents = ["external-shop"]
tools = ["drop"]
"""
    root = await token_for(idle.stack.database, "root", "admin")
    stored = await idle.stranger.put("/api/v1/policy", json={"source": rules, "if_version": 0}, headers=root)
    assert stored.status_code == 200, stored.text
    grant = {"tool": "refund", "pattern": {"fixed": {}, "open": []}, "scope": "agent", "agent": "external-shop"}
    assert (await idle.operator.post("/api/v1/grants", json=grant)).status_code == 201
    free, proven = await bound(idle), await bound(idle, sources=["shop"])
    async with idle.stack.worker():
        for tool, claimed, counted in (
            ("look", "waiting", "ready"),
            ("list", "ready", "ready"),
            ("drop", "done", "done"),
            ("refund", "waiting", "ready"),
        ):
            assert (await sent(idle, free, external("shop", tool)))["state"] == claimed, tool
            assert (await sent(idle, proven, external("shop", tool)))["state"] == counted, tool
        call = await sent(idle, free, external("shop", "look"))
        request = (await idle.operator.get(f"/api/v1/requests/{call['request']['id']}")).json()
        assert "not bound to the source 'shop', so 'shop-looks' does not count" in request["reason"]
