"""Arguments as rules read them: strict JSON, and values found by JSON pointer (RFC 6901)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

from pydantic import JsonValue

from turngate.domain.text.json_text import MAX_ARGUMENT_CHARS, arguments_text

_POINTER = re.compile(r"(/([^~/]|~[01])*)*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Absent:
    """There is nothing at the pointer."""


class Ambiguous:
    """The text says more than one thing here: a key given twice, which two readers may take differently."""


ABSENT: Final = Absent()
AMBIGUOUS: Final = Ambiguous()


def decode_arguments(raw: str) -> JsonValue:
    """Return a call's arguments for :class:`~turngate.domain.policy.facts.CallFacts`, read as :func:`decode_exact` reads them.

    No text and ``null`` are arguments of a call that has none. Raises as there.
    """
    return decode_exact(arguments_text(raw))


def decode_exact(text: str) -> JsonValue:
    """Return the value of a JSON text as rules compare it.

    Unlike ``json.loads`` it keeps fractions exact (as Decimal), and marks a key that occurs twice, so that every matcher
    that looks there says ``unclear``.

    Raises:
        ValueError: too long, not JSON, ``NaN`` or ``Infinity``, nested too deep, or with an exponent that nothing can hold.
            The caller asks or denies.
    """
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ValueError(f"the arguments have more than {MAX_ARGUMENT_CHARS:,} characters")
    try:
        decoded: JsonValue = json.loads(
            text, object_pairs_hook=_object, parse_float=Decimal, parse_constant=_no_constant
        )
    except RecursionError:
        raise ValueError("the arguments nest too deep") from None
    except ArithmeticError:  # of Decimal, for 1e99999999999999999999
        raise ValueError("a number is out of range") from None
    return decoded


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in pairs:
        read[key] = AMBIGUOUS if key in read else value
    return read


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def checked_pointer(pointer: str) -> str:
    """Return ``pointer`` as it is. Raises ValueError, saying the fix, when it is none."""
    if not _POINTER.fullmatch(pointer):
        raise ValueError(f"{pointer!r} is not a JSON pointer: write it like '/amount' or '/items/0/name' (RFC 6901)")
    return pointer


def value_at(arguments: JsonValue, pointer: str) -> Any:
    """Return the value at ``pointer``, ABSENT when there is none, AMBIGUOUS when a key on the way was given twice."""
    value: Any = arguments
    for token in tokens_of(pointer):
        if isinstance(value, dict):
            value = value.get(token, ABSENT)
        elif isinstance(value, list):
            value = value[int(token)] if _INDEX.fullmatch(token) and int(token) < len(value) else ABSENT
        elif isinstance(value, Ambiguous):
            return AMBIGUOUS
        else:
            return ABSENT
    return value


def tokens_of(pointer: str) -> list[str]:
    """Return the names and places on the way that a pointer leads, without their escapes."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def escaped(name: object) -> str:
    """Return a name or a place as it is written in a pointer."""
    return str(name).replace("~", "~0").replace("/", "~1")


def pointer_of(path: Iterable[object]) -> str:
    """Return the JSON pointer of a path: ``["a/b", 0]`` is ``/a~1b/0``; the empty path is the whole document."""
    return "".join(f"/{escaped(part)}" for part in path)
