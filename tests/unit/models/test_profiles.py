"""The models file: what it defines, and how each mistake in it is reported."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from turngate.domain.agents.model_profiles import ModelOptions
from turngate.domain.errors import ConfigurationError
from turngate.domain.runs.budgets import Price
from turngate.models.profiles import find_models_file, load_profiles, parse_profiles
from turngate.models.registry import Models, ModelSettings

WHOLE = """
[profile.fast]
model = "openai:gpt-5-mini"
temperature = 0.2
max_output_tokens = 4096
reasoning_effort = "low"
context_window = 400_000
fallback = ["anthropic:claude-x", "slow"]
price_in = 0.25
price_out = 2
price_cache_read = 0.025
price_cache_write = 1

[profile.slow]
model = "openai:gpt-5"
"""


def test_a_profile_is_read_whole() -> None:
    """Every key is read; money is exact; a key that is left out is None or empty."""
    profiles = parse_profiles(WHOLE, source="models.toml")
    fast, slow = profiles["fast"], profiles["slow"]
    assert (fast.name, fast.model, fast.context_window) == ("fast", "openai:gpt-5-mini", 400_000)
    assert fast.options == ModelOptions(temperature=0.2, max_output_tokens=4096, reasoning_effort="low")
    assert fast.price == Price(
        input=Decimal("0.25"), output=Decimal(2), cache_read=Decimal("0.025"), cache_write=Decimal(1)
    )
    assert fast.fallback == ("anthropic:claude-x", "slow")
    assert (slow.options, slow.context_window, slow.fallback, slow.price) == (ModelOptions(), None, (), None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile = [", "is not TOML"),
        ("[profiles.fast]\nmodel = 'a:b'", "'profiles'"),
        ("profile = 3", "[profile.NAME]"),
        ("[profile]\nfast = 'a:b'", "[profile.fast]: it is a table"),
        ("[profile.Fast]\nmodel = 'a:b'", "[profile.Fast]: a name is"),
        ("[profile.fast]\n", "[profile.fast]: model: Field required"),
        ("[profile.fast]\nmodel = 'slow'", "[profile.fast]: model:"),
        ("[profile.fast]\nmodel = 'a:b'\ntop_k = 1", "[profile.fast]: top_k: there is no such key"),
        ("[profile.fast]\nmodel = 'a:b'\ntemperature = 3", "temperature: Input should be less"),
        ("[profile.fast]\nmodel = 'a:b'\ntemperature = 'hot'", "temperature:"),
        ("[profile.fast]\nmodel = 'a:b'\ntemperature = nan", "temperature:"),
        ("[profile.fast]\nmodel = 'a:b'\nmax_output_tokens = 0", "max_output_tokens:"),
        ("[profile.fast]\nmodel = 'a:b'\nreasoning_effort = 'huge'", "reasoning_effort:"),
        ("[profile.fast]\nmodel = 'a:b'\nprice_in = 1", "price_in and price_out belong together"),
        ("[profile.fast]\nmodel = 'a:b'\nprice_cache_read = 1", "price_cache_read and price_cache_write need price_in"),
        ("[profile.fast]\nmodel = 'a:b'\nprice_in = true\nprice_out = 1", "price_in:"),
        ("[profile.fast]\nmodel = 'a:b'\nfallback = 'c:d'", "fallback:"),
        ("[profile.fast]\nmodel = 'a:b'\nfallback = ['gone']", "fallback 'gone' is neither"),
        ("[profile.a]\nmodel = 'x:y'\nfallback = ['a']", "a → a"),
        (
            "[profile.a]\nmodel='x:y'\nfallback=['b']\n[profile.b]\nmodel='x:y'\nfallback=['z:z', 'a']",
            "lead back to where they were: a → b → a",
        ),
    ],
)
def test_an_error_names_the_file_and_the_place(text: str, message: str) -> None:
    """Unknown keys, wrong values, unknown names, and fallbacks in a circle."""
    with pytest.raises(ConfigurationError) as refused:
        parse_profiles(text, source="/etc/models.toml")
    assert "/etc/models.toml" in refused.value.message
    assert message in refused.value.message


def test_a_named_file_counts_then_the_data_directory_then_the_app(tmp_path: Path) -> None:
    """Without any of them there are no profiles; a named file has to exist."""
    data, app, named = tmp_path / "data", tmp_path / "app", tmp_path / "own.toml"
    data.mkdir()
    app.mkdir()
    assert find_models_file(None, data, app) is None
    assert not load_profiles(None)
    (app / "models.toml").write_text("")
    assert find_models_file(None, data, app) == app / "models.toml"
    (data / "models.toml").write_text("")
    assert find_models_file(None, data, app) == data / "models.toml"
    assert find_models_file(named, data, app) == named
    with pytest.raises(ConfigurationError, match="TURNGATE_MODELS_FILE"):
        load_profiles(named)


async def test_a_spec_may_be_a_profiles_name(tmp_path: Path) -> None:
    """Profiles of one model share it; an unknown name lists the known ones; the window is the profile's."""
    (tmp_path / "s.yaml").write_text("responses:\n  - text: hello\n")
    text = "[profile.a]\nmodel='scripted:s.yaml'\ncontext_window=9\n[profile.b]\nmodel='scripted:s.yaml'"
    models = Models(ModelSettings(script_base=tmp_path), parse_profiles(text, source="models.toml"))
    assert models.resolve("a") is models.resolve("b") is models.resolve("scripted:s.yaml")
    assert [models.context_window(spec) for spec in ("a", "b", "scripted:s.yaml")] == [9, None, None]
    with pytest.raises(ConfigurationError, match=r"'c' \(models\.toml has: a, b\)"):
        models.resolve("c")
    with pytest.raises(ConfigurationError, match="TURNGATE_MODELS_FILE"):
        Models(ModelSettings()).resolve("c")
    await models.aclose()


def test_names_are_looked_up_at_the_start() -> None:
    """An unknown provider in a profile or fallback is refused with its place; a missing key is not."""
    models = Models(
        ModelSettings(), parse_profiles("[profile.a]\nmodel='openai:x'\nfallback=['mistral:y']", source="f")
    )
    models.require_profiles()
    assert models.providers[0] == "openai"
    wrong = Models(ModelSettings(), parse_profiles("[profile.a]\nmodel='nosuch:x'", source="f"))
    with pytest.raises(ConfigurationError, match=r"f, \[profile\.a\] model: there is no model 'nosuch:x'"):
        wrong.require_profiles()
    with pytest.raises(ConfigurationError, match="fallback of agent 'x': there is no model profile 'b'"):
        models.require_known("b", place="fallback of agent 'x'")
