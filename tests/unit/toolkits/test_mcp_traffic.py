"""What MCP servers send that the SDK can't read: answers of a call, and lists of tools."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.mcp_calls import McpBench

from turngate import Agent, App, Ok
from turngate.activities.execution.executor import Unknown
from turngate.cli import builders_app
from turngate.domain.errors import ConfigurationError
from turngate.mcp_traffic import read_leniently
from turngate.runtime.app_loader import check_app
from turngate.toolkits.mcp import StdioServer, mcp_toolkit
from turngate.toolkits.mcp_servers.declared import acceptable_names

SERVER = Path(__file__).parents[2] / "support" / "raw_mcp_server.py"
OBJECT: dict[str, Any] = {"type": "object"}
LOOK_AHEAD = r"^(?!\.)[a-z.]+@[a-z]+$"


def text_answer(text: str, start: str = '"jsonrpc":"2.0","id":%ID%') -> bytes:
    return f'{{{start},"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}'.encode()


READ: dict[str, tuple[bytes, Any]] = {
    "half": (text_answer(r"page \ud83d title"), {"text": "page \N{REPLACEMENT CHARACTER} title"}),
    "pair": (text_answer(r"\ud83d\ude00 \udc00"), {"text": "\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"}),
    "bytes": (text_answer("caf\\u00e9 ").replace(b" ", b"\xe9"), {"text": "café\N{REPLACEMENT CHARACTER}"}),
    "version": (text_answer("old", '"jsonrpc":"1.0","id":%ID%'), {"text": "old"}),
    "no_version": (text_answer("bare", '"id":%ID%'), {"text": "bare"}),
    "text_id": (text_answer("as text", '"jsonrpc":"2.0","id":"%ID%"'), {"text": "as text"}),
    "twice": (text_answer("last", '"jsonrpc":"2.0","id":%ID%,"result":{}'), {"text": "last"}),
    "batch": (b"[" + text_answer("in a batch") + b"]", {"text": "in a batch"}),
    "chatty": (b"Done!\n{}\n[]\n42\n\n" + text_answer("after noise"), {"text": "after noise"}),
    "number": (
        b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[],"structuredContent":{"n":' + b"9" * 5000 + b"}}}",
        {"n": "9" * 5000},
    ),
    "not_a_number": (
        b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[],"structuredContent":{"n":NaN,"half":"\\ud83d"}}}',
        {"n": "NaN", "half": "\N{REPLACEMENT CHARACTER}"},
    ),
}
LOST: dict[str, bytes] = {
    "cut": b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[{"type":"te',
    "no_id": text_answer("whose", '"jsonrpc":"2.0"'),
    "null_id": text_answer("whose", '"jsonrpc":"2.0","id":null'),
    "no_object": b'{"jsonrpc":"2.0","id":%ID%,"result":"done"}',
    "null": b'{"jsonrpc":"2.0","id":%ID%,"result":null}',
    "neither": b'{"jsonrpc":"2.0","id":%ID%}',
    "empty": b'{"jsonrpc":"2.0","id":%ID%,"result":{}}',
    "deep": b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[],"structuredContent":'
    + b'{"a":' * 900
    + b"1"
    + b"}" * 902,
    "odd_content": b'{"jsonrpc":"2.0","id":%ID%,"result":{"content":[{"type":"hologram"}]}}',
}


def bench(directory: Path, tools: list[Any], **options: Any) -> McpBench:
    (directory / "tools.json").write_text(json.dumps(tools))
    server = StdioServer(command=[sys.executable, str(SERVER), str(directory)], readable=[SERVER], writable=[directory])
    return McpBench(directory, mcp_toolkit(server, name="raw", **options))


async def test_an_answer_that_the_sdk_cannot_read_is_delivered_or_lost_at_once(tmp_path: Path) -> None:
    """What is wrong is replaced or ignored; only an answer that says nothing leaves open whether the call happened."""
    for name, answer in {**{name: answer for name, (answer, _value) in READ.items()}, **LOST}.items():
        (tmp_path / f"{name}.answer").write_bytes(answer)
    raw = bench(tmp_path, [{"name": name, "inputSchema": OBJECT} for name in (*READ, *LOST)])
    began = time.monotonic()
    for name, (_answer, value) in READ.items():
        assert await raw(name) == Ok(value=value), name
    for name in LOST:
        result = await raw(name)
        assert isinstance(result, Unknown), name
        assert "no answer that can be read" in result.why, name
    deep: object = "deep"
    for _level in range(300):
        deep = {"a": deep}
    for arguments in ({"a": "half \ud83d"}, {"a": deep}):
        assert (await raw.failed("half", **arguments)).kind != "unknown", arguments
    assert raw.calls == [*READ, *LOST]
    assert time.monotonic() - began < 60


ODD: dict[str, Any] = {
    "null_required": {**OBJECT, "required": None},
    "look_ahead": {**OBJECT, "properties": {"email": {"type": "string", "pattern": LOOK_AHEAD}}, "required": ["email"]},
    "elsewhere": {**OBJECT, "properties": {"a": {"$ref": "https://example.com/a.json"}}},
    "circle": {**OBJECT, "properties": {"a": {"$ref": "#/properties/a"}}},
    "no_type_of_ours": {**OBJECT, "properties": {"a": {"type": "money"}}},
    "huge": {**OBJECT, "properties": {f"a{number}": {"type": "string"} for number in range(20_000)}},
}
UNREADABLE: dict[str, Any] = {"a_text": "object", "a_number": {"type": "number"}, "none": None}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> McpBench:
    """A server with one good tool among odd ones."""
    tools = [{"name": name, "inputSchema": schema} for name, schema in {**ODD, **UNREADABLE, "empty": {}}.items()]
    tools += [{"inputSchema": OBJECT}, "no tool", {"name": "empty", "inputSchema": OBJECT}]
    tools += [
        {"name": "bad_hints", "inputSchema": OBJECT, "annotations": "safe"},
        {"name": "good", "inputSchema": OBJECT},
    ]
    return bench(tmp_path_factory.mktemp("odd"), tools, ask=False)


async def test_one_odd_tool_leaves_the_others_alone(odd: McpBench) -> None:
    """It is left out, or offered with what can be checked; then a person is asked, whatever is declared. Doctor names it."""
    assert odd.kit.names == [*ODD, "empty", "good"]
    for name in odd.kit.names:
        tool = odd.kit.find(name)
        assert tool is not None
        assert tool.ask is (False if name in ("empty", "good") else None), name
    assert await odd("look_ahead", email=".a@b") == Ok(value={"text": '{"email": ".a@b"}'})
    assert (await odd.failed("look_ahead", email=1)).kind == "input_validation_error"
    assert await odd("circle", a=[1]) == Ok(value={"text": '{"a": [1]}'})
    agent = Agent(name="clerk", instructions="", toolkit=odd.kit, model="scripted:s")
    lines = list(builders_app.warnings(check_app(App(agents=[agent]), base=Path())))
    for name in (*ODD, *UNREADABLE, "bad_hints", "number 11", "number 12"):
        assert any(f"the tool {name!r} " in line for line in lines), (name, lines)


def test_a_server_without_one_usable_tool_is_named(tmp_path: Path) -> None:
    """No tool of any agent leads to it then, and the doctor says why all the same."""
    kit = bench(tmp_path, [{"name": f"lost {each}", "inputSchema": None} for each in range(2)]).kit
    assert kit.names == []
    agent = Agent(name="clerk", instructions="", toolkit=kit, model="scripted:s")
    lines = list(builders_app.warnings(check_app(App(agents=[agent]), base=Path())))
    for each in range(2):
        assert any(f"the tool 'lost {each}' is left out" in line for line in lines), lines


def test_a_tool_that_allow_names_must_be_readable(tmp_path: Path) -> None:
    """The error names the tool and the fix; a tool that allow doesn't name stops nothing."""
    tools = [{"name": "odd", "inputSchema": None}, {"name": "good", "inputSchema": OBJECT}]
    assert bench(tmp_path, tools, allow=["good"]).kit.names == ["good"]
    with pytest.raises(ConfigurationError, match=r"allow names 'odd', which is left out: .*Take it out of allow"):
        bench(tmp_path, tools, allow=["odd", "good"])


def test_no_two_names_become_one() -> None:
    """Of names that would be one, those that had to be changed end in a digest, in whatever order they are listed."""
    names = ["a.b", "a/b", "a_b", "c.d"]
    accepted = acceptable_names(names)
    assert (accepted["a_b"], accepted["c.d"]) == ("a_b", "c_d")
    assert accepted == acceptable_names(names[::-1])
    assert len(set(accepted.values())) == 4


async def test_an_http_answer_with_half_a_character_can_be_read() -> None:
    """In JSON and in a stream of events, in whatever pieces it comes; everything else stays byte for byte."""
    half = b'{"a":"\\ud83d","n":1.10}\n'
    events = b": ping\n\nevent: message\r\ndata: " + half + b"\n" + b'data: {"b":"\\u00e9"}\n\n'

    async def body(whole: bytes) -> Any:
        for at in range(0, len(whole), 3):
            yield whole[at : at + 3]

    for whole in (half, events):
        transport = httpx2.MockTransport(lambda _request, whole=whole: httpx2.Response(200, content=body(whole)))
        async with httpx2.AsyncClient(transport=transport, event_hooks={"response": [read_leniently]}) as client:
            received = (await client.get("http://server")).content
        assert received == whole.replace(half, b'{"a": "\\ufffd", "n": 1.1}\n')
