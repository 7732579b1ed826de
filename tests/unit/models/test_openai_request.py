from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from turngate import tool
from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.conversation.messages import (
    FilePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    user_message,
)
from turngate.domain.errors import ModelError
from turngate.domain.tools.results import Ok, rejected, wire_text
from turngate.models.openai.request import accepted_arguments, request_body
from turngate.models.port import ModelRequest


def assistant(*parts: object, **options: object) -> Message:
    return Message.model_validate({"role": "assistant", "parts": parts, **options})


def call(name: str = "look", raw: str = '{"name":"x"}', call_id: str = "c1", **options: object) -> ToolCallPart:
    return ToolCallPart.model_validate({"tool_call_id": call_id, "tool_name": name, "input": raw, **options})


def sent(*messages: Message) -> list[dict[str, object]]:
    return request_body("m", ModelRequest(messages=messages))["messages"]


def test_a_conversation_maps_role_by_role():
    """System, user, assistant with calls, one tool message per result in the model's order, directly after it."""
    refused = rejected("ada", "not today")
    conversation = [
        Message(role="system", parts=(TextPart(text="Be brief."),)),
        user_message("Pay both."),
        assistant(TextPart(text="Paying."), call("pay", '{"cents": 1}', "c1"), call("pay", '{"cents": 2}', "c2")),
        Message(
            role="tool",
            parts=(
                ToolResultPart(
                    tool_call_id="c1", tool_name="pay", result=Ok(value={"paid": 9}), edited_input='{"cents":9}'
                ),
                ToolResultPart(tool_call_id="c2", tool_name="pay", result=refused),
            ),
        ),
        assistant(TextPart(text="Done.")),
    ]

    def function(cents: int) -> dict[str, str]:
        return {"name": "pay", "arguments": f'{{"cents": {cents}}}'}

    assert sent(*conversation) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Pay both."},
        {
            "role": "assistant",
            "content": "Paying.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function(1)},
                {"id": "c2", "type": "function", "function": function(2)},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": wire_text(Ok(value={"paid": 9}), edited_input='{"cents":9}'),
        },
        {"role": "tool", "tool_call_id": "c2", "content": wire_text(refused)},
        {"role": "assistant", "content": "Done."},
    ]


def test_only_calls_give_null_content():
    """An assistant message that has only calls has content null, never an empty text block."""
    for message in (assistant(call()), assistant(TextPart(text=""), call()), assistant(TextPart(text="\n"), call())):
        assert sent(message)[0]["content"] is None


def test_an_empty_assistant_message_is_left_out():
    """The model's empty response is not sent back: providers refuse null content without calls."""
    assert sent(user_message("hi"), assistant(), assistant(ReasoningPart(text="hm"))) == [
        {"role": "user", "content": "hi"}
    ]


def test_arguments_go_back_byte_for_byte():
    """A JSON object keeps the model's own spacing, key order, escapes and number forms."""
    raw = '{ "b":1.0,\n"a": "\\u00e9é", "n": 1e3 }'
    assert sent(assistant(call(raw=raw)))[0]["tool_calls"][0]["function"]["arguments"] == raw


@pytest.mark.parametrize("raw", ["", "  \n"])
def test_empty_arguments_are_an_empty_object(raw):
    """Empty text, which some models send for "no arguments", goes back as ``{}``."""
    assert accepted_arguments(raw) == "{}"


@pytest.mark.parametrize("raw", ['{"command": ', "[1]", '"x"', "null", '{"a": NaN}', "[" * 100_000])
def test_i9_what_is_not_a_json_object_is_wrapped_whole(raw):
    """Servers that parse earlier calls would refuse the request forever; the model still reads what it sent."""
    assert json.loads(accepted_arguments(raw)) == {"invalid_json_arguments": raw}


@given(st.text())
def test_i9_sent_arguments_are_always_a_json_object(raw):
    """The server gets an object, whatever the model wrote."""
    assert isinstance(json.loads(accepted_arguments(raw)), dict)


@pytest.mark.parametrize(
    ("name", "accepted"), [("multi_tool_use.parallel", "multi_tool_use_parallel"), ("", "_"), ("x" * 70, "x" * 64)]
)
def test_i9_a_made_up_tool_name_is_made_acceptable(name, accepted):
    """OpenAI answers 400 to an invalid tool name, even in an earlier message."""
    assert sent(assistant(call(name)))[0]["tool_calls"][0]["function"]["name"] == accepted


def test_images_and_files_of_a_user_message():
    """Images go as image_url (address or data URL), files as file data, text between them as text."""
    message = Message(
        role="user",
        parts=(
            TextPart(text="See:"),
            FilePart(type="image", media_type="image/png", url="https://example.com/a.png"),
            FilePart(type="image", media_type="image/png", content="QUJD"),
            FilePart(type="file", media_type="application/pdf", content="QUJD"),
        ),
    )
    assert sent(message)[0]["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {
            "type": "file",
            "file": {"filename": "attachment.pdf", "file_data": "data:application/pdf;base64,QUJD"},
        },
    ]


def test_a_file_without_content_is_refused():
    """There is nothing to send, and the error is permanent."""
    message = Message(role="user", parts=(FilePart(type="image", media_type="image/png"),))
    with pytest.raises(ModelError, match="without content and url") as caught:
        sent(message)
    assert not caught.value.retryable


class Amount(BaseModel):
    cents: int


@tool(strict=True)
async def pay(params: Amount) -> int:
    """Pay it."""
    return params.cents


@tool()
async def ping() -> str:
    """Say hello."""
    return "hello"


def test_tools_map_to_functions_in_their_order():
    """Name, description, schema; ``strict`` only if the tool sets it; an object even without parameters."""
    body = request_body("m", ModelRequest(messages=[], tools=[pay.manifest, ping.manifest]))
    assert [entry["type"] for entry in body["tools"]] == ["function", "function"]
    first, second = (entry["function"] for entry in body["tools"])
    assert first == {
        "name": "pay",
        "description": "Pay it.",
        "parameters": {**pay.manifest.parameters, "additionalProperties": False},
        "strict": True,
    }
    assert second == {
        "name": "ping",
        "description": "Say hello.",
        "parameters": {"type": "object", "properties": {}},
    }


def test_a_manifest_without_a_schema_gets_an_empty_object():
    """Providers refuse a function whose parameters are not an object."""
    bare = ping.manifest.model_copy(update={"parameters": {}})
    (entry,) = request_body("m", ModelRequest(messages=[], tools=[bare]))["tools"]
    assert entry["function"]["parameters"] == {"type": "object", "properties": {}}


def test_without_tools_the_key_is_left_out():
    """OpenAI answers 400 to an empty list of tools."""
    assert "tools" not in request_body("m", ModelRequest(messages=[user_message("hi")]))


def test_a_replys_schema_and_options_are_sent():
    """The JSON schema has its title; unset options are the provider's choice; OpenAI gets its own name of the bound."""
    schema = {"type": "object", "title": "My verdict!", "properties": {"guilty": {"type": "boolean"}}}
    options = ModelOptions(max_output_tokens=9, temperature=0, reasoning_effort="low")
    body = request_body("m", ModelRequest(messages=[user_message("hi")], output=schema, options=options))
    assert body["response_format"] == {"type": "json_schema", "json_schema": {"name": "My_verdict_", "schema": schema}}
    assert {key: body[key] for key in ("max_tokens", "temperature", "reasoning_effort")} == {
        "max_tokens": 9,
        "temperature": 0,
        "reasoning_effort": "low",
    }
    counted = request_body("m", ModelRequest(messages=[user_message("hi")], options=options), of_openai=True)
    assert (counted["max_completion_tokens"], "max_tokens" in counted) == (9, False)
    bare = request_body("m", ModelRequest(messages=[user_message("hi")], options=ModelOptions()))
    assert set(bare) == {"model", "messages"}


@pytest.mark.parametrize(
    ("model", "of_openai", "pattern"),
    [
        ("mistral-large-latest", False, "[a-zA-Z0-9]{9}"),
        ("mistralai/Devstral-Small", False, "[a-zA-Z0-9]{9}"),
        ("gpt-5", True, "[ -~]{1,40}"),
    ],
)
def test_i1_another_providers_ids_are_made_acceptable(model: str, of_openai: bool, pattern: str):
    """I1: Mistral's models take nine letters and digits, OpenAI 40 characters; call and result agree, next time too."""
    ids = ["a1B2c3D4e", "call_1_0", "x" * 80, "y" * 80]
    history = [
        Message(role="assistant", parts=tuple(ToolCallPart(tool_call_id=i, tool_name="look", input="{}") for i in ids)),
        Message(
            role="tool",
            parts=tuple(ToolResultPart(tool_call_id=i, tool_name="look", result=Ok(value={})) for i in ids),
        ),
    ]
    sent = request_body(model, ModelRequest(messages=history), of_openai=of_openai)["messages"]
    called = [call["id"] for call in sent[0]["tool_calls"]]
    assert [result["tool_call_id"] for result in sent[1:]] == called
    assert all(re.fullmatch(pattern, each) for each in called)
    assert len(set(called)) == 4
    assert called[0] == ids[0]
    again = request_body(model, ModelRequest(messages=[*history, user_message("and?")]), of_openai=of_openai)[
        "messages"
    ]
    assert again[: len(sent)] == sent


def test_other_servers_get_ids_unchanged():
    """A gateway may store data for its provider in the id itself."""
    history = [Message(role="assistant", parts=(ToolCallPart(tool_call_id="x" * 200, tool_name="look", input="{}"),))]
    assert request_body("gpt-x", ModelRequest(messages=history))["messages"][0]["tool_calls"][0]["id"] == "x" * 200
