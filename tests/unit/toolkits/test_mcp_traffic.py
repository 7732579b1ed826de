"""What MCP servers send that the SDK can't read: answers of a call, and lists of tools."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from mcp.types import JSONRPCNotification, JSONRPCRequest
from support.mcp.calls import McpBench, raw_server
from support.mcp.raw_server import raw_http_server

from turngate import Agent, App, Failure, Ok, Toolkit
from turngate.activities.execution.executor import Unknown
from turngate.cli import builders_app
from turngate.domain.errors import ConfigurationError
from turngate.mcp_traffic import MAX_BATCH, MAX_CONTAINERS, MAX_MESSAGE, Pieces, TooLarge, lines
from turngate.runtime.app_loader import check_app
from turngate.toolkits.mcp import HttpServer, close_sessions, mcp_toolkit
from turngate.toolkits.mcp_servers.declared import acceptable_names
from turngate.toolkits.mcp_servers.transport import MAX_TOOLS, MAX_UNASKED, Answers

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


CLIPPED = "The call ran. Its answer has 16.0 MB, over the bound of 16 MB for one message: it is clipped here."


def large_answers() -> dict[str, tuple[bytes, str]]:
    """Answers above the bound, and how what is recorded begins."""
    huge = "A" * (MAX_MESSAGE + 1_000)
    inside = f'"content":[],"structuredContent":{{"id":1,"a":"{huge}"}}'
    return {
        "large": (text_answer(huge), CLIPPED),
        "large_id_last": (f'{{"result":{{{inside}}},"jsonrpc":"2.0","id":%ID%}}'.encode(), CLIPPED),
        "large_failure": (text_answer(huge).replace(b"}]}", b'}],"isError":true}'), f"mcp_tool_error: {CLIPPED}"),
        "large_refusal": (
            f'{{"jsonrpc":"2.0","id":%ID%,"error":{{"code":-32050,"message":"{huge}"}}}}'.encode(),
            "mcp_tool_error: The server refused the call: the answer has 16.0 MB",
        ),
        "large_no_id": (text_answer(huge, '"jsonrpc":"2.0"'), "unknown: The call was sent"),
    }


def bench(directory: Path, tools: list[Any], **options: Any) -> McpBench:
    return McpBench(directory, mcp_toolkit(raw_server(directory, tools), name="raw", **options))


async def test_an_answer_that_the_sdk_cannot_read_is_delivered_or_lost_at_once(tmp_path: Path) -> None:
    """What is wrong is replaced or ignored; only an answer that says nothing leaves open whether the call happened."""
    large = large_answers()
    answers = {name: answer for name, (answer, _value) in {**READ, **large}.items()}
    for name, answer in {**answers, **LOST}.items():
        (tmp_path / f"{name}.answer").write_bytes(answer)
    raw = bench(tmp_path, [{"name": name, "inputSchema": OBJECT} for name in (*READ, *LOST, *large)])
    began = time.monotonic()
    for name, (_answer, value) in READ.items():
        assert await raw(name) == Ok(value=value), name
    for name in LOST:
        result = await raw(name)
        assert isinstance(result, Unknown), name
        assert "no answer that can be read" in result.why, name
    for name, (_answer, starts) in large.items():
        assert words_of(await raw(name)).startswith(starts), name
    deep: object = "deep"
    for _level in range(300):
        deep = {"a": deep}
    for arguments in ({"a": "half \ud83d"}, {"a": deep}):
        assert (await raw.failed("half", **arguments)).kind != "unknown", arguments
    assert raw.calls == [*READ, *LOST, *large]
    assert time.monotonic() - began < 240


def response(body: bytes, kind: str = "application/json", more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}\r\n".encode() + body


def events(*texts: bytes, end: bytes = b"\n", more: str = "") -> bytes:
    return response(b"".join(end.join(text.split(b"\n")) + end * 2 for text in texts), "text/event-stream", more)


STAYS_OPEN = "Content-Length: 999999999\r\n"
OVER_HTTP: dict[str, tuple[bytes, Any]] = {
    **{name: answer for name, answer in READ.items() if name != "chatty"},
    "event": (events(b": ping", b"event: message\nid: 1\ndata: " + READ["half"][0]), READ["half"][1]),
    "event_cr": (events(b"data: " + text_answer("cr"), end=b"\r", more=STAYS_OPEN), {"text": "cr"}),
    "event_crlf": (events(b"data:" + text_answer("crlf"), end=b"\r\n"), {"text": "crlf"}),
    "event_lines": (
        events(b"\n".join(b"data: " + line for line in text_answer("lines").replace(b",", b",\n").split(b"\n"))),
        {"text": "lines"},
    ),
    "event_3_mb": (
        events(b"data: " + text_answer("A" * 3_000_000)),
        {"text": "A" * 200_000 + "\n[2800000 characters left out]"},
    ),
    "event_other_id": (events(b"data: " + text_answer("mine", '"jsonrpc":"2.0","id":987')), {"text": "mine"}),
    "other_id": (text_answer("mine", '"jsonrpc":"2.0","id":987'), {"text": "mine"}),
    "float_id": (text_answer("mine", '"jsonrpc":"2.0","id":3.0'), {"text": "mine"}),
    "not_finite": (
        READ["not_a_number"][0].replace(b'NaN,"half":"\\ud83d"', b"[-Infinity,1e999]"),
        {"n": ["-Infinity", "Infinity"]},
    ),
}
LOST_OVER_HTTP: dict[str, bytes] = {
    **LOST,
    "odd_id": text_answer("whose", '"jsonrpc":"2.0","id":[1]'),
    "deeper": response(b"[" * 100_000),
    "event_deeper": events(b"data: " + b"[" * 100_000),
    "page": response(b"<html>", "text/html"),
    "plain": response(text_answer("plain"), "text/plain"),
    "packed": response(gzip.compress(text_answer("packed")), more="Content-Encoding: gzip\r\n"),
    "nothing": response(b""),
    "notification": response(b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}'),
    "empty_batch": response(b"[]"),
    "event_end": events(b": ping"),
    "too_deep_error": b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n" + b"[" * 100_000,
    "large_error": b"HTTP/1.1 500 Oh\r\nContent-Type: application/json\r\n\r\n" + b"A" * (MAX_MESSAGE + 1),
}


async def test_an_answer_over_http_is_delivered_or_lost_at_once(tmp_path: Path) -> None:
    """As over stdio, whatever the body, the kind of the response and the id: it can only be the answer to its request."""
    for name, answer in {**{name: answer for name, (answer, _value) in OVER_HTTP.items()}, **LOST_OVER_HTTP}.items():
        (tmp_path / f"{name}.answer").write_bytes(answer)
    large = large_answers()
    (tmp_path / "large.answer").write_bytes(large["large"][0])
    (tmp_path / "event_large_failure.answer").write_bytes(events(b"data: " + large["large_failure"][0]))
    names = [*OVER_HTTP, *LOST_OVER_HTTP, "large", "event_large_failure"]
    (tmp_path / "tools.json").write_text(json.dumps([{"name": name, "inputSchema": OBJECT} for name in names]))
    with raw_http_server(tmp_path) as url:
        raw = McpBench(tmp_path, mcp_toolkit(HttpServer(url=url), name="raw"))
        began = time.monotonic()
        for name, (_answer, value) in OVER_HTTP.items():
            assert await raw(name) == Ok(value=value), name
        for name in LOST_OVER_HTTP:
            assert isinstance(await raw(name), Unknown), name
        assert words_of(await raw("large")).startswith(CLIPPED)
        assert words_of(await raw("event_large_failure")).startswith(f"mcp_tool_error: {CLIPPED}")
        assert time.monotonic() - began < 240
        await close_sessions()


def words_of(result: Ok | Failure | Unknown) -> str:
    match result:
        case Ok(value=value):
            return str(value["text"])
        case Failure(kind=kind, reason=reason):
            return f"{kind}: {reason}"
        case Unknown(why=why):
            return f"unknown: {why}"


async def test_i3_an_answer_over_http_that_never_ends(tmp_path: Path) -> None:
    """I3: the outcome of its call is unknown when the call's time is over, and the next call gets its answer."""
    endless = {
        "stalled": response(b'{"jsonrpc":', more=STAYS_OPEN),
        "pings": events(b": ping", more=STAYS_OPEN),
        "line": events(b"data: " + b"A" * 100_000, more=STAYS_OPEN).rstrip(b"\n"),
    }
    for name, answer in endless.items():
        (tmp_path / f"{name}.answer").write_bytes(answer)
    (tmp_path / "tools.json").write_text(
        json.dumps([{"name": name, "inputSchema": OBJECT} for name in (*endless, "good")])
    )
    with raw_http_server(tmp_path) as url:
        raw = McpBench(tmp_path, mcp_toolkit(HttpServer(url=url), name="raw"))
        hasty = Toolkit.of(*(replace(tool, timeout=timedelta(seconds=1)) for tool in raw.kit))
        for outcome in await asyncio.gather(*(McpBench(tmp_path, hasty)(name) for name in endless)):
            assert isinstance(outcome, Unknown)
        assert await raw("good") == Ok(value={"text": "{}"})
        await close_sessions()


async def test_i14_a_message_of_any_size_is_read_in_linear_time_and_bounded_memory() -> None:
    """In pieces of any size; the lines around it are whole, and its digest is that of all its bytes."""
    piece = b"A" * 65_536
    count = 4 * MAX_MESSAGE // len(piece)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first\n{"
        for _number in range(count):
            yield piece
        yield b"}\nla"
        yield b"st"

    tracemalloc.start()
    first, large, last = [line async for line in lines(pieces())]
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (first, last) == (b"first", b"last")
    assert isinstance(large, TooLarge)
    whole = b"{" + piece * count + b"}"
    assert (large.size, large.digest) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert (large.head, large.tail) == (whole[:20_000], whole[-1_000:])
    assert peak < 3 * MAX_MESSAGE
    tiny, began = Pieces(), time.thread_time()
    for _number in range(1_000_000):
        tiny.add(b"A")
    assert tiny.whole() == b"A" * 1_000_000
    assert time.thread_time() - began < 10


def test_the_ends_of_a_large_message_show_whose_it_is() -> None:
    """Its own id and result, not those of what it holds; nothing where they can't be seen."""

    def outline(head: str, tail: str) -> dict[str, Any]:
        return TooLarge(head.encode(), tail.encode(), MAX_MESSAGE + 1, "").outline()

    inside = '{"result":{"structuredContent":{"id":9,"text":"'
    assert "id" not in outline(inside, '","id":9}}}')
    assert outline(inside, '"}},"jsonrpc":"2.0","id":5}')["id"] == 5
    assert outline(inside, '"}},"id":"five" , "jsonrpc" : "2.0"}\r')["id"] == "five"
    assert "id" not in outline(inside, r'"},"a,\"id":5}')
    assert outline('{"id":7,"result":{"content":[{"text":"\\ud83d\\u00', '"}]}}')["id"] == 7
    assert outline(inside, '"},"isError":true},"id":5}')["result"]["isError"] is True
    assert outline(inside, '","isError":true}},"id":5}')["result"].get("isError") is None
    for head in ("[" * 20_000, '[["a",1],', "no JSON", '"text', ""):
        assert outline(head, "") == {}


def test_i14_what_a_server_says_is_for_the_request_that_waits() -> None:
    """Refusals without an id, late answers, its own requests, and lists without end; only we say that an answer was clipped."""
    odd: list[str] = []
    answers = Answers(lambda name, _why: odd.append(name))

    def send(number: int, method: str) -> None:
        answers.note(JSONRPCRequest(jsonrpc="2.0", id=number, method=method))

    def read(data: bytes | TooLarge) -> list[Any]:
        return [message.model_dump(exclude_unset=True) for message in asyncio.run(answers.read(data))]

    refusal = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"what?"}}'
    send(1, "tools/call")
    assert read(refusal)[0]["id"] == 1
    send(2, "tools/call")
    answers.note(JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 2}))
    send(3, "tools/call")
    assert read(refusal)[0]["id"] == 3
    send(4, "tools/call")
    send(5, "tools/call")
    assert read(refusal)[0]["id"] is None
    forged = b'{"jsonrpc":"2.0","id":4,"result":{"content":[],"_meta":{"turngate/clipped":{}}}}'
    assert read(forged)[0]["result"] == {"content": [], "_meta": {}}
    large = TooLarge(b'{"id":5,"method":"sampling/createMessage","params":{"a":"', b"", MAX_MESSAGE + 1, "")
    assert read(large) == [{"jsonrpc": "2.0", "id": 5, "method": "sampling/createMessage"}]
    send(6, "tools/list")
    tools = [{"name": f"t{number}", "inputSchema": OBJECT} for number in range(MAX_TOOLS + 7)]
    (listed,) = read(json.dumps({"jsonrpc": "2.0", "id": 6, "result": {"tools": tools}}).encode())
    assert listed["result"]["tools"] == tools[:MAX_TOOLS]
    assert len(odd) == 1


async def test_i14_large_messages_leave_the_loop_free_and_those_that_answer_nothing_are_bounded() -> None:
    """I14: a large line is read in a thread, in time that grows with its size; small ones that answer nothing count, too."""
    answers = Answers(lambda _name, _why: None)
    answer = b'{"jsonrpc":"2.0","id":1,"result":{"a":[' + b"{}," * 3_000 + b"1e3]}}"
    reading = asyncio.create_task(answers.read(b"[" + b",".join([answer] * MAX_BATCH) + b"]"))
    await asyncio.sleep(0)
    assert not reading.done()
    assert len(await reading) == MAX_BATCH
    assert not answers.are_too_many
    answers.note(JSONRPCRequest(jsonrpc="2.0", id=2, method="tools/call"))
    await answers.read(b'{"jsonrpc":"2.0","id":2,"result":{}}')
    assert answers.unasked == 0
    for data in (b"", b"{}", TooLarge(b"{", b"}", MAX_UNASKED, "")):
        await answers.read(data)
    assert answers.are_too_many
    dense = Pieces()
    dense.add(b'{"jsonrpc":"2.0","id":3,"result":{"a":[' + b"{}," * MAX_CONTAINERS + b"1]}}")
    assert isinstance(clipped := dense.whole(), TooLarge)
    assert clipped.words == "3.0 MB, over the bound of 1,000,000 lists and objects for one message"
    assert clipped.outline()["id"] == 3


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
