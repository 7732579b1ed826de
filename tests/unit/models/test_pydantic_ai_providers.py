"""From ``provider:name`` to a model: keys, addresses and missing packages."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.models import Models
from turngate.models.port import StreamingModel
from turngate.models.pydantic_ai.loader import PROVIDERS, provider_model
from turngate.models.registry import ModelSettings

KEYS = {
    "anthropic:m": "ANTHROPIC_API_KEY",
    "google:m": "GOOGLE_API_KEY",
    "google-gla:m": "GOOGLE_API_KEY",
    "mistral:m": "MISTRAL_API_KEY",
    "groq:m": "GROQ_API_KEY",
    "deepseek:m": "DEEPSEEK_API_KEY",
}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *KEYS.values(),
        "GEMINI_API_KEY",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_PROFILE",
        "COHERE_API_KEY",
        "CO_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)


def refused(spec: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Models(ModelSettings()).resolve(spec)
    return caught.value.message


@pytest.mark.exhaustive
@pytest.mark.parametrize(("spec", "key"), KEYS.items())
def test_a_missing_key_is_named_by_its_variable(spec: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's usual variable; with it the model exists, streams, and has the name that people know."""
    assert key in refused(spec)
    assert "needs a key" in refused(spec)
    monkeypatch.setenv(key, "k-0123456789")
    model = Models(ModelSettings()).resolve(spec)
    assert isinstance(model, StreamingModel)
    assert model.name == spec.replace("google-gla", "google")
    assert "k-0123456789" not in repr(model)


def test_bedrock_needs_a_region(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Without one its client has no address to send to; the message names the variable."""
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    assert "AWS_DEFAULT_REGION" in refused("bedrock:m")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert "eu-central-1" in repr(Models(ModelSettings()).resolve("bedrock:m"))


@pytest.mark.parametrize("spec", ["unknown:m", "anthropic:", "anthropic", "test:m", ""])
def test_an_unknown_model_gets_the_list_of_models(spec: str) -> None:
    """The list has OpenAI-compatible servers, the providers and scripts."""
    message = refused(spec)
    assert all(provider in message for provider in ("openai:NAME", "scripted:FILE", *PROVIDERS))


def test_a_providers_package_that_is_missing_is_named() -> None:
    """A provider that pydantic-ai knows but whose package is missing says what to install."""
    assert "pip install 'pydantic-ai-slim[cohere]'" in refused("cohere:command-r")


def test_an_address_has_to_be_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about a wrong one names its variable; the model uses a right one and shows it without its password."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-0123456789")
    monkeypatch.setenv("TURNGATE_ANTHROPIC_BASE_URL", "localhost:1")
    assert "TURNGATE_ANTHROPIC_BASE_URL" in refused("anthropic:m")
    monkeypatch.setenv("TURNGATE_ANTHROPIC_BASE_URL", "http://me:secret@127.0.0.1:1/")
    text = repr(Models(ModelSettings()).resolve("anthropic:m"))
    assert "127.0.0.1:1" in text
    assert "secret" not in text


def test_without_pydantic_ai_only_its_providers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of pydantic-ai says how to install it; any other name is unknown."""

    def gone(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(ConfigurationError, match="the extra 'providers' is not installed"):
        provider_model("anthropic", "m", timeout=1)
    assert provider_model("unknown", "m", timeout=1) is None


@pytest.mark.exhaustive
def test_pydantic_ai_is_imported_by_the_first_model_that_needs_it() -> None:
    """Neither the registry nor a scripted or OpenAI-compatible model imports it."""
    code = "import sys, turngate.models.registry, turngate.cli.builders_app; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
