"""Does a value fit a tool's JSON Schema (draft 2020-12)? Each mismatch with its JSON pointer (RFC 6901)."""

from __future__ import annotations

from typing import Any

from jsonschema.exceptions import ValidationError
from referencing.exceptions import Unresolvable

from turngate.bounded_validator import BoundedValidator, TooCostlyError, UnreadableSchemaError
from turngate.domain.text.json_pointers import pointer_of

MAX_PROBLEMS = 20
MAX_ERRORS = 200
"""Of which the first 20, in the order of their places, are shown."""

Problem = dict[str, str]


def problems_of(value: Any, schema: dict[str, Any], *, under: str) -> list[Problem]:
    """Return ``{pointer, message}`` for each mismatch, at most 20; empty: the value fits. ``under``: pointer prefix.

    A ``$ref`` is resolved within the schema only: a schema can come from a remote tool server, and nothing is ever
    fetched on its word (the default registry of jsonschema would). A check that takes too long is a problem too.
    """
    try:
        mismatches = BoundedValidator(schema).errors(value, MAX_ERRORS)
        specific = [inner for error in mismatches for inner in _most_specific(error)]
        errors = sorted(specific, key=lambda error: list(map(str, error.absolute_path)))
    except Unresolvable as error:
        return [{"pointer": under, "message": f"the tool's schema refers to something it does not hold: {error}"}]
    except RecursionError:
        return [{"pointer": under, "message": "nested too deeply to be checked"}]
    except TooCostlyError as error:
        return [{"pointer": under, "message": str(error)}]
    except UnreadableSchemaError as error:
        return [{"pointer": under, "message": f"the tool's schema cannot be used: {error}"}]
    return [
        {"pointer": under + pointer_of(error.absolute_path), "message": _message(error)}
        for error in errors[:MAX_PROBLEMS]
    ]


def _most_specific(error: ValidationError) -> list[ValidationError]:
    """Return what is wrong with the one type that the value is of, for an error about a choice of types.

    "0 is not valid under any of the given schemas" does not tell a user that the number is too small. When several types,
    or none, could be intended, the error stays as it is.
    """
    if error.validator not in {"anyOf", "oneOf"} or not error.context:
        return [error]
    options: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        options.setdefault(inner.relative_schema_path[0], []).append(inner)
    possible = [inner for inner in options.values() if not any(_rules_out(each, error) for each in inner)]
    if len(possible) != 1:
        return [error]
    return [each for inner in possible[0] for each in _most_specific(inner)]


def _rules_out(inner: ValidationError, choice: ValidationError) -> bool:
    """Tell whether this error shows that the value is of another type: by its type, or by the constant that tags it."""
    depth = len(inner.absolute_path) - len(choice.absolute_path)
    return (depth == 0 and inner.validator == "type") or (depth == 1 and inner.validator in {"const", "enum"})


def _message(error: ValidationError) -> str:
    return error.message if len(error.message) <= 300 else f"{error.message[:300]}…"  # noqa: PLR2004 - room on a page
