"""Streamed completions: the same response as a whole one, however it is cut; and what may go wrong in a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.servers.fake_provider import STREAM_END, FakeProvider, chunk, completion, tool_call

from turngate.domain.contract import MODEL_REQUEST_SECONDS
from turngate.domain.conversation.messages import (
    Delta,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    Usage,
    user_message,
)
from turngate.domain.errors import ModelError
from turngate.models import ModelRequest, OpenAICompatibleModel, StreamingModel
from turngate.models.openai.response import model_response, parse_completion
from turngate.models.openai.stream import StreamedCompletion, read_stream
from turngate.models.patience import MOST_SECONDS, listening

REQUEST = ModelRequest(messages=[user_message("hi")])
TEXTS = st.text(st.sampled_from('ab \n\r\t\u2028\x85\x0b"\\é€😀\u202e<'), max_size=12)
ARGUMENTS = st.dictionaries(st.sampled_from("xyz"), TEXTS | st.integers(0, 9) | st.none(), max_size=3)


class Bytes(httpx.AsyncByteStream):
    """Split a body as a network might."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


async def streamed(pieces: Sequence[bytes]) -> tuple[ModelResponse, list[Delta]]:
    deltas: list[Delta] = []
    response = httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Bytes(pieces))
    return model_response(await read_stream(response, deltas.append, silence=5), model="m"), deltas


def as_watched(deltas: Sequence[Delta]) -> list[tuple[str, str, str]]:
    """Return kind, name and text of each part, joined as a watcher joins them."""
    parts: dict[int, list[str]] = {}
    for delta in deltas:
        part = parts.setdefault(delta.part, [delta.kind, "", ""])
        part[1] += delta.tool_name
        part[2] += delta.text
    assert list(parts) == sorted(parts)
    return [(part[0], part[1], part[2]) for part in parts.values()]


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """A whole completion with everything that gateways put into one."""
    more: dict[str, Any] = {}
    if key := draw(st.sampled_from(["", "reasoning_content", "reasoning"])):
        more[key] = draw(TEXTS)
    if draw(st.booleans()):
        text = {"type": "reasoning.text", "text": draw(TEXTS), "signature": "c2ln", "format": "f", "index": 0}
        sealed = {"type": "reasoning.encrypted", "data": "gAA/+", "id": "r1", "index": 1}
        more["reasoning_details"] = [text, sealed]
    if draw(st.booleans()):
        more["refusal"] = draw(TEXTS)
    calls = [
        tool_call(f"tool_{place}", json.dumps(arguments, ensure_ascii=False), call_id=f"c{place}", **extra)
        for place, arguments in enumerate(draw(st.lists(ARGUMENTS, max_size=3)))
        for extra in ({"extra_content": {"google": {"thought_signature": f"s{place}/+=="}}}, {})[
            place % 2 : place % 2 + 1
        ]
    ]
    reason = draw(st.sampled_from([None, "length", "content_filter"]))
    return completion(draw(TEXTS), calls=calls, finish_reason=reason, **more)


def fragments(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def chunkings(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    """A completion, and one of the many streams that a server may send for it."""
    body = draw(answers())
    choice = body["choices"][0]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key, value in choice["message"].items():
        if key == "reasoning_details":
            text, sealed = value
            pieces = fragments(draw, text["text"])
            last = len(pieces) - 1
            for at, piece in enumerate(pieces):
                entry = {"type": text["type"], "text": piece, "format": "f", "index": 0}
                deltas.append({key: [{**entry, "signature": "c2ln" if at == last else None}]})
            deltas.append({key: [sealed]})
        elif key == "tool_calls":
            deltas += _call_deltas(draw, value)
        elif key != "role" and value is not None:
            deltas += [{key: piece} for piece in fragments(draw, value)]
    sent = [chunk(delta) for delta in deltas]
    if draw(st.booleans()):
        sent.append(chunk({}, finish_reason=choice["finish_reason"]) + chunk(usage=body["usage"]))
    else:
        sent.append(chunk({}, finish_reason=choice["finish_reason"], usage=body["usage"]))
    text = b"".join([b": keep-alive\n\n", *sent, STREAM_END])
    if draw(st.booleans()):  # without escapes: characters may be cut in two, and U+2028 ends no line
        text = b"".join(
            b"data: " + json.dumps(json.loads(line[6:]), ensure_ascii=False).encode() + b"\n\n"
            for line in text.split(b"\n\n")
            if line.startswith(b"data: {")
        )
    ending = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    text = text.replace(b"\n", ending)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return body, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]


def _call_deltas(draw: st.DrawFn, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls' pieces, identified in the ways of different servers."""
    how = draw(st.sampled_from(["index", "index again", "id again", "one index", "no index", "whole"]))
    deltas: list[dict[str, Any]] = []
    for place, call in enumerate(calls):
        arguments = (
            [call["function"]["arguments"]] if how == "whole" else fragments(draw, call["function"]["arguments"])
        )
        for at, piece in enumerate(arguments):
            entry: dict[str, Any] = {"function": {"arguments": piece}}
            if at == 0 or how == "id again":
                entry |= {key: value for key, value in call.items() if key != "function"}
                entry["function"]["name"] = call["function"]["name"]
            if how == "index again":
                entry["function"]["name"] = call["function"]["name"]
            if how == "one index":
                entry["index"] = 0
            elif how != "no index":
                entry["index"] = place
            deltas.append({"content": None, "tool_calls": [entry]})
    return deltas


@pytest.mark.exhaustive
@settings(max_examples=150, deadline=None)
@given(chunkings())
def test_a_streamed_response_is_the_one_that_comes_whole(drawn: tuple[dict[str, Any], list[bytes]]) -> None:
    """For any cut: same parts, raw inputs, opaque fields, usage and finish reason; and watchers get every word."""
    body, pieces = drawn
    whole = model_response(parse_completion(json.dumps(body).encode()), model="m")
    response, deltas = asyncio.run(streamed(pieces))
    assert response == whole
    parts = [
        ("tool-call", part.tool_name, part.input) if isinstance(part, ToolCallPart) else (part.type, "", part.text)
        for part in whole.message.parts
        if isinstance(part, ToolCallPart | TextPart | ReasoningPart)
    ]
    assert sorted(as_watched(deltas)) == sorted(parts)


CALL = {"type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}
FINISH = chunk({}, finish_reason="tool_calls")


@pytest.mark.parametrize(
    ("entries", "calls"),
    [
        # Gemini's and Ollama's endpoints: whole calls, each with index 0 and an id of its own.
        ([{**CALL, "index": 0, "id": "a"}, {**CALL, "index": 0, "id": "b"}], [("a", '{"a":1}'), ("b", '{"a":1}')]),
        # The same without ids, and without an index.
        ([{**CALL, "index": 0}, {**CALL, "index": 0}], [("", '{"a":1}')] * 2),
        ([CALL, CALL], [("", '{"a":1}')] * 2),
        # Ollama's own form has an object for its arguments.
        ([{"index": 0, "id": "a", "function": {"name": "look", "arguments": {"a": 1}}}], [("a", '{"a": 1}')]),
        # Pieces that say nothing of where they belong continue the last call.
        (
            [{"id": "a", "function": {"name": "look", "arguments": ""}}, {"function": {"arguments": "{}"}}],
            [("a", "{}")],
        ),
        # Later pieces whose id is empty.
        (
            [
                {"index": 0, "id": "a", "function": {"name": "look"}},
                {"index": 0, "id": "", "function": {"arguments": "{"}},
            ],
            [("a", "{")],
        ),
        # One id for two calls: the engine mints the second one's.
        (
            [
                {**CALL, "index": 0, "id": "a"},
                {"index": 1, "id": "a", "function": {"name": "look", "arguments": "{"}},
                {"index": 1, "id": "a", "function": {"name": "look", "arguments": "}"}},
            ],
            [("a", '{"a":1}'), ("a", "{}")],
        ),
        # Two calls whose pieces alternate.
        (
            [
                {"index": 0, "id": "a", "function": {"name": "look", "arguments": "1"}},
                {"index": 1, "id": "b", "function": {"name": "look", "arguments": "2"}},
                {"index": 0, "function": {"arguments": "3"}},
                {"index": 1, "function": {"arguments": "4"}},
            ],
            [("a", "13"), ("b", "24")],
        ),
    ],
)
async def test_pieces_find_their_call(entries: list[dict[str, Any]], calls: list[tuple[str, str]]) -> None:
    """Index, id or order identifies a call, as far as the server sends them; two calls are never merged."""
    response, _ = await streamed([chunk({"tool_calls": [entry]}) for entry in entries] + [FINISH])
    assert [(call.tool_call_id, call.input) for call in response.message.calls] == calls
    assert {call.tool_name for call in response.message.calls} == {"look"}


async def test_blocks_of_content_are_joined() -> None:
    """Mistral thinks in blocks and then continues in plain text: the stored content is that of a whole response."""
    think = [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": word}]}]} for word in ("h", "m")]
    response, deltas = await streamed([*map(chunk, [*think, {"content": "4"}, {"content": "2"}]), FINISH])
    blocks = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "42"}]
    body = completion(finish_reason="tool_calls")
    body["choices"][0]["message"]["content"] = blocks
    whole = model_response(parse_completion(json.dumps(body).encode()), model="m")
    assert response.message == whole.message
    assert as_watched(deltas) == [("reasoning", "", "hm"), ("text", "", "42")]


async def test_groqs_own_field_counts_in_a_stream() -> None:
    """Its last chunk has the counts there, beside an empty or no ``usage``."""
    counts = {"id": "req_1", "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    last = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": counts})
    response, _ = await streamed([chunk({"content": "Hi"}), f"data: {last}\n\n".encode(), STREAM_END])
    assert response.usage == Usage(input_tokens=5, output_tokens=3)


async def test_halves_of_a_character_are_shown_together() -> None:
    """A surrogate pair that was escaped in two chunks is one character, shown and stored."""
    response, deltas = await streamed([chunk({"content": "a\ud83d"}), chunk({"content": "\ude00b"}), FINISH])
    assert response.message.text == "a😀b"
    assert [delta.text for delta in deltas] == ["a", "😀b"]


@pytest.mark.parametrize(
    ("pieces", "error_class", "retryable"),
    [
        ([], "bad_response", True),
        ([chunk({"content": "half"})], "bad_response", True),
        ([chunk({"tool_calls": [{**CALL, "index": 0, "id": "a"}]})], "bad_response", True),
        ([chunk({"content": "half"}), b"data: {oops\n\n"], "bad_response", True),
        ([b"data: [1]\n\n"], "bad_response", True),
        ([chunk({"content": "half"}), b'data: {"error": {"message": "slow", "code": 429}}\n\n'], "rate_limited", True),
        ([b'event: error\ndata: {"message": "no", "code": 401}\n\n'], "authentication", False),
        (
            [chunk({"content": "half"}, finish_reason="error", error={"message": "x", "code": 502})],
            "server_error",
            True,
        ),
        ([chunk({"content": "half"}, finish_reason="error")], "server_error", True),
        (
            [chunk({"content": "half"}, error={"message": "too long", "code": "context_length_exceeded"})],
            "context_length",
            False,
        ),
    ],
)
async def test_a_stream_that_is_not_whole_is_an_error(
    model: OpenAICompatibleModel, provider: FakeProvider, pieces: list[bytes], error_class: str, *, retryable: bool
) -> None:
    """Cut off, unreadable, or with an error inside: none of it is returned, whatever it contained before."""
    provider.stream(*pieces)
    with pytest.raises(ModelError) as caught:
        await model.stream(REQUEST, lambda _delta: None)
    assert (caught.value.error_class, caught.value.retryable) == (error_class, retryable)


async def test_a_connection_that_breaks_is_an_error(model: OpenAICompatibleModel, provider: FakeProvider) -> None:
    """Before the end of the body it is retryable, even after a finish reason."""
    provider.stream(chunk({"content": "half"}), breaks=True)
    with pytest.raises(ModelError) as caught:
        await model.stream(REQUEST, lambda _delta: None)
    assert (caught.value.error_class, caught.value.retryable) == ("unreachable", True)


SAYS_NOTHING = (
    b": still here\n\n",
    b"data:\n\n",
    chunk({"content": ""}),
    chunk({"role": "assistant", "content": None}),
    chunk({"content": "  \n"}),
    chunk({"reasoning": "", "reasoning_details": [{"type": "reasoning.text", "text": "", "index": 0}]}),
    chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"arguments": ""}}]}),
    chunk({"provider_note": {"type": "keep-alive"}}),
    chunk({"provider_note": "the same again"}),
    chunk(usage={"prompt_tokens": 3}),
)


@pytest.mark.parametrize(
    "meanwhile",
    [(), SAYS_NOTHING[:4], *(pytest.param((each,), marks=pytest.mark.exhaustive) for each in SAYS_NOTHING)],
)
async def test_silence_is_bounded_between_words(provider: FakeProvider, meanwhile: tuple[bytes, ...]) -> None:
    """A server that keeps the connection open and says nothing times out, whatever it sends."""
    model = OpenAICompatibleModel(provider.base_url, None, "m", timeout=0.2)
    provider.stream(chunk({"content": "half"}), hang=True, meanwhile=meanwhile)
    with pytest.raises(ModelError, match="no answer"):
        await asyncio.wait_for(model.stream(REQUEST, lambda _delta: None), 120)
    await model.aclose()


@pytest.mark.parametrize(
    "says",
    [
        {"content": "a"},
        {"reasoning": "hm"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "data": "c2VjcmV0"}]},
    ],
)
def test_whatever_a_model_says_is_waited_for(says: dict[str, Any]) -> None:
    """Also what no watcher sees of it."""
    answer = StreamedCompletion(lambda _delta: None)
    assert answer.take("message", chunk(says).decode().removeprefix("data: "))


async def test_an_answer_that_drips_has_an_end() -> None:
    """A character now and then is not waited for as long as its activity has."""
    assert MOST_SECONDS < MODEL_REQUEST_SECONDS

    async def listen() -> None:
        async with listening(10, most=0.05) as wait_on:
            while True:
                wait_on(1.0)
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(listen(), 120)


async def test_a_call_that_its_provider_could_not_read_is_the_models_mistake(
    model: OpenAICompatibleModel, provider: FakeProvider
) -> None:
    """I9: Groq reports it in the middle of a stream, where the status is sent already."""
    provider.stream(chunk({"content": "I call"}), b'data: {"error": {"code": "tool_use_failed", "message": "m"}}\n\n')
    assert (await model.stream(REQUEST, lambda _delta: None)).malformed


async def test_it_asks_for_the_stream_and_its_usage(model: OpenAICompatibleModel, provider: FakeProvider) -> None:
    """The request is that of ``generate`` with ``stream``; usage comes in a last chunk without choices."""
    assert isinstance(model, StreamingModel)
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    provider.stream(chunk({"content": "Hi"}), chunk({}, finish_reason="stop"), chunk(usage=usage), STREAM_END)
    deltas: list[Delta] = []
    response = await model.stream(REQUEST, deltas.append)
    assert (response.usage.input_tokens, response.usage.output_tokens, response.model) == (3, 4, model.name)
    assert [delta.text for delta in deltas] == ["Hi"]
    body = provider.requests[0].body
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


NO_OPTIONS = {"error": {"message": "Unrecognized request argument supplied: stream_options"}}
NO_STREAM = {"error": {"message": "Your organization must be verified to stream this model."}}


@pytest.mark.parametrize(
    ("refusals", "options"),
    [
        ([NO_OPTIONS], [{"stream", "stream_options"}, {"stream"}]),
        ([NO_STREAM, NO_STREAM], [{"stream", "stream_options"}, {"stream"}, set()]),
    ],
)
async def test_a_server_that_refuses_an_option_is_asked_without_it(
    model: OpenAICompatibleModel, provider: FakeProvider, refusals: list[Any], options: list[set[str]]
) -> None:
    """The next request leaves it out at once; any other refusal is an error as usual."""
    for refusal in refusals:
        provider.answer(refusal, status=400)
    for _ in range(2):
        provider.answer(completion("Hello"))  # in one piece, which is valid for a stream request too
    for _ in range(2):
        assert (await model.stream(REQUEST, lambda _delta: None)).message.text == "Hello"
    bodies = [set(received.body) & {"stream", "stream_options"} for received in provider.requests]
    assert bodies == [*options, options[-1]]
    provider.answer({"error": {"message": "no such tool"}}, status=400)
    with pytest.raises(ModelError) as caught:
        await model.stream(REQUEST, lambda _delta: None)
    assert caught.value.error_class == "invalid_request"
