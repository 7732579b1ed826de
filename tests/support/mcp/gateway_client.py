"""An MCP client at a Turngate gateway: real processes, and a repository in which each branch is one run of a call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, RequestParamsMeta
from support.api.gate_client import Sender
from support.engine.stack import until
from support.mcp.calls import children

from turngate.bridges.mcp_gateway.downstream import Connect
from turngate.runtime.embedded_temporal import choose_port
from turngate.toolkits.mcp_servers.connection import connected
from turngate.toolkits.mcp_servers.servers import StdioServer

TURNGATE = [sys.executable, "-c", "from turngate.cli.main import main; main()"]
CALL_SECONDS = 60
"""Without a bound, a call without a decision would block the test."""
HTTP_TOKEN = "sesame"
OF_CLIENT = {"Authorization": f"Bearer {HTTP_TOKEN}"}
GIT_SERVER = [sys.executable, "-m", "mcp_server_git"]


@dataclass
class Front:
    """A client, and access to the people who decide. ``progress``: the messages of its progress notifications."""

    client: Client
    sender: Sender
    repository: Path
    progress: list[str] = field(default_factory=list)

    async def call(self, name: str, *, call_id: str | None = None, **arguments: Any) -> CallToolResult:
        async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
            self.progress.append(message or "")

        meta: RequestParamsMeta | None = None if call_id is None else {"turngate/call-id": call_id}  # type: ignore[typeddict-unknown-key]
        arguments = {"repo_path": str(self.repository), **arguments}
        async with asyncio.timeout(CALL_SECONDS):
            return await self.client.session.call_tool(name, arguments, meta=meta, progress_callback=on_progress)

    def calling(self, name: str, **arguments: Any) -> asyncio.Task[CallToolResult]:
        return asyncio.create_task(self.call(name, **arguments))

    @property
    def branches(self) -> set[str]:
        """The branches that calls created; git fails on creating one twice."""
        return set(git(self.repository, "branch", "--format=%(refname:short)").split()) - {"main"}


def connect_to(server: StdioServer) -> Connect:
    """What a gateway reaches a server by, as the command makes it."""
    return partial(connected, server, name="under-test", seconds=30, answer_seconds=600)


def text_of(result: CallToolResult) -> str:
    return "\n".join(getattr(part, "text", "") for part in result.content)


def git(repository: Path, *words: str) -> str:
    named = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
    done = subprocess.run(["git", "-C", str(repository), *named, *words], check=True, capture_output=True, text=True)
    return done.stdout


def repository_in(directory: Path) -> Path:
    """A repository with one commit."""
    directory.mkdir()
    git(directory, "init", "--quiet", "--initial-branch=main")
    (directory / "notes.txt").write_text("one\n")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "-m", "First")
    return directory


def environment(sender: Sender) -> dict[str, str]:
    """A client's environment, with the credential of one that sends calls."""
    token = sender.client._http.headers["Authorization"].removeprefix("Bearer ")
    return {**os.environ, "TURNGATE_TOKEN": token, "TURNGATE_API_URL": sender.api.url}


def command(sender: Sender, *options: str, server: Sequence[str] = GIT_SERVER) -> list[str]:
    return [*TURNGATE, "mcp-gateway", "--name", sender.source, *options, *server]


def on_stdio(sender: Sender, directory: Path) -> AbstractAsyncContextManager[Client]:
    started, *words = command(sender, "--writable", str(directory))
    return Client(
        stdio_client(StdioServerParameters(command=started, args=words, env=environment(sender), cwd=directory)),
        cache=None,
    )


@asynccontextmanager
async def on_http(sender: Sender, directory: Path) -> AsyncIterator[Client]:
    """A client of a gateway over HTTP."""
    port = choose_port()
    words = command(sender, "--writable", str(directory), "--http", str(port), "--http-token-variable", "HTTP_TOKEN")
    variables = {**environment(sender), "HTTP_TOKEN": HTTP_TOKEN}
    process = await asyncio.create_subprocess_exec(*words, env=variables, cwd=directory)

    async def listening() -> bool:
        with suppress(OSError):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    try:
        await until(listening, "gateway over HTTP")
        url = f"http://127.0.0.1:{port}/mcp"
        async with (
            httpx2.AsyncClient(headers=OF_CLIENT) as http,
            Client(streamable_http_client(url, http_client=http), cache=None) as client,
        ):
            yield client
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def kill(sender: Sender) -> None:
    """SIGKILL the gateway of this name, as a machine that goes down would."""
    for child in children():
        if sender.source.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)


class Held:
    """Enters and exits a context manager in one task, for a fixture whose setup and teardown run in different tasks."""

    def __init__(self, inner: AbstractAsyncContextManager[Client]) -> None:
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._own(inner))

    async def client(self) -> Client:
        await asyncio.wait({self._task, self._opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        return self._opened.result()

    async def close(self) -> None:
        self._over.set()
        await self._task

    async def _own(self, inner: AbstractAsyncContextManager[Client]) -> None:
        async with inner as client:
            self._opened.set_result(client)
            await self._over.wait()
