"""Which workspace a run may name: one below the directories that the deployment lists (issue 15)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.api.api_server import Api, api_on
from support.engine.stack import until

from turngate.runtime.workspaces import Workspaces
from turngate.toolkits.private_files import PrivateFiles

SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}


@pytest.fixture
async def listing(api: Api, tmp_path: Path) -> AsyncIterator[Api]:
    """The API of a deployment whose runs may work below ``srv``; its data directory is ``srv/data``."""
    (tmp_path / "srv" / "shop").mkdir(parents=True)
    (tmp_path / "srv" / "data").mkdir()
    private = PrivateFiles()
    private.add(directories=[tmp_path / "srv" / "data"])
    workspaces = Workspaces(roots=(tmp_path / "srv",), private=private)
    async with api_on(api.stack, api.stack.services.gateway, workspaces=workspaces) as limited:
        yield limited


@pytest.mark.parametrize(
    "wrong", ["/", "/proc/self", "/etc", "{srv}", "{srv}/data", "{srv}/shop/../data", "{srv}/shop/.."]
)
async def test_i13_a_workspace_that_is_not_listed_is_refused(listing: Api, tmp_path: Path, wrong: str) -> None:
    """422 workspace_refused with the fix, wherever one can be named: a start, a fork, a schedule and its change."""
    workspace = wrong.format(srv=tmp_path / "srv")
    done = await listing.start("hello")
    path = f"/api/v1/runs/{done['id']}"
    order = {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hi", "timetable": SELDOM}
    created = await listing.agent.post("/api/v1/schedules", json=order)
    assert created.status_code == 201, created.text
    schedule = created.json()
    url, revision = f"/api/v1/schedules/{schedule['id']}", schedule["revision"]
    for answer in (
        await listing.agent.post("/api/v1/runs", json={"agent": "agent", "input": "x", "workspace": workspace}),
        await listing.operator.post("/api/v1/runs", json={"agent": "agent", "input": "x", "workspace": workspace}),
        await listing.agent.post(f"{path}/fork", json={"text": "x", "workspace": workspace}),
        await listing.agent.post("/api/v1/schedules", json={**order, "name": "other", "workspace": workspace}),
        await listing.agent.patch(url, json={"workspace": workspace, "revision": revision}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "workspace_refused"), answer.text
        assert answer.json()["errors"][0]["pointer"] == "/workspace"
        assert "TURNGATE_" in answer.text or "another directory" in answer.text


async def test_i13_a_run_of_before_does_not_continue_in_a_workspace_that_is_not_listed(
    api: Api, listing: Api, tmp_path: Path
) -> None:
    """A message, a fork and a retry start a run in the old one's workspace, so they are refused alike; a dry run is not."""
    (tmp_path / "old").mkdir()
    body = {"agent": "agent", "input": "hello", "workspace": str(tmp_path / "old")}
    started = await api.operator.post("/api/v1/runs", json=body)
    assert started.status_code == 201, started.text
    path = f"/api/v1/runs/{started.json()['id']}"
    await until(lambda: _ended(api, path), "end of the run")
    for answer in (
        await listing.operator.post(f"{path}/messages", json={"input": "and now?"}),
        await listing.operator.post(f"{path}/fork", json={"text": "again"}),
    ):
        assert (answer.status_code, answer.json().get("code")) == (422, "workspace_refused"), answer.text
    dry = await listing.operator.post(f"{path}/replay", json={"dry": True})
    assert dry.status_code in {201, 202}, dry.text


async def _ended(api: Api, path: str) -> bool:
    return bool((await api.operator.get(path)).json()["status"] != "running")


async def test_a_listed_workspace_is_taken(listing: Api, tmp_path: Path) -> None:
    """Below the listed directory a run starts, and says where it works."""
    workspace = str(tmp_path / "srv" / "shop")
    body = {"agent": "agent", "input": "hello", "workspace": workspace}
    started = await listing.agent.post("/api/v1/runs", json=body)
    assert (started.status_code, started.json()["workspace"]) == (201, workspace)
