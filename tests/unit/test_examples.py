"""Each example runs, as its reader would run it: loaded by name, through the real engine."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

import pytest
from support.engine.stack import OPERATOR, STARTER, Stack
from temporalio.client import Client

from turngate import worker as composition
from turngate.domain.errors import ForbiddenError
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import load_app, publish_agents
from turngate.store.database import Database

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_announce(client: Client, sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The announcer asks its question, its starter answers and may not approve, another person does, and one letter is sent."""
    monkeypatch.delenv("TURNGATE_MODEL", raising=False)
    monkeypatch.setenv("ANNOUNCE_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.chdir(EXAMPLES / "announce")
    loaded = load_app("announce_app:app")
    task_queue = f"test-{secrets.token_hex(4)}"
    await publish_agents(loaded, sqlite, task_queue=task_queue)
    engine = composition.build_engine(loaded, sqlite, Models(ModelSettings(script_base=loaded.base)))
    stack = Stack(client, sqlite, engine, task_queue)
    async with stack.worker():
        run = await stack.start("Tell our customers about the new opening hours.", agent="announcer")
        question = await stack.request(run, kind="question")
        await stack.decide(question, "respond", args='{"audience": "customers"}', by=STARTER)
        gate = await stack.request(run, kind="approval")
        assert gate.preview is not None
        assert "Subject: New opening hours" in gate.preview
        with pytest.raises(ForbiddenError):
            await stack.decide(gate, "approve", by=STARTER)
        await stack.decide(gate, "approve", by=OPERATOR)
        assert (await stack.ended(run)).status == "completed"
    letters = list((tmp_path / "outbox").iterdir())
    assert [letter.read_text(encoding="utf-8").splitlines()[0] for letter in letters] == ["New opening hours"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("example", ["refunds", "research", "payments"])
async def test_an_examples_own_tests_pass(example: str, tmp_path: Path) -> None:
    """An example's tests run as its reader would run them, in the example's directory."""
    # In a process of its own: the reader's pytest has none of this project's options, fixtures or paths.
    pytest_run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/t"),
        cwd=EXAMPLES / example,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(pytest_run.communicate(), timeout=120)
    assert pytest_run.returncode == 0, output.decode()
    assert b" passed" in output
    assert b"skipped" not in output
