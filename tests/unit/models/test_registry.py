from __future__ import annotations

import pytest
from pydantic import SecretStr
from support.fake_provider import FakeProvider, completion

from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError
from turngate.models import ModelRequest, Models, ModelSettings

KEY = "sk-very-secret-0123456789"


def test_a_script_is_found_below_the_base(tmp_path):
    """``scripted:FILE`` is relative to the base directory, and the same spec gives the same model."""
    (tmp_path / "demo.yaml").write_text("name: demo\nresponses: [{text: x}]")
    models = Models(ModelSettings(script_base=tmp_path))
    model = models.resolve("scripted:demo.yaml")
    assert model.name == "scripted:demo"
    assert models.resolve("scripted:demo.yaml") is model


async def test_openai_goes_to_the_set_server_without_a_key(provider: FakeProvider):
    """Ollama and vLLM need no key; a name may hold colons and slashes."""
    models = Models(ModelSettings(openai_base_url=provider.base_url))
    model = models.resolve("openai:org/llama3:8b")
    provider.answer(completion("Hello"))
    response = await model.generate(ModelRequest(messages=[user_message("hi")]))
    assert response.model == "openai:org/llama3:8b"
    assert provider.requests[0].body["model"] == "org/llama3:8b"
    await models.aclose()
    await models.aclose()


async def test_openai_sends_the_key(provider: FakeProvider):
    """The secret reaches the header and nothing else."""
    models = Models(ModelSettings(openai_base_url=provider.base_url, openai_api_key=SecretStr(KEY)))
    model = models.resolve("openai:m")
    provider.answer(completion("Hello"))
    await model.generate(ModelRequest(messages=[user_message("hi")]))
    await models.aclose()
    assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{model!r} {models!r} {ModelSettings(openai_api_key=SecretStr(KEY))!r}"


@pytest.mark.parametrize("url", [None, "https://api.openai.com/v1/"])
def test_openais_own_api_needs_a_key(url):
    """It is refused before the first request, with the setting's name."""
    with pytest.raises(ConfigurationError, match="set TURNGATE_OPENAI_API_KEY"):
        Models(ModelSettings(openai_base_url=url)).resolve("openai:gpt-x")


@pytest.mark.parametrize("spec", ["", "gpt-5", "nosuch:x", "openai:", "scripted:", "__class__:x"])
def test_an_unknown_form_is_refused_with_the_known_ones(spec):
    """The message lists what a model may be."""
    with pytest.raises(ConfigurationError, match=r"openai:NAME .* or scripted:FILE"):
        Models(ModelSettings()).resolve(spec)
