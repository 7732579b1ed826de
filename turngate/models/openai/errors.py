"""Turn a provider's refusal into a :class:`ModelError`: its class, whether to try again, and when. Pure.

Statuses and codes: https://platform.openai.com/docs/guides/error-codes and
https://openrouter.ai/docs/api/reference/errors-and-debugging. A message never contains the key.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final

from turngate.domain.errors import ModelError, ModelErrorClass

MAX_REASON_CHARS: Final = 16_000
"""Of a provider's own words. They are stored whole; where they are quoted, a beginning of them is enough."""
MAX_RETRY_AFTER_SECONDS: Final = 86_400.0

STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
}
"""For errors inside an answer of status 200 that have a word instead of a number; any other word counts as 500."""

TOO_LONG: Final = re.compile(
    r"maximum context length|context (?:window|length|size)|too many tokens|prompt is too long|"
    r"input tokens exceed|request too large",
    re.IGNORECASE,
)
"""The words of servers without the code ``context_length_exceeded`` (vLLM, llama.cpp, OpenRouter)."""

USED_UP: Final = re.compile(
    r"usage limit|(?:daily|weekly|monthly) limit|out of credits?|insufficient (?:credits?|balance|funds|quota)|"
    r"credit balance|credits? (?:(?:are|is|were|have been) )?(?:used up|exhausted|depleted)",
    re.IGNORECASE,
)
"""The words of providers whose quota is used up, with the status of those that only ask for a pause."""

LOOKS_LIKE_A_KEY: Final = re.compile(r"\b(?:sk|pk|gsk|key)-[A-Za-z0-9_*.\-]{8,}|\bBearer\s+\S+")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a request went, for messages. ``url``: without credentials. ``secret``: the key, to redact it."""

    url: str
    model: str
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, model={self.model!r})"

    def redact(self, text: str) -> str:
        """Return the text without the key or anything that looks like one, clipped to 16,000 characters."""
        if self.secret:
            text = text.replace(self.secret, "***")
        return LOOKS_LIKE_A_KEY.sub("***", text)[:MAX_REASON_CHARS]


def error_of_status(
    status: int, headers: Mapping[str, str], content: bytes, endpoint: Endpoint, *, now: datetime | None = None
) -> ModelError:
    """Return the error for an answer whose status is not 2xx. ``headers``: with lower-case names, or case-insensitive."""
    try:
        body: Any = json.loads(content)
    except (ValueError, RecursionError):
        body = content.decode(errors="replace").strip()
    error = body["error"] if isinstance(body, dict) and body.get("error") else body
    wait = retry_after_seconds(headers, now=now or datetime.now(UTC))
    if status < 400:  # noqa: PLR2004 - RFC 9110: 3xx is a redirection
        return _redirected(status, headers, endpoint)
    return _classified(status, error, endpoint, wait)


def error_in_body(error: Any, endpoint: Endpoint) -> ModelError:
    """Return the error for an ``error`` inside an answer of status 200, by its ``code``."""
    code = error.get("code") if isinstance(error, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if isinstance(code, int) and 400 <= code < 600:  # noqa: PLR2004 - the range of HTTP's error statuses
        return _classified(code, error, endpoint, None)
    known = (STATUS_OF_CODE.get(str(word)) for word in (code, kind))
    return _classified(next((status for status in known if status), 500), error, endpoint, None)


def retry_after_seconds(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return how long the provider asks to wait, 0 to 86400 seconds, or None when it does not say.

    Reads ``retry-after-ms`` (OpenAI's), then ``Retry-After`` as seconds or as an HTTP date (RFC 9110 §10.2.3).
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return _bounded(seconds)
    try:
        at = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    return _bounded(((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


def _bounded(seconds: float) -> float:
    return min(max(0.0, seconds), MAX_RETRY_AFTER_SECONDS)


def _redirected(status: int, headers: Mapping[str, str], endpoint: Endpoint) -> ModelError:
    target = endpoint.redact(headers.get("location", "elsewhere"))
    return ModelError(
        f"{endpoint.url} redirects to {target}; set TURNGATE_OPENAI_BASE_URL to where the API really is",
        error_class="configuration",
        retryable=False,
        status=status,
    )


_CLASSES: Final[Mapping[int, ModelErrorClass]] = {
    401: "authentication",
    402: "permission",
    403: "permission",
    404: "not_found",
    405: "not_found",
    408: "rate_limited",
    409: "rate_limited",
    410: "not_found",
    413: "context_length",
    425: "rate_limited",
    429: "rate_limited",
}
_RETRYABLE: Final = frozenset[ModelErrorClass]({"rate_limited", "server_error"})


def _classified(status: int, error: Any, endpoint: Endpoint, wait: float | None) -> ModelError:
    reason = _reason(error, endpoint)
    codes = {str(error.get(key)) for key in ("code", "type")} if isinstance(error, dict) else set()
    error_class = _class_of(status, codes, reason)
    message = _message_of(error_class, status, endpoint)
    retryable = error_class in _RETRYABLE
    return ModelError(
        f"{message}. It said: {reason}" if reason else message,
        error_class=error_class,
        retryable=retryable,
        retry_after_seconds=wait if retryable else None,
        status=status,
    )


def _reason(error: Any, endpoint: Endpoint) -> str:
    """Return the provider's own words. OpenRouter has the upstream provider's in ``metadata.raw``."""
    if not isinstance(error, dict):
        return endpoint.redact(" ".join(str(error or "").split()))
    words = str(error.get("message") or error.get("detail") or "")
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        words = f"{words}: {metadata['raw']}"
    return endpoint.redact(" ".join(words.split()))


def _class_of(status: int, codes: set[str], reason: str) -> ModelErrorClass:
    if status == HTTPStatus.TOO_MANY_REQUESTS and ("insufficient_quota" in codes or USED_UP.search(reason)):
        return "permission"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    if status in _CLASSES:
        return _CLASSES[status]
    if "context_length_exceeded" in codes or TOO_LONG.search(reason):
        return "context_length"
    return "invalid_request"


def _message_of(error_class: ModelErrorClass, status: int, endpoint: Endpoint) -> str:
    url, model = endpoint.url, endpoint.model
    match error_class:
        case "authentication" if endpoint.secret is None:
            return f"the provider at {url} wants a key; set TURNGATE_OPENAI_API_KEY"
        case "authentication":
            return f"the provider at {url} refused the key; set TURNGATE_OPENAI_API_KEY to a valid one"
        case "permission" if status == HTTPStatus.PAYMENT_REQUIRED:
            return f"the account of the key at {url} has no credit; add credit or use another key"
        case "permission" if status == HTTPStatus.TOO_MANY_REQUESTS:
            return f"the account of the key at {url} has used up its quota; raise it or use another key"
        case "permission":
            return f"the provider at {url} does not allow this key to use {model!r}"
        case "not_found":
            return (
                f"no model named {model!r} at {url}; "
                "check the agent's model, and that TURNGATE_OPENAI_BASE_URL ends where /chat/completions begins"
            )
        case "rate_limited":
            return f"the provider at {url} asks to come back later (status {status})"
        case "server_error":
            return f"the provider at {url} failed (status {status})"
        case "context_length":
            return f"the conversation is longer than {model!r} takes; use a model with a larger context"
        case _:
            return f"the provider at {url} does not accept the request (status {status})"
