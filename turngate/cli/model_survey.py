"""What ``turngate models`` finds: each profile, model and provider, and whether it can be used from here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Literal

from turngate.cli.model_wiring import build_models
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import TurngateError
from turngate.models.port import ModelRequest
from turngate.models.registry import Models
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings

ANY_NAME = "model"
"""A provider is made with some model's name to see whether its package and key are there: it is not asked."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One line. ``model``: what a profile stands for, or empty. ``problem``: why it cannot be used; empty when it can.

    ``answered``: None when it was not asked. ``details``: what its profile says of it.
    """

    kind: Literal["profile", "model", "provider"]
    name: str
    model: str = ""
    details: str = ""
    problem: str = ""
    answered: bool | None = None


async def survey(settings: Settings, app: LoadedApp, *, probe: bool) -> AsyncIterator[Seen]:
    """Yield profiles, then models that are named elsewhere, then providers. ``probe``: ask the first two a short question.

    Raises ConfigurationError when the models file is wrong.
    """
    models = build_models(settings, script_base=app.base)
    try:
        models.require_profiles()
        for name, profile in models.profiles.items():
            problem, answered = await _looked_at(models, name, probe=probe)
            told = _details(profile)
            yield Seen(kind="profile", name=name, model=profile.model, details=told, problem=problem, answered=answered)
        for spec in _named(app, models.profiles):
            problem, answered = await _looked_at(models, spec, probe=probe)
            yield Seen(kind="model", name=spec, problem=problem, answered=answered)
        for provider in models.providers:
            spec = f"{provider}:{ANY_NAME}"
            problem = "" if provider == "scripted" else (await _looked_at(models, spec, probe=False))[0]
            yield Seen(kind="provider", name=provider, problem=problem.removeprefix(f"the model {spec!r} "))
    finally:
        await models.aclose()


async def _looked_at(models: Models, spec: str, *, probe: bool) -> tuple[str, bool | None]:
    """Return why a model cannot be used, and whether it answered. A scripted one is not asked: that would play its first line."""
    try:
        model = models.resolve(spec)
        if not probe or models.profiles.model(spec).startswith("scripted:"):
            return "", None
        question = [user_message("Answer with the word: ready")]
        await model.generate(ModelRequest(messages=question, options=models.profiles.options(spec)))
    except TurngateError as error:
        return error.message, None if not probe else False
    return "", True


def _named(app: LoadedApp, profiles: Profiles) -> Iterable[str]:
    """Return the specs of agents and fallbacks that are no profile's name, each once."""
    specs = [spec for agent in app.agents.values() for spec in (agent.model, *agent.fallback)]
    specs += [spec for profile in profiles.values() for spec in profile.fallback]
    return dict.fromkeys(spec for spec in specs if spec not in profiles)


def _details(profile: Profile) -> str:
    said = profile.options.model_dump(exclude_none=True)
    told = [f"{name.replace('_', ' ')} {value}" for name, value in said.items()]
    if profile.context_window is not None:
        told.append(f"context {profile.context_window:,}")
    if profile.fallback:
        told.append(f"fallback {', '.join(profile.fallback)}")
    return "; ".join(told)
