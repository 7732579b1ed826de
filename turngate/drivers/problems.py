"""Errors of the API as the problem documents (RFC 9457) that it sent, for drivers to hand on."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

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

STATUS_OF: Final[Mapping[type[TurngateError], HTTPStatus]] = {
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    ConflictError: HTTPStatus.CONFLICT,
    GoneError: HTTPStatus.GONE,
    InvalidInputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    TooManyRequestsError: HTTPStatus.TOO_MANY_REQUESTS,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def status_of(error: TurngateError) -> HTTPStatus:
    """Return the HTTP status that the API answers such an error with."""
    found = (STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    return next(found, HTTPStatus.INTERNAL_SERVER_ERROR)


def problem_of(error: TurngateError) -> dict[str, Any]:
    """Return the problem document of an error, as the API would have sent it."""
    status = status_of(error)
    return {
        **error.details,
        "type": f"urn:turngate:problem:{error.error_code}",
        "title": status.phrase,
        "status": int(status),
        "detail": error.message,
        "code": error.error_code,
    }
