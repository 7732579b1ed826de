"""The models that settings describe: keys, addresses, and the file of profiles. One reading for workers, evals and tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from turngate.domain.agents.model_profiles import Profiles
from turngate.models.profiles import find_models_file, load_profiles
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.settings import Settings


def build_models(
    settings: Settings, *, script_base: Path, make: Callable[[ModelSettings, Profiles], Models] = Models
) -> Models:
    """Return the models of this process. ``script_base``: the directory of ``scripted:FILE`` and ``models.toml``.

    Raises ConfigurationError when the file of profiles is wrong.
    """
    return make(
        ModelSettings(
            openai_base_url=settings.openai_base_url,
            openai_api_key=settings.openai_api_key,
            script_base=script_base,
        ),
        load_profiles(find_models_file(settings.models_file, settings.data_dir, script_base)),
    )
