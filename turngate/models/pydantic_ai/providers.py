"""Create a model from a provider's name and a model's name: keys and addresses come from the environment.

Owns which variables are read. Keys have the providers' own names (``ANTHROPIC_API_KEY``); an address is
``TURNGATE_<PROVIDER>_BASE_URL``, or the variable of the provider's own client.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import infer_model
from pydantic_ai.providers import Provider, infer_provider_class

from turngate.domain.errors import ConfigurationError, MissingExtraError
from turngate.http_environment import ask_directly, require_usable, without_credentials
from turngate.models.pydantic_ai.errors import ProviderEndpoint, secrets_in
from turngate.models.pydantic_ai.model import PydanticAIModel
from turngate.models.pydantic_ai.stream_end import watch_ends

CONNECT_TIMEOUT_SECONDS: Final = 10.0
KEY: Final[Mapping[str, str]] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK (or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
    "google": "GOOGLE_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
}
VARIABLE: Final = re.compile(r"`([A-Z][A-Z0-9_]{3,})`")
PACKAGE_EXTRA: Final = re.compile(r"pydantic-ai-slim\[[a-z,-]+\]")


def make(provider: str, name: str, *, timeout: float) -> PydanticAIModel:
    """Return the model. ``timeout``: seconds for one whole request; in a stream, for the silence between two pieces.

    Raises:
        ConfigurationError: no such provider, or its package, key or region is missing; the message says the fix.
    """
    spec = f"{provider}:{name}"
    base_url = os.environ.get(base_url_variable(provider), "").strip().rstrip("/") or None
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{base_url_variable(provider)} must be a URL that begins with http:// or https://")
    require_usable()
    ask_directly(base_url or os.environ.get(f"{_variable_part(provider)}_BASE_URL", ""))
    try:
        model = infer_model(spec, lambda inferred: _watched(_provider(inferred, base_url, timeout)))
        url = without_credentials(model.base_url or base_url or "")
    except ImportError as error:
        package = PACKAGE_EXTRA.search(str(error))
        if package is None:
            raise MissingExtraError(f"the model {spec!r}", "providers", spec=spec) from None
        raise ConfigurationError(
            f"the model {spec!r} needs a package that is not installed: pip install '{package[0]}'", spec=spec
        ) from None
    except UserError as error:
        raise ConfigurationError(_fix(spec, str(error)), spec=spec) from None
    endpoint = ProviderEndpoint(
        provider=provider,
        model=name,
        url=url,
        key=KEY.get(provider, ""),
        base_url=base_url_variable(provider),
        secrets=secrets_in(os.environ),
    )
    return PydanticAIModel(model, endpoint, timeout=timeout)


def is_known(provider: str) -> bool:
    """Whether pydantic-ai has such a provider; one whose package is missing counts."""
    try:
        infer_provider_class(provider)
    except ValueError:
        return False
    except ImportError:
        return True
    return True


def base_url_variable(provider: str) -> str:
    """Return the name of the variable with a provider's address."""
    return f"TURNGATE_{_variable_part(provider)}_BASE_URL"


def _variable_part(provider: str) -> str:
    return provider.upper().replace("-", "_")


def _watched(provider: Provider[Any]) -> Provider[Any]:
    watch_ends(provider.client)
    return provider


def _provider(name: str, base_url: str | None, timeout: float) -> Provider[Any]:
    if name == "bedrock":
        return _bedrock(base_url, timeout)
    provider = infer_provider_class(name)
    if base_url is None:
        return provider()
    if "base_url" not in inspect.signature(provider.__init__).parameters:
        raise UserError(f"{base_url_variable(name)} is set, but {name!r} takes no other address; unset it")
    return provider(base_url=base_url)  # type: ignore[call-arg]


def _bedrock(base_url: str | None, timeout: float) -> Provider[Any]:
    """Return Bedrock with a client that tries once: botocore's retries can only be set when the client is created."""
    # By name: they are only installed with Bedrock's extra, and have no types.
    boto3, botocore = importlib.import_module("boto3"), importlib.import_module("botocore")
    once = importlib.import_module("botocore.config").Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        read_timeout=timeout,
        connect_timeout=min(timeout, CONNECT_TIMEOUT_SECONDS),
    )
    try:
        client = boto3.Session().client("bedrock-runtime", config=once, endpoint_url=base_url)
    except botocore.exceptions.BotoCoreError as error:
        raise UserError(f"{error} Set AWS_DEFAULT_REGION, or AWS_PROFILE to a profile with a region") from None
    bedrock: type[Any] = infer_provider_class("bedrock")
    provider: Provider[Any] = bedrock(bedrock_client=client)
    return provider


def _fix(spec: str, message: str) -> str:
    variable = VARIABLE.search(message)
    if variable is not None and variable[1].endswith("_API_KEY"):
        return f"the model {spec!r} needs a key: set {variable[1]}"
    first, _, _ = message.partition(" or pass")
    return f"the model {spec!r} cannot be used: {first.rstrip('.')}"
