"""The models of this process, made from its settings."""

from __future__ import annotations

from pathlib import Path

from turngate.models.profiles import found_file, load_profiles
from turngate.models.registry import Models, ModelSettings
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings


def build_models(settings: Settings, *, script_base: Path) -> Models:
    """Return the models of this process. ``script_base``: the directory of ``scripted:FILE`` and ``models.toml``.

    Raises ConfigurationError when the file of profiles is wrong.
    """
    return Models(
        ModelSettings(
            openai_base_url=settings.openai_base_url,
            openai_api_key=settings.openai_api_key,
            script_base=script_base,
        ),
        load_profiles(found_file(settings.models_file, settings.data_dir, script_base)),
    )


def require_model_names(settings: Settings, app: LoadedApp) -> None:
    """Require that each model's name is a profile's or has a known provider. No model is asked, and no key is checked.

    An agent's own ``provider:name`` that cannot be used is only a warning, later: the other agents' runs still work.

    Raises ConfigurationError, which names the file or the agent; also when the file of profiles is wrong.
    """
    models = build_models(settings, script_base=app.base)
    models.require_profiles()
    for agent in app.agents.values():
        if ":" not in agent.model:
            models.require_known(agent.model, place=f"model of agent {agent.name!r}")
        for spec in agent.fallback:
            models.require_known(spec, place=f"fallback of agent {agent.name!r}")
    if app.app.judge is not None:
        models.require_known(app.app.judge.model, place="model of the judge")
