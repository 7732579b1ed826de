"""From a provider's refusal to a :class:`ModelError`: its class, whether to try again, and when. Pure.

Statuses and codes: https://platform.openai.com/docs/guides/error-codes and
https://openrouter.ai/docs/api/reference/errors-and-debugging. The key never stands in a message.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from turngate.domain.errors import ModelError, ModelErrorClass

MAX_SAID_CHARS: Final = 500
MAX_RETRY_AFTER_SECONDS: Final = 86_400.0

STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
}
"""For errors inside an answer of status 200 that give a word in place of a number; any other word counts as 500."""

TOO_LONG: Final = re.compile(
    r"maximum context length|context (?:window|length|size)|too many tokens|prompt is too long|"
    r"input tokens exceed|request too large",
    re.IGNORECASE,
)
"""How servers without the code ``context_length_exceeded`` say it (vLLM, llama.cpp, OpenRouter)."""

LOOKS_LIKE_A_KEY: Final = re.compile(r"\b(?:sk|pk|gsk|key)-[A-Za-z0-9_*.\-]{8,}|\bBearer\s+\S+")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a request went, for messages. ``url``: without credentials. ``secret``: the key, to strike it out."""

    url: str
    model: str
    secret: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r}, model={self.model!r})"

    def redact(self, text: str) -> str:
        """Return the text without the key or anything that looks like one, clipped to 500 characters."""
        if self.secret:
            text = text.replace(self.secret, "***")
        return LOOKS_LIKE_A_KEY.sub("***", text)[:MAX_SAID_CHARS]


def error_of_status(
    status: int, headers: Mapping[str, str], content: bytes, endpoint: Endpoint, *, now: datetime | None = None
) -> ModelError:
    """Return the error for an answer whose status is not 2xx. ``headers``: with lower-case names, or case-insensitive."""
    try:
        body: Any = json.loads(content)
    except ValueError:
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


def _classified(status: int, error: Any, endpoint: Endpoint, wait: float | None) -> ModelError:
    said = _said(error, endpoint)
    codes = {str(error.get(key)) for key in ("code", "type")} if isinstance(error, dict) else set()
    retryable = False
    match status:
        case 401:
            error_class: ModelErrorClass = "authentication"
            message = f"the provider at {endpoint.url} refused the key; set TURNGATE_OPENAI_API_KEY to a valid one"
            if endpoint.secret is None:
                message = f"the provider at {endpoint.url} wants a key; set TURNGATE_OPENAI_API_KEY"
        case 402 | 403:
            error_class = "permission"
            message = f"the provider at {endpoint.url} does not allow this key to use {endpoint.model!r}"
            if status == 402:  # noqa: PLR2004 - RFC 9110 §15.5.3: payment required
                message = f"the account behind the key at {endpoint.url} has no credit; add credit or use another key"
        case 404 | 405 | 410:
            error_class = "not_found"
            message = (
                f"no model named {endpoint.model!r} at {endpoint.url}; "
                "check the agent's model, and that TURNGATE_OPENAI_BASE_URL ends where /chat/completions begins"
            )
        case 429 if "insufficient_quota" in codes:
            error_class = "permission"
            message = f"the account behind the key at {endpoint.url} has used up its quota; raise it or use another key"
        case 408 | 409 | 425 | 429:
            error_class, retryable = "rate_limited", True
            message = f"the provider at {endpoint.url} asks to come back later (status {status})"
        case _ if status >= 500:  # noqa: PLR2004 - RFC 9110 §15.6: server error
            error_class, retryable = "server_error", True
            message = f"the provider at {endpoint.url} failed (status {status})"
        case _ if status == 413 or "context_length_exceeded" in codes or TOO_LONG.search(said):  # noqa: PLR2004
            error_class = "context_length"
            message = f"the conversation is longer than {endpoint.model!r} takes; use a model with a larger context"
        case _:
            error_class = "invalid_request"
            message = f"the provider at {endpoint.url} does not accept the request (status {status})"
    return ModelError(
        f"{message}. It said: {said}" if said else message,
        error_class=error_class,
        retryable=retryable,
        retry_after_seconds=wait if retryable else None,
        status=status,
    )


def _said(error: Any, endpoint: Endpoint) -> str:
    """Return the provider's own words; OpenRouter hides the upstream's in ``metadata.raw``."""
    if not isinstance(error, dict):
        return endpoint.redact(" ".join(str(error or "").split()))
    words = str(error.get("message") or error.get("detail") or "")
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):
        words = f"{words}: {metadata['raw']}"
    return endpoint.redact(" ".join(words.split()))
