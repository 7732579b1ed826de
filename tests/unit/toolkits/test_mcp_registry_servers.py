"""MCP servers as people publish them, from the package registry: the time server and the git server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.mcp.calls import McpBench

from turngate import Ok, Toolkit
from turngate.toolkits.mcp import StdioServer, close_sessions, mcp_toolkit


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await close_sessions()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with one uncommitted change."""
    directory = tmp_path / "repo"
    git = ["git", "-C", str(directory), "-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(directory)], check=True)
    (directory / "a.txt").write_text("one\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "First"], check=True)
    (directory / "a.txt").write_text("two\n")
    return directory


@pytest.mark.exhaustive
async def test_the_time_server(tmp_path: Path) -> None:
    """The time server converts a time: its structured content is the result, its schemas are what the model sees."""
    server = StdioServer(command=[sys.executable, "-m", "mcp_server_time", "--local-timezone", "Europe/Vienna"])
    kit = mcp_toolkit(server, name="time", effects={"convert_time": "read"}, ask={"convert_time": False})
    assert kit.names == ["get_current_time", "convert_time"]
    convert = kit.find("convert_time")
    assert convert is not None
    # Its own hint says that it only reads. That alone loosens nothing; the builder's setting does.
    assert (convert.effect, convert.ask) == ("read", False)
    current = kit.find("get_current_time")
    assert current is not None
    assert (current.effect, current.ask) == ("once", None)
    assert "time_difference" in str(convert.manifest.success)
    bench = McpBench(tmp_path, kit)
    result = await bench("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    assert isinstance(result, Ok)
    assert result.value["time_difference"] == "+9.0h"
    failure = await bench.failed("convert_time", source_timezone="Mars", time="12:00", target_timezone="UTC")
    assert (failure.kind, "Mars" in failure.reason) == ("mcp_tool_error", True)


@pytest.mark.exhaustive
async def test_the_git_server(repository: Path, tmp_path: Path) -> None:
    """The git server shows a diff and commits; its hint that reset is destructive overrides the builder's setting."""
    server = StdioServer(
        command=[sys.executable, "-m", "mcp_server_git", "--repository", str(repository)], writable=[repository]
    )
    kit = mcp_toolkit(server, name="git", effects={"git_status": "read", "git_reset": "idempotent"}, ask=False)
    reset, status = kit.find("git_reset"), kit.find("git_status")
    assert reset is not None
    assert status is not None
    assert (reset.effect, reset.ask) == ("once", True)
    assert (status.effect, status.ask) == ("read", False)
    bench = McpBench(tmp_path, Toolkit.namespace("git", kit))
    diff = await bench("git__git_diff_unstaged", repo_path=str(repository))
    assert isinstance(diff, Ok)
    assert "+two" in str(diff.value["text"])
    outside = await bench.failed("git__git_status", repo_path="/")
    assert outside.kind == "mcp_tool_error"
