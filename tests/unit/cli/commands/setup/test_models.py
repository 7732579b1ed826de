"""`turngate models`: what there is to choose from, and what keeps a worker from starting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.fake_provider import FakeProvider, completion, serving_provider
from typer.testing import CliRunner

from turngate import Agent, App, Toolkit
from turngate.cli.builders_app import require_model_names
from turngate.cli.commands.setup import doctor
from turngate.cli.commands.setup.models import Usable, survey
from turngate.cli.main import app
from turngate.domain.errors import ConfigurationError
from turngate.runtime.app_loader import LoadedApp, check_app
from turngate.runtime.settings import Settings, load_settings

FILE = """
[profile.fast]
model = "openai:small"
temperature = 0.5
context_window = 9000
fallback = ["mistral:big"]
"""
KEYS = ("MISTRAL_API_KEY", "OPENAI_API_KEY", "TURNGATE_OPENAI_API_KEY", "TURNGATE_MODELS_FILE")


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    with serving_provider() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    provider.reset()
    (tmp_path / "models.toml").write_text(FILE)
    monkeypatch.setenv("TURNGATE_OPENAI_BASE_URL", provider.base_url)
    return load_settings(data_dir=tmp_path)


def with_agent(model: str, *fallback: str) -> LoadedApp:
    agent = Agent(name="one", instructions="", toolkit=Toolkit.of(), model=model, fallback=fallback)
    return check_app(App(agents=[agent]), base=Path.cwd())


async def seen(settings: Settings, loaded: LoadedApp, *, probe: bool) -> dict[str, Usable]:
    return {each.name: each async for each in survey(settings, loaded, probe=probe)}


@pytest.mark.exhaustive
async def test_each_name_says_whether_it_can_be_used(settings: Settings, provider: FakeProvider) -> None:
    """Profiles with their models, models named elsewhere, providers with what they lack. No model gets a request."""
    usable = await seen(settings, with_agent("openai:large", "fast"), probe=False)
    fast, named, key = usable["fast"], usable["mistral:big"], "needs a key: set MISTRAL_API_KEY"
    assert (fast.kind, fast.model, fast.problem, fast.answered) == ("profile", "openai:small", "", None)
    assert fast.details == "temperature 0.5; context 9,000; fallback mistral:big"
    assert (named.kind, named.problem) == ("model", f"the model 'mistral:big' {key}")
    assert [usable[name].kind for name in ("openai:large", "openai", "scripted")] == ["model", "provider", "provider"]
    assert (usable["mistral"].problem, usable["openai"].problem) == (key, "")
    assert provider.requests == []


async def test_a_probe_asks_each_model_as_its_profile_says(settings: Settings, provider: FakeProvider) -> None:
    """One that answers says so, one that refuses says why."""
    provider.answer(completion("ready"))
    provider.answer({"error": {"message": "no such model"}}, status=404)
    usable = await seen(settings, with_agent("openai:large"), probe=True)
    assert (usable["fast"].answered, usable["openai:large"].answered) == (True, False)
    assert "no such model" in usable["openai:large"].problem
    assert [(each.body["model"], each.body.get("temperature")) for each in provider.requests] == [
        ("small", 0.5),
        ("large", None),
    ]


def test_the_command_prints_them_and_fails_for_one_that_is_named(settings: Settings) -> None:
    """Exit code 1, because a fallback has no key; as JSON for programs; a mistake in the file is one line."""
    printed = CliRunner().invoke(app, ["models", "--data-dir", str(settings.data_dir)])
    assert printed.exit_code == 1
    assert "✓ fast = openai:small (temperature 0.5" in printed.stdout
    assert "✗ mistral:big: the model 'mistral:big' needs a key" in printed.stdout
    assert "- mistral: needs a key" in printed.stdout
    as_json = CliRunner().invoke(app, ["models", "--json", "--data-dir", str(settings.data_dir)])
    assert [each["name"] for each in json.loads(as_json.stdout)][:2] == ["fast", "scripted:demo_script.yaml"]


@pytest.mark.parametrize(
    ("model", "fallback", "message"),
    [
        ("fsat", (), "model of agent 'one': there is no model profile 'fsat'"),
        ("fast", ("slow",), "fallback of agent 'one': there is no model profile 'slow'"),
        ("fast", ("nosuch:x",), "fallback of agent 'one': there is no model 'nosuch:x'"),
    ],
)
def test_a_worker_does_not_start_with_a_name_of_nothing(
    settings: Settings, model: str, fallback: tuple[str, ...], message: str
) -> None:
    """The message names the agent, or the file and the profile."""
    require_model_names(settings, with_agent("fast", "mistral:big"))
    with pytest.raises(ConfigurationError) as refused:
        require_model_names(settings, with_agent(model, *fallback))
    assert message in refused.value.message


async def test_doctor_reports_a_wrong_models_file(settings: Settings) -> None:
    """As one finding among the others, with the file and the place."""
    (settings.data_dir / "models.toml").write_text("[profile.fast]\nmodel = 3")
    findings = [each async for each in doctor._models(settings, with_agent("fast"), probe=False)]
    assert [(each.what, each.good) for each in findings] == [("models", False)]
    assert f"models file {settings.data_dir / 'models.toml'}, [profile.fast]: model:" in findings[0].text
