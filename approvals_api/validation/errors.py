"""The error for one part of a body that does not fit."""

from __future__ import annotations

from turngate.domain.errors import InvalidInputError


def invalid(pointer: str, message: str, *, code: str = InvalidInputError.code) -> InvalidInputError:
    """Return the error that says what does not fit, and where (a JSON pointer into the body)."""
    return InvalidInputError(f"{pointer}: {message}", code=code, errors=[{"pointer": pointer, "message": message}])
