"""``turngate mcp-gateway`` and its clients: what passes through unchanged, changes of the tool list, and short time-outs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.types import INVALID_PARAMS, CallToolResult, ToolListChangedNotification
from support.api.gate_client import Sender
from support.engine.stack import until
from support.mcp.gateway_client import HTTP_TOKEN, OF_CLIENT, command, connect_to, environment, text_of
from support.runner.forked_workers import below

from turngate.bridges.mcp_gateway.gateway import HttpFront, McpGateway
from turngate.client import Retries, TurngateClient
from turngate.mcp_traffic import MAX_MESSAGE
from turngate.toolkits.mcp import StdioServer

SERVER = Path(__file__).parents[1] / "support" / "mcp" / "growing_server.py"


@asynccontextmanager
async def growing(
    sender: Sender, marks: Path, *options: str, mode: Any = "legacy", on_message: Any = None, **of_gateway: Any
) -> AsyncIterator[Client]:
    """A client of a gateway in this process, in front of the growing server."""
    server = StdioServer(
        command=[sys.executable, str(SERVER), str(marks), *options], readable=[SERVER], writable=[marks]
    )
    gateway = McpGateway(sender.client, connect_to(server), name=sender.source, **of_gateway)
    async with gateway.serving(), Client(gateway.server, mode=mode, cache=None, message_handler=on_message) as client:
        yield client


def calls(marks: Path) -> list[str]:
    return (marks / "calls").read_text().split() if (marks / "calls").exists() else []


def kind_of(result: CallToolResult) -> Any:
    return (result.meta or {})["turngate/error"]["kind"]


@pytest.mark.exhaustive
async def test_what_the_server_says_passes_through(sender: Sender, tmp_path: Path) -> None:
    """A client gets the same instructions, tools and results as without the gateway."""
    async with growing(sender, tmp_path) as client:
        params = StdioServerParameters(command=sys.executable, args=[str(SERVER), str(tmp_path)])
        async with Client(stdio_client(params), mode="legacy", cache=None) as direct:
            assert client.instructions == direct.instructions == "Grow slowly."
            listed, plainly = await client.session.list_tools(), await direct.session.list_tools()
            assert listed.model_dump() == plainly.model_dump()
            calling = asyncio.create_task(client.session.call_tool("add", {}))
            await sender.decide()
            assert await calling == await direct.session.call_tool("add", {})


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mode", "options"), [("legacy", []), ("auto", []), ("legacy", ["--old"])])
async def test_a_client_learns_that_the_tools_changed(
    sender: Sender, tmp_path: Path, mode: Any, options: list[str]
) -> None:
    """It does so in the protocol with the handshake and in the one without, whichever the server uses."""
    changed = asyncio.Event()

    async def on_message(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async def listen(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as subscription:
            async for _event in subscription:
                changed.set()

    async with growing(sender, tmp_path, *options, mode=mode, on_message=on_message) as client:
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        listening = asyncio.create_task(listen(client)) if mode == "auto" else None
        calling = asyncio.create_task(client.session.call_tool("grow", {}))
        await sender.decide()
        await calling
        await asyncio.wait_for(changed.wait(), 60)
        assert "grown_3" in [tool.name for tool in (await client.session.list_tools()).tools]
        if listening is not None:
            listening.cancel()


async def done(sender: Sender, request: dict[str, Any]) -> bool:
    return (await sender.call(request)).state == "done"


@pytest.mark.parametrize("over", [False, True], ids=["still-runs", "over"])
async def test_i3_i5_a_call_outlives_the_patience_of_its_client(sender: Sender, tmp_path: Path, over: bool) -> None:
    """A time-out withdraws no call: the same call again gets its answer, before the decision and while it runs. It ran once.

    The operator reads the task that the client told in ``_meta``, because MCP has no other place for it, as the client's words.
    """
    meta: Any = {"turngate/task": "Sleep."}
    async with growing(sender, tmp_path) as client:

        async def impatient() -> None:
            with pytest.raises(MCPError, match="timed out"):
                await client.session.call_tool("nap", {}, read_timeout_seconds=1, meta=meta)

        await impatient()
        (request,) = await sender.pending()
        assert request["tasks"] == [{"agent": f"external-{sender.source}", "task": "Sleep."}]
        await client.session.list_tools()  # later than a withdrawal would be
        assert await sender.pending() == [request]
        assert (await sender.api.decide(request)).status_code == 200
        await impatient()
        await until(lambda: asyncio.sleep(0, calls(tmp_path) == ["nap"]), "start of the call")
        if over:
            (tmp_path / "awake").touch()
            await until(lambda: done(sender, request), "end of the call")
        calling = asyncio.create_task(client.session.call_tool("nap", {}, read_timeout_seconds=60, meta=meta))
        (tmp_path / "awake").touch()
        assert text_of(await calling) == "did nap"
        assert await done(sender, request)
        assert await sender.none_pending()
    assert calls(tmp_path) == ["nap"]


@pytest.mark.exhaustive
async def test_a_running_call_that_is_cancelled_leaves_the_question_to_a_person(sender: Sender, tmp_path: Path) -> None:
    """A client that cancels a running call can't know whether it happened; nor can the gateway. It saw the server's progress."""
    messages: list[str] = []

    async def on_progress(_progress: float, _total: float | None, message: str | None) -> None:
        messages.append(message or "")

    async with growing(sender, tmp_path) as client:
        calling = asyncio.create_task(client.session.call_tool("nap", {}, progress_callback=on_progress))
        await sender.decide()
        await until(lambda: asyncio.sleep(0, "1 of 2: half asleep" in messages), "progress of the server")
        assert calls(tmp_path) == ["nap"]
        calling.cancel()
        (request,) = await sender.pending()
        assert request["kind"] == "outcome"


@pytest.mark.exhaustive
async def test_a_client_may_get_the_advice_to_call_again(sender: Sender, tmp_path: Path) -> None:
    """A gateway for impatient clients answers that there is no decision yet; the same call again continues to wait."""
    async with growing(sender, tmp_path, answer_within=1) as client:
        waits = await client.session.call_tool("add", {})
        assert (waits.is_error, kind_of(waits)) == (True, "undecided")
        assert "Make the very same call again" in text_of(waits)
        await sender.decide()
        assert (await client.session.call_tool("add", {})).structured_content == {"sum": 3}
    assert calls(tmp_path) == ["add"]


@pytest.mark.exhaustive
async def test_a_persons_answer_for_a_tool_with_an_output_schema(sender: Sender, tmp_path: Path) -> None:
    """A client that checks results against the schema still gets the person's words to read."""
    async with growing(sender, tmp_path) as client:
        calling = asyncio.create_task(client.session.call_tool("add", {}))
        await sender.decide("respond", message="It is three.")
        assert "It is three." in text_of(await calling)
    assert calls(tmp_path) == []


@asynccontextmanager
async def raw_client(sender: Sender, directory: Path) -> AsyncIterator[Callable[..., Awaitable[dict[str, Any]]]]:
    """A client that writes lines to a gateway as they are, in front of the raw server; yields what sends one and reads on.

    It never closes stdin: at the end a signal ends the gateway and its server.
    """
    program = str(SERVER.with_name("raw_server.py"))
    process = await asyncio.create_subprocess_exec(
        *command(
            sender,
            "--readable",
            program,
            "--writable",
            str(directory),
            server=[sys.executable, program, str(directory)],
        ),
        env=environment(sender),
        cwd=directory,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**26,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def send(line: bytes, number: object = None) -> dict[str, Any]:
        """Send a line and return the answer with this id."""
        process.stdin.write(line + b"\n")
        async with asyncio.timeout(150):  # answers of 16 MB take their time on a busy machine
            while True:
                answer = json.loads(await process.stdout.readline())
                if "method" not in answer and answer["id"] == number:
                    return answer

    await send(opening(0), 0)
    process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    try:
        yield send
    finally:
        await ends_by_signal(process, directory)


async def ends_by_signal(process: Process, directory: Path) -> None:
    """Terminate a gateway, and wait for its end and that of its server, which has this directory in its command line."""

    def servers(pids: Iterable[int]) -> list[int]:
        matches = []
        for pid in pids:
            with suppress(OSError):  # it may end while we look
                if str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    matches.append(pid)
        return matches

    started = await until(lambda: asyncio.sleep(0, servers(below(process.pid))), "server")
    process.terminate()
    async with asyncio.timeout(120):
        assert await process.wait() == -signal.SIGTERM
    await until(lambda: asyncio.sleep(0, not servers(started)), "end of the server")


def opening(number: int) -> bytes:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "initialize", "params": params}).encode()


def called(number: int, name: str, arguments: str = "{}") -> bytes:
    call = f'{{"name":"{name}","arguments":{arguments}}}'
    return f'{{"jsonrpc":"2.0","id":{number},"method":"tools/call","params":{call}}}'.encode()


async def test_i9_whatever_client_and_server_write_is_answered(sender: Sender, tmp_path: Path) -> None:
    """Half characters are replaced, what can't be read is answered at once, and odd tools leave the others alone.

    A signal ends the gateway and its server at once, though the client keeps stdin open.
    """
    look_ahead = {"type": "object", "properties": {"email": {"type": "string", "pattern": "^(?!x)"}}}
    schemas = {"look_up": look_ahead, "slow": {}, "git_status": {"type": "object", "required": None}, "odd": None}
    tools: list[Any] = [{"name": name, "inputSchema": schema} for name, schema in schemas.items()]
    tools[1]["outputSchema"] = {"type": "object"}
    (tmp_path / "tools.json").write_text(json.dumps([*tools, "no tool"]))
    picture = b'{"type":"image","mimeType":"image/png","data":"' + b"A" * 6_000_000 + b'"}'
    (tmp_path / "slow.answer").write_bytes(b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[' + picture + b"]}}")
    half = rb'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[{"type":"text","text":"half \udc00"}]}}'
    (tmp_path / "git_status.answer").write_bytes(half)
    async with raw_client(sender, tmp_path) as send:
        listed = await send(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}', 1)
        assert [tool["name"] for tool in listed["result"]["tools"]] == ["look_up", "slow", "git_status"]
        assert listed["result"]["tools"][0]["inputSchema"] == look_ahead

        async def text(number: int, name: str, arguments: str = "{}") -> str:
            return (await send(called(number, name, arguments), number))["result"]["content"][0]["text"]

        assert await text(2, "look_up", r'{"email": "half \ud83d"}') == r'{"email": "half \ufffd"}'
        assert await text(3, "git_status") == "half \N{REPLACEMENT CHARACTER}"
        assert "no tool 'odd'" in await text(4, "odd")
        large = await send(called(5, "slow"), 5)
        assert len(large["result"]["content"][0]["data"]) == 6_000_000
        too_large = picture.replace(b'"}', b"A" * MAX_MESSAGE + b'"}')
        (tmp_path / "slow.answer").write_bytes(b'{"result":{"content":[' + too_large + b']},"jsonrpc":"2.0","id":%ID%}')
        for number in (20, 21):  # as it comes from the server, and from the record
            call = called(number, "slow").replace(b'"arguments"', b'"_meta":{"turngate/call-id":"c"},"arguments"')
            clipped = (await send(call, number))["result"]
            assert clipped["isError"]  # it doesn't fit the tool's output schema, so a client would refuse it unread
            assert "The call ran. Its answer has 22.0 MB, over the bound" in clipped["content"][0]["text"]
        assert "Nothing ran: this message has 16.0 MB" in await text(22, "look_up", '{"a":"%s"}' % ("A" * MAX_MESSAGE))
        assert (await send(called(6, "look_up", "[1]"), 6))["error"]["code"] == INVALID_PARAMS
        deep = await text(7, "look_up", '{"a":' * 300 + "1" + "}" * 300)
        assert "nests too deep" in deep, deep
        for number in ("NaN", "-Infinity", "1e999"):
            assert "is no JSON number" in await text(23, "look_up", f'{{"email": {number}}}'), number
        for line, number in {
            b"no JSON at all": None,
            b'{"jsonrpc":"2.0","id":8,"method":"tools/li': 8,
            b'{"jsonrpc":"2.0","id":9}': 9,
            b'{"id":10,"method":7}': 10,
            b"[3]": None,
            b'{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"look_up"}}': None,
            b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}': None,
        }.items():
            assert (await send(line, number))["error"]["message"].startswith("Nothing ran"), line
        batch = b'[{"jsonrpc":"2.0","id":11,"method":"ping"},{"jsonrpc":"1.0","id":12,"method":"ping"}]'
        assert (await send(batch, 12))["result"] == {}
    assert (tmp_path / "calls").read_text().split() == ["look_up", "git_status", "slow", "slow"]

    async def none_open() -> bool:
        return not (await sender.client.list_external_calls(source=sender.source)).items

    await until(none_open, "end of the last call")


@pytest.mark.exhaustive
async def test_a_signal_ends_a_gateway_whose_server_is_silent(sender: Sender, tmp_path: Path) -> None:
    """At once, though the client keeps stdin open, and the server has said nothing yet and ignores the signal."""
    process = await asyncio.create_subprocess_exec(
        *command(sender, "--writable", str(tmp_path), server=["sh", "-c", "trap '' TERM; sleep 600", str(tmp_path)]),
        env=environment(sender),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    await ends_by_signal(process, tmp_path)


async def test_i9_whatever_a_client_posts_is_answered(tmp_path: Path) -> None:
    """Over HTTP, too: what can't be read is refused at once, nothing runs, and a good request after each of them works.

    Strangers are refused: without the token, or by another name.
    """
    (tmp_path / "tools.json").write_text('[{"name": "look_up", "inputSchema": {"type": "object"}}]')
    program = SERVER.with_name("raw_server.py")
    server = StdioServer(command=[sys.executable, str(program), str(tmp_path)], readable=[program], writable=[tmp_path])
    nowhere = TurngateClient("http://127.0.0.1:1", token="none", retries=Retries(attempts=1))
    gateway = McpGateway(nowhere, connect_to(server), name="over-http")
    app = gateway.web_app()
    headers = {**OF_CLIENT, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    async with (
        nowhere,
        gateway.serving(),
        app.router.lifespan_context(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(HttpFront(app, HTTP_TOKEN)),
            base_url="http://127.0.0.1:9000",
            headers=headers,
            timeout=60,
        ) as http,
    ):
        for name, value in (("Authorization", "Bearer another"), ("Host", "a.example"), ("Origin", "http://a.example")):
            refused = await http.post("/mcp", content=opening(0), headers={name: value})
            assert refused.status_code in {401, 403, 421}, (name, refused.text)
        http.headers["Mcp-Session-Id"] = (await http.post("/mcp", content=opening(0))).headers["Mcp-Session-Id"]

        async def posted(body: bytes) -> str:
            answer = await http.post("/mcp", content=body)
            listed = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 9, "method": "tools/list"})
            assert '"look_up"' in listed.text, body[:100]
            assert answer.status_code in {200, 400}, (body[:100], answer.text)
            return answer.text

        for body in (
            called(1, "look_up", r'{"a": "half \ud83d"}'),  # read as U+FFFD
            called(1, "look_up", '{"a": "?"}').replace(b"?", b"\xed\xa0\x80"),
            called(1, "look_up", '{"a": %s}' % ("9" * 5_000)),
            called(1, "look_up", '{"a": "%s"}' % ("x" * 5_000_000)),
            called(1, "look_up").replace(b'"id":1', b'"id":1.0'),
            b'{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"look_up"}}',
            b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"look_up"}}]',
        ):
            assert "The call did not run" in await posted(body), body[:100]
        for body in (
            called(1, "look_up", '{"a":' * 300 + "1" + "}" * 300),
            called(1, "look_up", "[" * 100_000),
            called(1, "look_up", '{"a": "%s"}' % ("x" * MAX_MESSAGE)),
            called(1, "look_up").replace(b'"id":1', b'"id":1.5'),
            called(1, "look_up").replace(b'"id":1', b'"id":true'),
            called(1, "look_up").replace(b'"id":1', b'"id":null'),
            b"",
            b"no JSON at all",
            b"3",
            b"[]",
            b"{}",
            b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]',
            b'{"jsonrpc":"2.0","id":1,"method":"tools/li',
            b'{"jsonrpc":"2.0","id":1}',
            b'{"jsonrpc":"2.0","id":1,"method":7}',
        ):
            assert "Nothing ran" in await posted(body), body[:100]
        assert str(INVALID_PARAMS) in await posted(called(1, "look_up", "[1]"))
    assert calls(tmp_path) == []
