"""I9: a call that could not be read is the model's mistake, and the model gets what the provider shows of it."""

from __future__ import annotations

import pytest
from support.servers.fake_provider import FakeProvider, completion, tool_call

from turngate.domain.conversation.messages import Message, ModelResponse, user_message
from turngate.domain.errors import ModelError
from turngate.domain.tools.tool import ToolManifest
from turngate.models import ModelRequest, OpenAICompatibleModel

LOOK = ToolManifest(
    name="look", kind="local", effect="read", description="Look.", parameters={"type": "object"}, success={}
)


async def ask(model: OpenAICompatibleModel, *, tools: tuple[ToolManifest, ...] = (LOOK,)) -> ModelResponse:
    return await model.generate(ModelRequest(messages=[user_message("go")], tools=tools))


@pytest.mark.parametrize("calls", [None, []])
async def test_a_call_that_is_announced_and_missing_ends_no_run(
    model: OpenAICompatibleModel, provider: FakeProvider, calls
):
    """With ``tool_calls`` but no call, the text would count as the agent's reply and the run would stop half way."""
    body = completion("I will look.", finish_reason="tool_calls")
    body["choices"][0]["message"]["tool_calls"] = calls
    provider.answer(body)
    response = await ask(model)
    assert "there is none in it" in response.malformed
    assert (response.message.text, response.is_final) == ("I will look.", False)


async def test_an_announced_call_that_is_there_is_not_malformed(model: OpenAICompatibleModel, provider: FakeProvider):
    """The usual response is not malformed."""
    provider.answer(completion("I will look.", calls=[tool_call("look", "{}")]))
    assert (await ask(model)).malformed == ""


@pytest.mark.parametrize("code", ["tool_use_failed", "output_parse_failed"])
async def test_groqs_refusal_of_its_models_call_is_the_models_mistake(
    model: OpenAICompatibleModel, provider: FakeProvider, code
):
    """Status 400 with the failed text: one request, no error, and the model can read the text."""
    failed = {"message": "Failed to call a function.", "type": "invalid_request_error", "code": code}
    provider.answer({"error": {**failed, "failed_generation": "<function=look{"}}, status=400)
    response = await ask(model)
    assert code in response.malformed
    assert response.message == Message.model_validate(
        {"role": "assistant", "parts": [{"type": "text", "text": "<function=look{"}]}
    )
    assert (response.model, response.is_final, len(provider.requests)) == ("openai:gpt-x", False, 1)


async def test_ollamas_refusal_of_its_models_call_is_the_models_mistake(
    model: OpenAICompatibleModel, provider: FakeProvider
):
    """Status 500: the same request would mostly fail again. What it quotes is in none of Turngate's messages."""
    refusal = "error parsing tool call: raw='{\"name\": secret', err=unexpected end of JSON input"
    provider.answer({"error": {"message": refusal, "type": "api_error", "param": None, "code": None}}, status=500)
    response = await ask(model)
    assert "error parsing tool call" in response.malformed
    assert "secret" not in response.model_dump_json()


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "The tool_use_failed code is not here.", "code": "bad_request"}},
        {"error": {"message": "Bad.", "code": ["tool_use_failed"]}},
        {"error": "tool_use_failed"},
        ["tool_use_failed"],
        b"error parsing tool call",
        b"",
    ],
)
async def test_any_other_refusal_is_an_error(model: OpenAICompatibleModel, provider: FakeProvider, body):
    """Only the code itself counts; for any other body the error is classified as usual."""
    provider.answer(body, status=400)
    with pytest.raises(ModelError) as caught:
        await ask(model)
    assert caught.value.error_class == "invalid_request"


async def test_a_failed_generation_that_is_not_text_is_left_out(model: OpenAICompatibleModel, provider: FakeProvider):
    """Its parts may be of any shape."""
    provider.answer({"error": {"code": "tool_use_failed", "failed_generation": {"name": "look"}}}, status=400)
    assert (await ask(model)).message.parts == ()
