"""Load models through pydantic-ai, which is an extra and is imported when the first model needs it.

Imports nothing of pydantic-ai itself, so that Turngate works without it, and starts without the second that it takes to
import.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol, cast

from turngate.domain.errors import MissingExtraError
from turngate.models.port import StreamingModel

PROVIDERS: Final = ("anthropic", "google", "bedrock", "mistral", "groq")
"""The providers of the extra ``providers``; pydantic-ai knows more, each with its own package."""
FORMS: Final = "NAME:MODEL of anthropic, google, bedrock, mistral or groq (their keys by their own variables)"
ALIASES: Final = {"google-gla": "google", "google-vertex": "google-cloud"}
"""Older names for two of them; provider options are stored under one name."""


class _Providers(Protocol):
    def is_known(self, provider: str) -> bool: ...

    def make(self, provider: str, name: str, *, timeout: float) -> StreamingModel: ...


def knows_provider(provider: str) -> bool:
    """Whether there is such a provider; those of the extra ``providers`` count even if it is not installed."""
    if provider in PROVIDERS or provider in ALIASES:
        return True
    try:
        providers = cast("_Providers", importlib.import_module("turngate.models.pydantic_ai.providers"))
    except ImportError:
        return False
    return providers.is_known(provider)


def provider_model(provider: str, name: str, *, timeout: float) -> StreamingModel | None:
    """Return the model, or None if there is no such provider. ``timeout``: seconds for one whole request.

    Raises:
        ConfigurationError: pydantic-ai, the provider's package or its key is missing; the message says the fix.
    """
    provider = ALIASES.get(provider, provider)
    try:
        providers = cast("_Providers", importlib.import_module("turngate.models.pydantic_ai.providers"))
    except ImportError:
        if provider not in PROVIDERS:
            return None
        spec = f"{provider}:{name}"
        raise MissingExtraError(f"the model {spec!r}", "providers", spec=spec) from None
    return providers.make(provider, name, timeout=timeout) if providers.is_known(provider) else None
