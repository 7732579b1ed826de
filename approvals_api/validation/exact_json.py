"""JSON texts that must stay as they were sent: read one member's exact text, refuse what two readers read differently.

Pure. What an operator sends as ``args`` is what runs, byte for byte, so it is never serialized again.
"""

from __future__ import annotations

import json
import re
from typing import Any

from turngate.domain.errors import InvalidInputError

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class _AmbiguousError(ValueError):
    """Some readers take this text for JSON, and they do not agree on what it says."""


def member_text(body: str, name: str) -> str | None:
    """Return the exact text of a member of a JSON object, or None when it has none of that name.

    ``body`` must be JSON that was parsed before. Of two members with one name the last counts, as in ``json.loads``.
    """
    member: str | None = None
    at = _skip_space(body, 0)
    if body[at : at + 1] != "{":
        return None
    at = _skip_space(body, at + 1)
    while body[at : at + 1] == '"':
        key, at = _DECODER.raw_decode(body, at)
        start = _skip_space(body, _skip_space(body, at) + 1)  # over the colon
        _value, end = _DECODER.raw_decode(body, start)
        if key == name:
            member = body[start:end]
        at = _skip_space(body, _skip_space(body, end) + 1)  # over the comma or the closing brace
    return member


def parse_exact(text: str, *, pointer: str, code: str) -> Any:
    """Return the value of a JSON text that every reader reads the same way.

    Raises InvalidInputError with this ``code`` and ``pointer``: not JSON, a name twice in one object (readers disagree
    which counts), ``NaN`` or ``Infinity`` (not JSON), half a surrogate pair (no UTF-8), nested too deeply.
    """
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"not usable as JSON: {reason}"
        raise InvalidInputError(message, code=code, errors=[{"pointer": pointer, "message": message}]) from None
    return value


def parse_body(body: bytes) -> Any:
    """Return the value of a JSON body.

    Raises InvalidInputError for what readers read differently: a name twice in one object, ``NaN``, ``Infinity``, or too
    deeply nested. Raises ValueError (JSONDecodeError, UnicodeDecodeError) when it is not JSON at all.
    """
    try:
        return json.loads(body, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except (_AmbiguousError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        message = f"the body can be read in two ways: {reason}"
        raise InvalidInputError(message, errors=[{"pointer": "", "message": message}]) from None


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _value in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise _AmbiguousError(f"the name {repeated!r} is there twice in one object")
    return members


def _no_constant(name: str) -> Any:
    raise _AmbiguousError(f"{name} is not JSON")
