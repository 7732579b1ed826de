"""``turngate dev`` from outside: the app changes, breaks and is fixed while a run of it waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.terminal_process import Background, turngate

from turngate.runtime import embedded_temporal


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    assert turngate("init", str(directory), cwd=tmp_path).returncode == 0
    return directory


@pytest.fixture
def dev(shop: Path) -> Iterator[Background]:
    process = Background("dev", "my_app:app", "--port", str(embedded_temporal.choose_port()), cwd=shop)
    process.wait_for("Only this machine can reach it")
    process.wait_for("Start a run")
    yield process
    process.stop()


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_a_run_survives_a_change_a_mistake_and_its_fix(shop: Path, dev: Background) -> None:
    """A change is loaded in a fresh process. A mistake is shown by line, and the former version runs on; its fix is loaded."""
    follower = Background("run", "The lamp of order A-100 arrived broken.", cwd=shop)
    try:
        run_id = follower.wait_for(r"run_\w+").group()
        request_id = follower.wait_for(r"/requests/(rq_\w+)").group(1)
        change(shop / "my_app.py", 'f"refund-{', 'f"changed-{')
        dev.wait_for(r"reloaded after a change of my_app\.py: agent support")
        change(shop / "policy.toml", "verdict", "verdct")
        dev.wait_for(r"policy\.toml:\d+: rule\.0\.verdct: there is no such key\. Did you mean 'verdict'\?")
        dev.wait_for("the former version runs on")
        assert json.loads(turngate("show", request_id, "--json", cwd=shop).stdout)["status"] == "pending"
        change(shop / "policy.toml", "verdct", "verdict")
        dev.wait_for("reloaded after a change of policy.toml")
        decided = turngate("decide", request_id, "approve", cwd=shop)
        assert decided.returncode == 0, decided.stderr
        follower.wait_for("75.00 was refunded")
        assert '"changed-' in turngate("export", run_id, cwd=shop).stdout
    finally:
        follower.stop()
