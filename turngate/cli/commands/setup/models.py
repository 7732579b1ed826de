"""``turngate models``: each profile, model and provider, and whether it can be used from here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from turngate.cli import terminal
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import DEFAULT_APP, AppArgument, AsJson, DataDir
from turngate.cli.parts.confinement import load_confined
from turngate.domain.agents.model_profiles import Profile, Profiles
from turngate.domain.conversation.messages import user_message
from turngate.domain.errors import TurngateError
from turngate.models.port import ModelRequest
from turngate.models.registry import Models, build_models
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain

ANY_NAME = "model"
"""Any model's name shows whether a provider's package and key are there. The provider is not called."""


@dataclass(frozen=True, kw_only=True)
class Usable:
    """One line of the list.

    Attributes:
        kind: what it is.
        name: its name.
        model: the model of a profile, or empty.
        details: the options of a profile.
        problem: why it cannot be used; empty when it can.
        answered: whether it answered; None when it was not asked.
    """

    kind: Literal["profile", "model", "provider"]
    name: str
    model: str = ""
    details: str = ""
    problem: str = ""
    answered: bool | None = None


async def survey(settings: Settings, app: LoadedApp, *, probe: bool) -> AsyncIterator[Usable]:
    """Yield profiles, then other models that the app names, then providers. ``probe``: ask the first two a short question.

    Raises ConfigurationError when the models file is wrong.
    """
    models = build_models(settings, script_base=app.base)
    try:
        models.require_profiles()
        for name, profile in models.profiles.items():
            problem, answered = await _try_out(models, name, probe=probe)
            details = _details(profile)
            yield Usable(
                kind="profile", name=name, model=profile.model, details=details, problem=problem, answered=answered
            )
        for spec in _other_models(app, models.profiles):
            problem, answered = await _try_out(models, spec, probe=probe)
            yield Usable(kind="model", name=spec, problem=problem, answered=answered)
        for provider in models.providers:
            spec = f"{provider}:{ANY_NAME}"
            problem = "" if provider == "scripted" else (await _try_out(models, spec, probe=False))[0]
            yield Usable(kind="provider", name=provider, problem=problem.removeprefix(f"the model {spec!r} "))
    finally:
        await models.aclose()


async def _try_out(models: Models, spec: str, *, probe: bool) -> tuple[str, bool | None]:
    """Return why a model cannot be used, and whether it answered. A scripted one is not asked, as that plays its first line."""
    try:
        model = models.resolve(spec)
        if not probe or models.profiles.model(spec).startswith("scripted:"):
            return "", None
        question = [user_message("Answer with the word: ready")]
        await model.generate(ModelRequest(messages=question, options=models.profiles.options(spec)))
    except TurngateError as error:
        return error.message, None if not probe else False
    return "", True


def _other_models(app: LoadedApp, profiles: Profiles) -> Iterable[str]:
    """Return the models of agents and fallbacks that are no profile's name, each once."""
    specs = [spec for agent in app.agents.values() for spec in (agent.model, *agent.fallback)]
    specs += [spec for profile in profiles.values() for spec in profile.fallback]
    return dict.fromkeys(spec for spec in specs if spec not in profiles)


def _details(profile: Profile) -> str:
    options = profile.options.model_dump(exclude_none=True)
    details = [f"{name.replace('_', ' ')} {value}" for name, value in options.items()]
    if profile.context_window is not None:
        details.append(f"context {profile.context_window:,}")
    if profile.fallback:
        details.append(f"fallback {', '.join(profile.fallback)}")
    return "; ".join(details)


def models(
    app: AppArgument = DEFAULT_APP,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send each profile and model a short question, which may cost something.")
    ] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List profiles, models and providers, and whether each can be used from here.

    Profiles come from models.toml, other models from APP. A provider can be used when its package is installed and its key is
    set.

    Exit code: 0, or 1 when a profile or one of the app's models cannot be used.
    """
    usable = asyncio.run(_survey(load_settings(data_dir=data_dir), app, probe=probe))
    if as_json:
        terminal.raw(json.dumps([asdict(each) for each in usable]))
    else:
        _show(usable)
    if any(each.problem and each.kind != "provider" for each in usable):
        raise typer.Exit(EXIT_WENT_WRONG)


async def _survey(settings: Settings, target: str, *, probe: bool) -> list[Usable]:
    app = load_confined(settings, target)
    return [each async for each in survey(settings, app, probe=probe)]


def _show(usable: list[Usable]) -> None:
    for kind, title in (("profile", "Profiles"), ("model", "Other models"), ("provider", "Providers")):
        of_kind = [each for each in usable if each.kind == kind]
        if not of_kind:
            continue
        terminal.line((title, "bold"))
        for each in of_kind:
            alias = f" = {each.model}" if each.model else ""
            details = f" ({each.details})" if each.details else ""
            state = "answers" if each.answered else each.problem
            mark = ("  ✗ ", "red") if each.problem else ("  ✓ ", "green")
            if each.problem and kind == "provider":
                mark = ("  - ", "dim")  # without a key, which is no mistake: hardly anyone has all the keys
            terminal.line(mark, plain(f"{each.name}{alias}{details}{': ' if state else ''}{state}"))
