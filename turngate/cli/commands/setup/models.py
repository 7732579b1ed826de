"""What ``turngate models`` finds: each profile, model and provider, and whether it can be used from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from turngate.cli import terminal
from turngate.cli.builders_app import load_builders_app
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.model_registry import build_models
from turngate.cli.options import DEFAULT_APP, AppArgument, AsJson, DataDir
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import TurngateError
from turngate.models.port import ModelRequest
from turngate.models.registry import Models
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain

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


# ``turngate model`` and ``turngate models``: switch a live run's model; see which ones there are.


def models(
    app: AppArgument = DEFAULT_APP,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask each profile and model a short question; it may cost something.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List profiles, models and providers, and whether each can be used from here.

    A provider can be used when its package is installed and its key is set. Exit code 1 when a profile or a model that is
    named cannot be used.
    """
    found = asyncio.run(_found(load_settings(data_dir=data_dir), app, probe=probe))
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in found]))
    else:
        _show(found)
    if any(each.problem and each.kind != "provider" for each in found):
        raise typer.Exit(EXIT_WENT_WRONG)


async def _found(settings: Settings, target: str, *, probe: bool) -> list[Seen]:
    app = load_builders_app(target)
    return [each async for each in survey(settings, app, probe=probe)]


def _show(found: list[Seen]) -> None:
    for kind, title in (("profile", "Profiles"), ("model", "Models that are named"), ("provider", "Providers")):
        shown = [each for each in found if each.kind == kind]
        if not shown:
            continue
        terminal.line((title, "bold"))
        for each in shown:
            stands_for = f" = {each.model}" if each.model else ""
            details = f" ({each.details})" if each.details else ""
            said = "answers" if each.answered else each.problem
            mark = ("  ✗ ", "red") if each.problem else ("  ✓ ", "green")
            if each.problem and kind == "provider":
                mark = ("  - ", "dim")  # without a key, which is no mistake: hardly anybody has all of them
            terminal.line(mark, plain(f"{each.name}{stands_for}{details}{': ' if said else ''}{said}"))
