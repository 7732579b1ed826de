"""The error for one part of a body that does not fit."""

from __future__ import annotations

from turngate.domain.errors import InvalidInputError
from turngate.domain.text.json_pointers import tokens_of


def member_of(pointer: str) -> str:
    """Return the member of a body as people read it: ``/bounds/agents`` is ``bounds.agents``."""
    return ".".join(tokens_of(pointer)) or "the body"


def invalid(pointer: str, message: str, *, code: str = InvalidInputError.code) -> InvalidInputError:
    """Return the error that says what does not fit, and where (a JSON pointer into the body)."""
    return InvalidInputError(
        f"{member_of(pointer)}: {message}", code=code, errors=[{"pointer": pointer, "message": message}]
    )
