"""Errors as problem documents (RFC 9457): the HTTP status of each error, and its document."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from turngate.domain.errors import (
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidInputError,
    ModelError,
    NotFoundError,
    TooManyRequestsError,
    TurngateError,
    UnauthenticatedError,
    UnavailableError,
)

STATUS_OF: Final[Mapping[type[TurngateError], HTTPStatus]] = {
    InvalidInputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    UnauthenticatedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    NotFoundError: HTTPStatus.NOT_FOUND,
    ConflictError: HTTPStatus.CONFLICT,
    GoneError: HTTPStatus.GONE,
    TooManyRequestsError: HTTPStatus.TOO_MANY_REQUESTS,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    ConfigurationError: HTTPStatus.INTERNAL_SERVER_ERROR,
    ModelError: HTTPStatus.BAD_GATEWAY,
}


def status_of(error: TurngateError) -> HTTPStatus:
    """Return the HTTP status of an error; 500 if the table has none."""
    statuses = (STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    return next(statuses, HTTPStatus.INTERNAL_SERVER_ERROR)


def problem_of(error: TurngateError) -> dict[str, Any]:
    """Return the problem document of an error, as the API sends it."""
    return problem_document(status_of(error), error.error_code, error.message, error.details)


def problem_document(status: int, code: str, detail: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem document. ``details`` become its members; one that would hide a standard member gets a ``_``."""
    own = {
        "type": f"urn:turngate:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
    }
    more = {f"{name}_" if name in own else name: value for name, value in details.items()}
    return {**own, **more}
