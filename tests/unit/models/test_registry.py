from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr
from support.servers.fake_provider import FakeProvider, completion

from turngate import Agent, App, Toolkit
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import ConfigurationError
from turngate.models import ModelRequest, Models, ModelSettings
from turngate.models.registry import declared_models
from turngate.models.scripted import MAX_SCRIPT_BYTES

KEY = "sk-very-secret-0123456789"


def test_a_script_is_found_below_the_base(tmp_path):
    """``scripted:FILE`` is relative to the base directory, and the same spec gives the same model."""
    (tmp_path / "demo.yaml").write_text("name: demo\nresponses: [{text: x}]")
    models = Models(ModelSettings(script_base=tmp_path))
    model = models.resolve("scripted:demo.yaml")
    assert model.name == "scripted:demo"
    assert models.resolve("scripted:demo.yaml") is model


def test_a_script_that_was_changed_is_read_again(tmp_path):
    """A run that failed because its script has no answer can be retried at once, without a restart."""
    file = tmp_path / "demo.yaml"
    file.write_text("responses: [{text: x}]")
    models = Models(ModelSettings(script_base=tmp_path))
    first = models.resolve("scripted:demo.yaml")
    file.write_text("responses: [{text: x}, {text: y}]")
    second = models.resolve("scripted:demo.yaml")
    assert [len(each.script.responses_per_run[0]) for each in (first, second)] == [1, 2]
    file.write_text("responses: [")
    with pytest.raises(ConfigurationError, match="demo"):
        models.resolve("scripted:demo.yaml")
    file.write_text("responses: [{text: x}, {text: y}, {text: z}]")
    assert len(models.resolve("scripted:demo.yaml").script.responses_per_run[0]) == 3
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        models.resolve("scripted:demo.yaml")


@pytest.mark.parametrize("spec", ["scripted:/etc/shadow", "scripted:../secret.yaml", "scripted:link.yaml"])
def test_a_script_outside_the_app_is_refused_unread(tmp_path: Path, spec: str):
    """An absolute path, a way up and a symlink lead outside the app's directory; the message has none of the file."""
    app = tmp_path / "app"
    app.mkdir()
    (tmp_path / "secret.yaml").write_text("root:$6$hash:19000\nresponses: [{text: x}]")
    (app / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    with pytest.raises(ConfigurationError, match="outside the app's directory") as caught:
        Models(ModelSettings(script_base=app)).resolve(spec)
    assert "hash" not in caught.value.message


def test_a_script_is_a_regular_file_of_bounded_size(tmp_path: Path):
    """A FIFO that no one writes to, a device, a directory and a huge file are refused at once, in words for the builder."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(MAX_SCRIPT_BYTES + 1)
    models = Models(ModelSettings(script_base=tmp_path))
    for name, why in (("pipe", "regular file"), ("folder", "regular file"), ("huge", "larger than")):
        with pytest.raises(ConfigurationError, match=why):
            models.resolve(f"scripted:{name}")
    with pytest.raises(ConfigurationError, match="regular file"):
        Models(ModelSettings(script_base=Path("/dev"))).resolve("scripted:zero")


@pytest.mark.parametrize(
    "text",
    [
        *("root:$6$hash:19000:0\nresponses: [\n", '{"root": "$6$hash"}', "$6$hash", "- $6$hash", "a: b\n c: $6$hash\n"),
        *("key: @hash", "key: 'hash", "*hash", "!hash x", '{"hash": 1}', "responses: [{hash: 1}]", "2001-99-99"),
        "responses: [{calls: [{tool: a, hash: 1}]}]",
        f"hash: {'[' * 2000}",
        "responses: [{error: {class: hash}}]",
        "responses: [{calls: [{tool: a, input: {hash: {1: x}}}]}]",
        "responses: [{calls: hash}]",
        "hash: x\nhash: y",
    ],
)
def test_no_error_quotes_a_script(tmp_path: Path, text: str):
    """A run can name any file below the app's directory: what is no script is refused by place, without a word of its content."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        Models(ModelSettings(script_base=tmp_path)).resolve("scripted:x.yaml")
    assert "hash" not in f"{caught.value.message} {caught.value!r} {caught.value.__dict__}"


def test_declared_models_are_those_of_agents_and_profiles():
    """The agents' own models and fallbacks, and what profiles stand for; nothing else, and each once."""
    agent = Agent(
        name="a", instructions="i", toolkit=Toolkit.of(), model="openai:a", fallback=["openai:b", "scripted:s.yaml"]
    )
    profiles = Profiles({"fast": Profile(name="fast", model="openai:c", fallback=("openai:a",))})
    assert declared_models(App(agents=[agent]), profiles) == ("openai:c", "openai:a", "openai:b", "scripted:s.yaml")


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
