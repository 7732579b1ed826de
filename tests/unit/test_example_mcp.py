"""The MCP example runs as its reader would run it: real servers, the real engine, a real repository."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.engine.stack import Stack
from temporalio.client import Client

from turngate import worker as composition
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import load_app, publish_agents
from turngate.store.database import Database
from turngate.toolkits.mcp import close_sessions

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit and an uncommitted change."""
    directory = tmp_path / "repository"
    git = ["git", "-C", str(directory), "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    (directory / "notes.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "First"], check=True)
    (directory / "notes.txt").write_text("two\n")
    monkeypatch.setenv("KEEPER_REPOSITORY", str(directory))
    monkeypatch.delenv("TURNGATE_MODEL", raising=False)
    monkeypatch.chdir(EXAMPLE)
    return directory


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_sessions()


@pytest.mark.exhaustive
async def test_keeper(client: Client, sqlite: Database, repository: Path) -> None:
    """It reads freely, is denied one tool by rule, and commits after an approval; the request names its server."""
    loaded = load_app("mcp_app:app")
    task_queue = f"test-{secrets.token_hex(4)}"
    await publish_agents(loaded, sqlite, task_queue=task_queue)
    engine = composition.build_engine(loaded, sqlite, Models(ModelSettings(script_base=loaded.base)))
    stack = Stack(client, sqlite, engine, task_queue)
    async with stack.worker():
        run = await stack.start("Commit my notes.", agent="keeper")
        gate = await stack.request(run, kind="approval")
        assert gate.tool_name == "repo__git_commit"
        origin = gate.tool.origin
        assert (origin["mcp_server"], len(origin["manifest_digest"])) == ("git", 64)
        assert subjects(repository) == ["First"]
        await stack.decide(gate, "approve")
        assert (await stack.ended(run)).status == "completed"
        results = " ".join(str(result) for result in (await stack.results(run)).values())
    assert subjects(repository) == ["Update the notes", "First"]
    for seen in ("+two", "'timezone': 'Etc/UTC'", "Denied by policy rule 'history-stays'"):
        assert seen in results


def subjects(repository: Path) -> list[str]:
    """Return the subjects of its commits, newest first."""
    log = subprocess.run(
        ["git", "-C", str(repository), "log", "--format=%s"], check=True, capture_output=True, text=True
    )
    return log.stdout.splitlines()
