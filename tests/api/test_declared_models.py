"""Which model a program may name: one that the app or models.toml declares, so never a file (issue 15)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.api_server import Api

SELDOM = {"cron": "0 8 1 jan *", "time_zone": "Europe/Berlin"}


@pytest.mark.parametrize("wrong", ["scripted:/etc/shadow", "scripted:{fifo}", "scripted:x/../../y", "openai:dearest"])
async def test_a_model_that_nothing_declares_is_refused_everywhere(api: Api, tmp_path: Path, wrong: str) -> None:
    """422 unknown_model wherever a model can be named; the file is not opened, and its content is in no answer."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    spec = wrong.format(fifo=fifo)
    live = await api.gated("pay 5")
    done = await api.start("hello")
    path = f"/api/v1/runs/{live['run_id']}"
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("/api/v1/runs", {"agent": "agent", "input": "hello"}),
        (f"{path}/model", {}),
        (f"{path}/retry", {}),
        (f"/api/v1/runs/{done['id']}/replay", {"dry": True}),
        (
            "/api/v1/schedules",
            {"name": f"s-{secrets.token_hex(4)}", "agent": "agent", "input": "hi", "timetable": SELDOM},
        ),
    ]
    for url, body in wanted:
        answer: httpx.Response = await api.agent.post(url, json={**body, "model": spec})
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_model"), (url, answer.text)
    answer = await api.operator.post("/api/v1/runs", json={"agent": "agent", "input": "hello", "model": spec})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_model"), "a person's session is no exception"
