"""Turn an error of pydantic-ai or a provider's client into a :class:`ModelError`: its class, whether to retry, and when. Pure.

pydantic-ai puts a provider's refusal into a category, by status, code and words; the category decides here. A message never
contains a key from the environment.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from turngate.domain.errors import ADAPTER_BUG, ModelError, ModelErrorClass
from turngate.domain.text.sentences import as_sentence
from turngate.models.openai.errors import (
    LOOKS_LIKE_A_KEY,
    MAX_REASON_CHARS,
    MAX_RETRY_AFTER_SECONDS,
    TOO_LONG,
    USED_UP,
)

SECRET_NAME: Final = re.compile(r"(_API_KEY|_TOKEN|_SECRET|_SECRET_ACCESS_KEY|_BEARER_TOKEN_BEDROCK)$")
MIN_SECRET_CHARS: Final = 6
FORBIDDEN: Final = 403
TOO_LARGE: Final = 413
SERVER_ERROR: Final = 500
COME_BACK: Final = frozenset({408, 409, 425, 429})
FAILED_DEPENDENCY: Final = 424
"""Bedrock's status if the model itself failed (ModelErrorException); the same request may succeed later."""
TOO_LONG_FOR: Final = "the conversation is longer than {model!r} takes; use a model with a larger context"
NO_CREDENTIALS: Final = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "DefaultCredentialsError",
    }
)
"""The errors of AWS's and Google's clients if there are no credentials; they only notice when they send."""


@dataclass(frozen=True, kw_only=True)
class ProviderEndpoint:
    """Where a request went, for messages. ``url``: without credentials. ``key``: the variable of the key, "" if unknown.

    ``base_url``: the variable of the address. ``secrets``: to redact.
    """

    provider: str
    model: str
    url: str
    key: str
    base_url: str
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def redact(self, text: str) -> str:
        """Return the text on one line without any key, clipped to 16,000 characters."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return LOOKS_LIKE_A_KEY.sub("***", " ".join(text.split()))[:MAX_REASON_CHARS]


def secrets_in(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the values that must never be displayed: those of variables whose name says that they are keys."""
    values = (value.strip() for name, value in environment.items() if SECRET_NAME.search(name))
    return frozenset(value for value in values if len(value) >= MIN_SECRET_CHARS)


def model_error(error: Exception, endpoint: ProviderEndpoint) -> ModelError:
    """Return the error as a ModelError; a ModelError is returned unchanged."""
    if isinstance(error, ModelError):
        return error
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    reason = endpoint.redact(_reason(error))
    error_class, retryable, template = _classified(error, status, reason)
    message = template.format(
        at=f"{endpoint.provider} ({endpoint.url})",
        model=endpoint.model,
        base_url=endpoint.base_url,
        set_key=f"; set {endpoint.key} to a valid one" if endpoint.key else "",
    )
    wait = error.retry_after if retryable and isinstance(error, ModelAPIError) else None
    return ModelError(
        f"{as_sentence(message)} It said: {reason}" if reason else message,
        error_class=error_class,
        retryable=retryable,
        retry_after_seconds=None if wait is None else min(max(0.0, wait), MAX_RETRY_AFTER_SECONDS),
        status=status,
    )


LIBRARY: Final = "pydantic_ai/models/"
READS: Final = ("_process_", "_get_event_iterator")
"""How the functions of pydantic-ai's models begin that read an answer, whole or streamed."""
UNREADABLE: Final = (UnicodeError, EOFError, OSError, RecursionError)
"""Errors of Python's own that a provider's answer may raise where it is read. Any other (KeyError …) is a bug of our side; a
client's own errors have classes of its own."""

_Kind = tuple[ModelErrorClass, bool, str]
"""The class, whether the same request may succeed later, and the message, with fields of the endpoint."""

QUOTA: Final[_Kind] = (
    "permission",
    False,
    "the account of the key at {at} has used up its quota; raise it or use another key",
)
KINDS: Final[tuple[tuple[type[Exception] | tuple[type[Exception], ...], _Kind], ...]] = (
    (ModelQuotaExceededError, QUOTA),
    (ModelAuthenticationError, ("authentication", False, "{at} refused the key{set_key}")),
    (ModelContextWindowExceededError, ("context_length", False, TOO_LONG_FOR)),
    (
        ModelNotFoundError,
        ("not_found", False, "{at} has no model named {model!r}; check the agent's model, and {base_url}"),
    ),
    (ModelRateLimitError, ("rate_limited", True, "{at} asks to come back later")),
    ((ModelUnavailableError, ModelServerError), ("server_error", True, "{at} failed")),
    (
        (ModelConnectionError, ModelRequestTimeout, TimeoutError),
        ("unreachable", True, "no whole answer from {at}; is it running, and is {base_url} right?"),
    ),
    (ContentFilterError, ("bad_response", False, "{at} filtered the answer away")),
    (UserError, ("configuration", False, "{model!r} cannot do what it is asked")),
    (NotImplementedError, ("invalid_request", False, "{model!r} does not take what the conversation holds")),
)
"""The first match counts; pydantic-ai's category takes precedence over the status."""


def _classified(error: Exception, status: int | None, reason: str) -> _Kind:
    if isinstance(error, ModelAuthenticationError) and status == FORBIDDEN:
        return "permission", False, "{at} does not allow this key to use {model!r}"
    if isinstance(error, ModelRateLimitError) and USED_UP.search(reason):
        return QUOTA
    for types, kind in KINDS:
        if isinstance(error, types):
            return kind
    if isinstance(error, ModelHTTPError | ModelRequestRejectedError):
        return _rejected(status, reason)
    if _lacks_credentials(error):
        return "authentication", False, "there are no credentials for {at}{set_key}"
    if type(error).__module__.startswith("botocore."):  # refused before it was sent: a wrong address or profile
        return "configuration", False, "the client of {at} cannot send the request"
    if type(error).__module__ == "builtins" and not isinstance(error, UNREADABLE) and not _is_of_reading(error):
        return "configuration", False, f"the adapter for {{at}} raised {type(error).__name__}. {ADAPTER_BUG}"
    return "bad_response", True, "the answer from {at} cannot be read"


def _is_of_reading(error: Exception) -> bool:
    """Tell whether pydantic-ai raised this where it reads an answer: it takes a missing member for granted, for one."""
    functions = (frame.f_code for frame, _line in traceback.walk_tb(error.__traceback__))
    return any(each.co_name.startswith(READS) and LIBRARY in each.co_filename for each in functions)


def _rejected(status: int | None, reason: str) -> _Kind:
    if status in COME_BACK:
        return "rate_limited", True, f"{{at}} asks to come back later (status {status})"
    if status is not None and (status == FAILED_DEPENDENCY or status >= SERVER_ERROR):
        return "server_error", True, f"{{at}} failed (status {status})"
    if status == TOO_LARGE or TOO_LONG.search(reason):
        return "context_length", False, TOO_LONG_FOR
    return "invalid_request", False, f"{{at}} does not accept the request (status {status})"


def _lacks_credentials(error: Exception) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in NO_CREDENTIALS:
            return True
        cause = cause.__cause__
    return False


def _reason(error: Exception) -> str:
    """Return the provider's own words: the message in its body, else the client's."""
    if isinstance(error, ModelAPIError):
        return _message_in(error.body) or ("" if isinstance(error, ModelHTTPError) else error.message)
    if isinstance(error, UnexpectedModelBehavior):
        return error.message
    return str(error) or type(error).__name__


def _message_in(body: Any) -> str:
    if isinstance(body, str) and body.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            body = json.loads(body)
    if not isinstance(body, dict):
        return body if isinstance(body, str) else ""
    inner = body.get("error", body.get("Error"))
    for place in (inner, body):
        if isinstance(place, dict):
            words = place.get("message", place.get("Message", place.get("detail")))
            if words:
                return words if isinstance(words, str) else str(words)
    return inner if isinstance(inner, str) else ""
