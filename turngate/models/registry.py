"""Resolve a model's spec (``provider:name``, or a profile's name): the one module that knows every adapter."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx
from pydantic import SecretStr

from turngate.domain.agents.app import App
from turngate.domain.agents.model_profiles import Profiles
from turngate.domain.errors import ConfigurationError
from turngate.http_environment import client_for
from turngate.models.openai.client import OpenAICompatibleModel
from turngate.models.port import LanguageModel
from turngate.models.profiles import find_models_file, load_profiles
from turngate.models.pydantic_ai.loader import FORMS as PROVIDER_FORMS
from turngate.models.pydantic_ai.loader import PROVIDERS, knows_provider, provider_model
from turngate.models.scripted import ScriptedModel

OPENAI_BASE_URL: Final = "https://api.openai.com/v1"
"""OpenAI's own API: the default address of ``openai:``."""

FORMS: Final = (
    "openai:NAME (any server that speaks OpenAI's chat completions; where: TURNGATE_OPENAI_BASE_URL) "
    f"or {PROVIDER_FORMS}, or scripted:FILE (plays a YAML or JSON script)"
)

BUILT_IN: Final = ("openai", *PROVIDERS, "scripted")
"""The providers that Turngate lists."""


def declared_models(app: App, profiles: Profiles) -> tuple[str, ...]:
    """Return the specs that the app and the profiles name: those that a person or program may choose for a run."""
    of_profiles = (spec for each in profiles.values() for spec in (each.model, *each.fallback))
    of_agents = (spec for agent in app.all_agents for spec in (agent.model, *agent.fallback))
    return tuple(dict.fromkeys((*of_profiles, *of_agents)))


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The adapters' settings.

    ``openai_base_url`` None: OpenAI's own. ``script_base``: the directory that the file of ``scripted:FILE`` is relative
    to. ``timeout_seconds``: for one whole request to a model.
    """

    openai_base_url: str | None = None
    openai_api_key: SecretStr | None = None
    script_base: Path = Path()
    timeout_seconds: float = 120.0


class FromSettings(Protocol):
    """What models need of the settings, whose other fields are not theirs (``turngate.runtime.settings.Settings``)."""

    @property
    def openai_base_url(self) -> str | None:
        """As of :class:`ModelSettings`."""

    @property
    def openai_api_key(self) -> SecretStr | None:
        """As of :class:`ModelSettings`."""

    @property
    def models_file(self) -> Path | None:
        """The file of profiles, if one is named."""

    @property
    def data_dir(self) -> Path:
        """Where the file is looked for first."""


class Models:
    """The models of one process, each created once; a provider's models share their connections."""

    def __init__(self, settings: ModelSettings, profiles: Profiles | None = None) -> None:
        self._settings = settings
        self.profiles = profiles or Profiles()
        self._resolved: dict[str, LanguageModel] = {}
        self._scripts: dict[str, tuple[int, ...]] = {}
        self._client: httpx.AsyncClient | None = None

    def resolve(self, spec: str) -> LanguageModel:
        """Return the model of this spec: the same object every time, and for every profile of one model.

        A script whose file has changed is read again: a run that failed because of it can be retried at once.

        Raises:
            ConfigurationError: no such form or profile, no readable script, or OpenAI's own API without a key.
        """
        spec = self._named(spec)
        provider, _colon, name = spec.partition(":")
        if provider == "scripted" and name:
            file = self._script(name)
            read = _state_of(file)
            if self._scripts.get(spec) != read:
                self._resolved[spec] = ScriptedModel.from_file(file)
                self._scripts[spec] = read
        elif spec not in self._resolved:
            self._resolved[spec] = self._make(spec)
        return self._resolved[spec]

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers that Turngate lists, and those that a profile names."""
        named = (
            spec.partition(":")[0] for profile in self.profiles.values() for spec in (profile.model, *profile.fallback)
        )
        return tuple(dict.fromkeys((*BUILT_IN, *(name for name in named if name not in self.profiles))))

    def require_known(self, spec: str, *, place: str) -> None:
        """Refuse a spec that names no profile and no known provider. Does not check whether the provider's key is set.

        Raises ConfigurationError. ``place``: where the spec is; the message begins with it.
        """
        try:
            provider = self._named(spec).partition(":")[0]
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}: {error.message}", spec=spec) from None
        if provider not in BUILT_IN and not knows_provider(provider):
            raise ConfigurationError(f"{place}: there is no model {spec!r}; a model is {FORMS}", spec=spec)

    def require_profiles(self) -> None:
        """Refuse profiles of unknown providers. Raises ConfigurationError."""
        for name, profile in self.profiles.items():
            for key, spec in (("model", profile.model), *(("fallback", spec) for spec in profile.fallback)):
                self.require_known(spec, place=f"models file {self.profiles.source}, [profile.{name}] {key}")

    def context_window(self, spec: str) -> int | None:
        """Return how many tokens the model of a profile accepts; None if no profile says so."""
        profile = self.profiles.get(spec)
        return None if profile is None else profile.context_window

    def _named(self, spec: str) -> str:
        try:
            return self.profiles.model(spec)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error.message}; without a profile a model is {FORMS}", spec=spec) from None

    async def aclose(self) -> None:
        """Close every model. Safe to repeat; models resolved before cannot be used afterwards."""
        models, self._resolved = self._resolved, {}
        client, self._client = self._client, None
        for model in models.values():
            await model.aclose()
        if client is not None:
            await client.aclose()

    def _make(self, spec: str) -> LanguageModel:
        provider, _colon, name = spec.partition(":")
        match provider:
            case "openai" if name:
                return self._openai(name)
            case _ if name and (model := provider_model(provider, name, timeout=self._settings.timeout_seconds)):
                return model
            case _:
                raise ConfigurationError(f"there is no model {spec!r}; a model is {FORMS}", spec=spec)

    def _script(self, name: str) -> Path:
        """Return the file of a script; raises ConfigurationError unless it really lies below the app's directory."""
        base = Path(os.path.realpath(self._settings.script_base))
        file = Path(os.path.realpath(base / name))
        if not file.is_relative_to(base):
            raise ConfigurationError(
                f"the script of scripted:{name} lies outside the app's directory {base}: move it there, and name it by its "
                "path from there"
            )
        return file

    def _openai(self, name: str) -> LanguageModel:
        base_url = self._settings.openai_base_url or OPENAI_BASE_URL
        secret = self._settings.openai_api_key
        key = secret.get_secret_value() if secret else None
        if not key and base_url.rstrip("/") == OPENAI_BASE_URL:
            raise ConfigurationError(
                f"the model 'openai:{name}' needs a key: set TURNGATE_OPENAI_API_KEY. For a server that needs none "
                "(Ollama, vLLM, llama.cpp) set TURNGATE_OPENAI_BASE_URL."
            )
        self._client = self._client or client_for(base_url)
        return OpenAICompatibleModel(base_url, key, name, timeout=self._settings.timeout_seconds, client=self._client)


def _state_of(file: Path) -> tuple[int, ...]:
    """Return what differs once a file was changed; empty if there is none."""
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


def build_models(
    settings: FromSettings, *, script_base: Path, make: Callable[[ModelSettings, Profiles], Models] = Models
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
