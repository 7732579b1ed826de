"""MCP servers over stdio: a real server process, called through the executor."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.mcp.calls import SERVER, McpBench, command, on_stdio, started_here

from turngate import Ok, Tool, Toolkit
from turngate.domain.runs.trace import RunTrace
from turngate.runtime.traces.current import CurrentSpans
from turngate.runtime.traces.spans import TraceSampler, provider
from turngate.toolkits.mcp import StdioServer, close_sessions, mcp_toolkit
from turngate.toolkits.mcp_servers.calls import LiveSession
from turngate.toolkits.mcp_servers.connection import connected

ERAS = pytest.mark.parametrize("shared", [(), ("--old",)], indirect=True, ids=["new", "old"])


@pytest.fixture(scope="module")
async def benches(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[Any, McpBench]]:
    """One server for each protocol, started where a loop is running, as within a worker. A start takes a second."""
    assert asyncio.get_running_loop().is_running()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TURNGATE_DATABASE_URL", "secret")
        yield {
            options: on_stdio(tmp_path_factory.mktemp("mcp"), *options, env={"PAPER": "a4"})
            for options in [(), ("--old",)]
        }
        await close_sessions()


@pytest.fixture
def shared(request: pytest.FixtureRequest, benches: dict[Any, McpBench]) -> Iterator[McpBench]:
    """A server without calls so far, in its original state."""
    bench = benches[getattr(request, "param", ())]
    yield bench
    bench.forget()


def tool(bench: McpBench, name: str) -> Tool:
    named = bench.kit.find(name)
    assert named is not None
    return named


@pytest.mark.exhaustive
@ERAS
async def test_a_call(shared: McpBench) -> None:
    """A call reaches the server once, with the idempotency key, and its text is returned."""
    assert await shared("note", "key_7", text="milk") == Ok(value={"text": "noted milk"})
    assert (shared.marks / "calls").read_text() == "note key_7\n"


@ERAS
async def test_a_server_gets_the_current_span(shared: McpBench) -> None:
    """The execution of the call, as ``_meta.traceparent``: the server's own spans are below it."""
    current = CurrentSpans(TraceSampler(provider().sampler))
    run: Any = SimpleNamespace(id="run_1", traceparent=None)
    with current.call(run, "call_1"):
        await shared("note", text="milk")
    execution = RunTrace.of("run_1", None).call("call_1")
    assert (shared.marks / "traceparent").read_text() == execution.traceparent(sampled=True)


@ERAS
async def test_arguments_are_checked_before_sending(shared: McpBench) -> None:
    """Arguments that violate the server's schema never reach it."""
    failure = await shared.failed("note", text=1)
    assert (failure.kind, failure.reason) == ("input_validation_error", "text: Input should be of JSON type string")
    assert shared.calls == []


def test_all_pages_are_read(shared: McpBench) -> None:
    """A list in pages is read to its end; names that no provider accepts are adapted."""
    names = shared.kit.names
    assert names[:3] == ["note", "slow", "fail"]
    assert names[-2] == "browse_the_web"
    assert names[-1].startswith("_" + "9" * 54 + "_")
    assert len(names[-1]) == 64


def test_what_is_shown(shared: McpBench) -> None:
    """The manifest says where the tool comes from; a server's text is bounded and has no control characters."""
    manifest = tool(shared, "note").manifest
    assert (manifest.kind, manifest.effect, tool(shared, "note").ask) == ("local", "once", None)
    assert (manifest.origin["mcp_server"], manifest.origin["server_version"]) == ("under-test", "7.1")
    assert len(manifest.origin["manifest_digest"]) == 64
    description = tool(shared, "slow").manifest.description
    assert description.startswith("Take\N{REPLACEMENT CHARACTER}[2J for\N{REPLACEMENT CHARACTER} ever.")
    assert len(description) == 4000
    assert tool(shared, "fail").manifest.description == "Fail"


@ERAS
async def test_the_servers_own_failure(shared: McpBench) -> None:
    """A result marked as an error, and an error of the protocol, are declared failures with the server's message."""
    failure = await shared.failed("fail")
    assert (failure.kind, failure.reason) == ("mcp_tool_error", "no paper\N{REPLACEMENT CHARACTER}[31m left")
    failure = await shared.failed("refuse")
    assert (failure.kind, failure.reason) == ("mcp_tool_error", "The server refused the call: not like this")


async def test_pictures_and_resources(shared: McpBench) -> None:
    """Anything but text is described by type and size; text resources have their text."""
    result = await shared("pictures")
    assert result == Ok(
        value={
            "text": "here\nthere",
            "attachments": [
                {"type": "image", "mime_type": "image/png", "bytes": 8},
                {"type": "audio", "mime_type": "audio/wav", "bytes": 8},
                {
                    "type": "resource",
                    "uri": "file:///letter.txt",
                    "mime_type": "text/plain",
                    "bytes": 8,
                    "text": "Dear all",
                },
                {"type": "resource", "uri": "file:///b.bin", "bytes": 8},
                {"type": "resource_link", "uri": "file:///big.bin", "bytes": 5, "name": "big"},
            ],
        }
    )


async def test_long_text(shared: McpBench) -> None:
    """Text past the limit is cut, and says by how much."""
    result = await shared("long")
    assert isinstance(result, Ok)
    assert str(result.value["text"]).endswith("y\n[100000 characters left out]")


async def test_i3_an_invalid_answer(shared: McpBench) -> None:
    """Structured content that violates the server's own schema is not shown; the call ran, and no one knows how it ended."""
    failure = await shared.failed("wrong")
    assert failure.kind == "unknown"
    assert "do not repeat it" in failure.reason


@pytest.mark.parametrize(
    ("shared", "says"),
    [((), "declined"), (("--old",), "asked, and got: Elicitation not supported")],
    indirect=["shared"],
)
async def test_a_server_that_asks_back(shared: McpBench, says: str) -> None:
    """A server that asks for a person's input gets a refusal, in both protocols, and the call ends."""
    assert says in (await shared("ask_back")).model_dump_json()


async def test_the_servers_environment(shared: McpBench) -> None:
    """The server gets what a program needs and what the builder passes, none of the worker's secrets."""
    assert os.environ["TURNGATE_DATABASE_URL"] == "secret"
    result = await shared("environment")
    assert isinstance(result, Ok)
    names = result.value["names"]
    assert isinstance(names, list)
    assert {"PAPER", "PATH"} <= set(names)
    assert "TURNGATE_DATABASE_URL" not in names


async def test_stderr_goes_to_the_log(
    shared: McpBench, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a server writes to stderr is in the log, named and harmless, and not on the terminal."""

    def lines() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "turngate.mcp"]

    with caplog.at_level(logging.INFO, logger="turngate.mcp"):
        await shared("complain")
        await shared.until(lines)
    assert lines() == ["[mcp server under-test] the paper\N{REPLACEMENT CHARACTER}[2J is running out"]
    assert "paper" not in capfd.readouterr().err


@ERAS
async def test_progress_and_cancellation(shared: McpBench) -> None:
    """Progress reaches every watcher; cancelling the call tells the server, which stops; the session continues."""
    call = asyncio.create_task(shared("slow"))
    await shared.mark("started")
    await shared.until(lambda: shared.emitted)
    assert shared.emitted == [{"progress": 1.0, "total": 3.0, "message": "one \N{REPLACEMENT CHARACTER}of three"}]
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    await shared.mark("cancelled")
    assert await shared("note", text="after") == Ok(value={"text": "noted after"})


async def test_i3_a_call_that_takes_too_long(shared: McpBench) -> None:
    """I3: a call past its timeout is stopped at the server too, and may have happened."""
    hasty = McpBench(shared.marks, Toolkit.of(replace(tool(shared, "slow"), timeout=timedelta(seconds=1))))
    assert (await hasty.failed("slow")).kind == "unknown"
    await shared.mark("cancelled")


async def test_many_calls_share_one_session(shared: McpBench) -> None:
    """Calls at the same time go over one connection."""
    results = await asyncio.gather(*(shared("note", text=str(n)) for n in range(8)))
    assert [result.model_dump()["value"]["text"] for result in results] == [f"noted {n}" for n in range(8)]
    assert shared.calls == ["note"] * 8
    assert len(shared.processes) == 1


async def test_a_lost_answer_is_not_asked_for_again(shared: McpBench) -> None:
    """A server that dies during a call got it once; the outcome is unknown; the next call gets a new server."""
    failure = await shared.failed("die")
    assert failure.kind == "unknown"
    assert shared.calls == ["die"]
    assert await shared("note", text="again") == Ok(value={"text": "noted again"})


@pytest.mark.exhaustive
async def test_a_server_that_died_between_calls(shared: McpBench) -> None:
    """A server that is gone before a call is started again, and gets the call once."""
    await close_sessions()
    await shared("note", text="a")
    (process,) = shared.processes
    os.kill(process, 9)
    await shared.until(lambda: shared.is_gone)
    assert await shared("note", text="b") == Ok(value={"text": "noted b"})
    assert shared.calls == ["note", "note"]


@pytest.mark.exhaustive
async def test_a_retired_session_waits_for_its_calls(shared: McpBench) -> None:
    """A session that accepts no more calls stays open for the pending ones, then its server ends."""
    server = started_here(shared.marks)
    session = LiveSession(lambda: connected(server, name="under-test", seconds=30, answer_seconds=30), "under-test")
    others = len(shared.processes)
    client = await session.client()
    with session.in_use():
        session.retire()
        assert not session.usable
        assert (await client.session.list_tools()).tools
        assert len(shared.processes) == others + 1
    await shared.until(lambda: len(shared.processes) == others)


async def test_a_tool_that_changed(shared: McpBench) -> None:
    """A tool whose description changed does not run; the others do."""
    shared.put("changed")
    failure = await shared.failed("note", text="a")
    assert failure.kind == "tool_changed"
    assert failure.fields["shown_digest"] == tool(shared, "note").origin["manifest_digest"]
    assert failure.fields["current_digest"] != failure.fields["shown_digest"]
    assert shared.calls == []
    assert isinstance(await shared("wipe"), Ok)


async def test_a_tool_that_is_gone(shared: McpBench) -> None:
    """A call of a tool that the server no longer has is not sent."""
    shared.put("gone")
    assert (await shared.failed("note", text="a")).kind == "unknown_tool"
    assert shared.calls == []


@pytest.mark.exhaustive
async def test_a_server_that_cannot_be_started_any_more(tmp_path: Path) -> None:
    """When the server cannot be started, the model reads that nothing ran; once it can, calls work again."""
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    argv = [str(program), *command(tmp_path)[1:]]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    server = StdioServer(command=argv, env=environment, readable=[SERVER], writable=[tmp_path])
    bench = McpBench(tmp_path, mcp_toolkit(server, name="under-test"))
    program.unlink()
    failure = await bench.failed("note", text="a")
    assert (failure.kind, bench.calls) == ("mcp_unavailable", [])
    program.symlink_to(sys.executable)
    assert isinstance(await bench("note", text="a"), Ok)
    await close_sessions()


@pytest.mark.exhaustive
def test_a_loop_that_ends_leaves_nothing(shared: McpBench) -> None:
    """A loop that ends with an open session ends its server without an asyncio warning; another loop gets its own."""
    others = shared.processes
    for text in ("a", "b"):
        assert asyncio.run(shared("note", text=text)) == Ok(value={"text": f"noted {text}"})
        assert shared.processes == others
    gc.collect()
    assert shared.calls == ["note", "note"]


@pytest.mark.exhaustive
async def test_closing_ends_the_servers(shared: McpBench) -> None:
    """After close_sessions no server runs; the next call starts one."""
    await shared("note", text="a")
    await close_sessions()
    assert shared.processes == []
    assert isinstance(await shared("note", text="b"), Ok)


def test_hints_of_a_server(shared: McpBench) -> None:
    """A real server's hints arrive: an unset effect is ``once``, and a destructive tool always asks."""
    assert (tool(shared, "wipe").effect, tool(shared, "wipe").ask) == ("once", True)
    assert (tool(shared, "browse_the_web").effect, tool(shared, "browse_the_web").ask) == ("once", True)
    assert (tool(shared, "note").effect, tool(shared, "note").ask) == ("once", None)
