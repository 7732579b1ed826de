"""The error for one thing in an order that does not fit."""

from __future__ import annotations

from turngate.domain.errors import InvalidInputError


def invalid(pointer: str, message: str) -> InvalidInputError:
    """Return the error that says what does not fit, and where (a JSON pointer into the body)."""
    return InvalidInputError(f"{pointer}: {message}", errors=[{"pointer": pointer, "message": message}])
