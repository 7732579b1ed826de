"""How the MCP tests call a server's tools: through the executor, as the engine does, and look at the marks it leaves."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import svcs

from turngate import Failure, Ok, ToolContext, Toolkit
from turngate.activities.execution.executor import Unknown, execute
from turngate.runtime.embedded_temporal import choose_port
from turngate.toolkits.mcp import HttpServer, StdioServer, mcp_toolkit

SERVER = Path(__file__).with_name("server.py")
RAW_SERVER = Path(__file__).with_name("raw_server.py")
HEADERS = {"Authorization": "Bearer sesame"}


@dataclass
class McpBench:
    """A server under test and its toolkit. ``marks``: the directory in which the server notes what it did."""

    marks: Path
    kit: Toolkit
    emitted: list[Any] = field(default_factory=list)

    async def __call__(self, name: str, key: str = "key_1", /, **tool_input: Any) -> Ok | Failure | Unknown:
        tool = self.kit.find(name)
        assert tool is not None, f"no tool {name!r} among {self.kit.names}"
        ctx = ToolContext(
            run_id="run_1",
            tool_call_id="call_1",
            idempotency_key=key,
            workspace=None,
            deadline=datetime.now(UTC) + timedelta(hours=1),
            emit=self.emitted.append,
        )
        return await execute(tool, json.dumps(tool_input), ctx, svcs.Registry())

    async def failed(self, name: str, **tool_input: Any) -> Failure:
        result = await self(name, **tool_input)
        if isinstance(result, Unknown):  # as the model reads it, if no one knows
            return Failure(kind="unknown", reason=result.why)
        assert isinstance(result, Failure), result
        return result

    @property
    def calls(self) -> list[str]:
        """The tools that were called, once for each time."""
        log = self.marks / "calls"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def put(self, mark: str) -> None:
        (self.marks / mark).touch()

    @property
    def processes(self) -> list[int]:
        """The processes of this server that were started on stdio and are alive."""
        alive = []
        for child in children():
            with suppress(OSError):  # it may end while we look
                if str(self.marks).encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    alive.append(child)
        return alive

    @property
    def is_gone(self) -> bool:
        """Whether no process of this server is left, those that its launcher started included."""
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it may end while we look
                if str(self.marks).encode() in line.read_bytes():
                    return False
        return True

    def forget(self) -> None:
        """Remove every mark, the server's and the test's."""
        for mark in self.marks.iterdir():
            if mark.is_file():  # else it is a place that the confinement holds
                mark.unlink()
        self.emitted.clear()

    async def until(self, condition: Callable[[], Any], seconds: float = 60) -> Any:
        async with asyncio.timeout(seconds):
            while not (value := condition()):  # noqa: ASYNC110 - another process cannot set our Event
                await asyncio.sleep(0.01)
        return value

    async def mark(self, name: str) -> None:
        await self.until((self.marks / name).exists)


def command(marks: Path, *options: str) -> list[str]:
    return [sys.executable, str(SERVER), str(marks), *options]


def started_here(marks: Path, *server_options: str, env: Mapping[str, str] | None = None) -> StdioServer:
    """The server under test as it is declared: it may read its own program, and write its marks."""
    argv = command(marks, *server_options)
    return StdioServer(command=argv, env=env or {}, readable=[SERVER], writable=[marks])


def raw_server(directory: Path, tools: list[Any]) -> StdioServer:
    """A server with just these tools, which starts ten times as fast as one that imports the SDK."""
    (directory / "tools.json").write_text(json.dumps(tools))
    argv = [sys.executable, str(RAW_SERVER), str(directory)]
    return StdioServer(command=argv, readable=[RAW_SERVER], writable=[directory])


def on_stdio(marks: Path, *server_options: str, **options: Any) -> McpBench:
    """The server under test as a child process."""
    server = started_here(marks, *server_options, env=options.pop("env", {}))
    return McpBench(marks, mcp_toolkit(server, name="under-test", **options))


@dataclass
class WebServer:
    """The server under test at its own address, which survives a restart."""

    marks: Path
    options: tuple[str, ...]
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self.process = subprocess.Popen(command(self.marks, "--port", str(self.port), *self.options))
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert time.monotonic() < deadline, "the server under test does not start"
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def bench(self, **options: Any) -> McpBench:
        server = HttpServer(url=self.url, headers=HEADERS)
        return McpBench(self.marks, mcp_toolkit(server, name="under-test", **options))


@contextmanager
def on_http(marks: Path, *options: str) -> Iterator[WebServer]:
    server = WebServer(marks, options, choose_port())
    server.start()
    yield server
    server.kill()


def children() -> set[int]:
    """Process ids of our children that are alive: other tests have theirs."""
    alive = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # threads and children may end while we look
            for child in (task / "children").read_text().split():
                with suppress(OSError):
                    if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                        alive.add(int(child))
    return alive
