"""Reading answers: a model, or the error of Turngate's own that a problem document (RFC 9457) stands for."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import httpx

from turngate.client.calls import Call, Result
from turngate.domain.errors import (
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    NotFoundError,
    TooManyRequestsError,
    TurngateError,
    UnauthenticatedError,
    UnavailableError,
)

ERROR_OF: Final[Mapping[int, type[TurngateError]]] = {
    HTTPStatus.BAD_REQUEST: InvalidInputError,
    HTTPStatus.UNAUTHORIZED: UnauthenticatedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: GoneError,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: InvalidInputError,
    HTTPStatus.UNPROCESSABLE_ENTITY: InvalidInputError,
    HTTPStatus.BAD_GATEWAY: UnavailableError,
    HTTPStatus.SERVICE_UNAVAILABLE: UnavailableError,
    HTTPStatus.GATEWAY_TIMEOUT: UnavailableError,
}
_OWN_MEMBERS: Final = frozenset({"type", "title", "status", "detail", "code", "message", "self"})
"""Members of every problem document, and names that an error's constructor has taken; all others are its details."""


def read_answer(call: Call[Result], response: httpx.Response, url: str) -> Result:
    """Return the call's answer. Raises the error that the response stands for, or UnavailableError when it is not ours."""
    check(response, url)
    try:
        return call.read(response)
    except ValueError as error:
        raise UnavailableError(f"{url} does not speak Turngate's API: is the address right?") from error


def check(response: httpx.Response, url: str) -> None:
    """Raise the error that a problem document stands for, unless this is a success. The body must have been read."""
    if response.is_success:
        return
    try:
        problem = response.json()
        detail, code = str(problem["detail"]), str(problem["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UnavailableError(
            f"{url} answered {response.status_code} and does not speak Turngate's API: is the address right?"
        ) from None
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        raise TooManyRequestsError(detail, retry_after_seconds=int(retry_after(response) or 1), code=code)
    details = {name: value for name, value in problem.items() if name not in _OWN_MEMBERS}
    raise ERROR_OF.get(response.status_code, TurngateError)(detail, code=code, **details)


def retry_after(response: httpx.Response) -> float | None:
    """Return the server's wish in seconds (RFC 9110 §10.2.3); None without one, and for a date, which we never send."""
    text = response.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdecimal() else None


def no_answer(error: httpx.TransportError, url: str) -> UnavailableError:
    """Return the error for an address where nothing answers."""
    return UnavailableError(
        f"no Turngate answers at {url} ({error or type(error).__name__}): start it with `turngate up`, or give "
        "the address of one that runs with --url or TURNGATE_API_URL",
        url=url,
    )
