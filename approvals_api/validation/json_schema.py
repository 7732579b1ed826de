"""Does a value fit a tool's JSON Schema (draft 2020-12)? Each mismatch as a sentence, with its JSON pointer (RFC 6901)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jsonschema.exceptions import ValidationError
from referencing.exceptions import Unresolvable

from turngate.bounded_validator import BoundedValidator, TooCostlyError, UnreadableSchemaError
from turngate.domain.text.json_pointers import pointer_of

MAX_PROBLEMS = 20
MAX_ERRORS = 200
"""Of which the first 20, in the order of their places, are shown."""

Problem = dict[str, str]

MAX_QUOTED_CHARS: Final = 100
_SENTENCES: Final[Mapping[Any, str]] = {
    "minimum": "{value} is less than the minimum of {wanted}.",
    "maximum": "{value} is more than the maximum of {wanted}.",
    "exclusiveMinimum": "{value} is not more than {wanted}.",
    "exclusiveMaximum": "{value} is not less than {wanted}.",
    "multipleOf": "{value} is not a multiple of {wanted}.",
    "minLength": "{value} is shorter than the minimum length of {wanted}.",
    "maxLength": "{value} is longer than the maximum length of {wanted}.",
    "minItems": "The number of items is {count}, less than the minimum of {wanted}.",
    "maxItems": "The number of items is {count}, more than the maximum of {wanted}.",
    "minProperties": "The number of members is {count}, less than the minimum of {wanted}.",
    "maxProperties": "The number of members is {count}, more than the maximum of {wanted}.",
    "uniqueItems": "An item is there twice.",
    "const": "{value} is not {wanted}.",
    "pattern": "{value} does not have the right form: it has to match {wanted}.",
    "format": "{value} is not of the form {wanted}.",
}
_TYPES: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


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
        {"pointer": under + pointer_of([*error.absolute_path, *_missing(error)]), "message": _sentence(error)}
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


def _missing(error: ValidationError) -> list[str]:
    """Return the member that is missing, if the error is about one: what it says is said where that member belongs."""
    wanted: Any = error.validator_value if error.validator == "required" else []
    return [name for name in wanted if error.message.startswith(f"{name!r} ")][:1]


def _sentence(error: ValidationError) -> str:
    value: Any = error.instance
    wanted: Any = error.validator_value
    match error.validator:
        case "required":
            return "It is missing."
        case "type":
            return f"{_quoted(value)} is not {_types([wanted] if isinstance(wanted, str) else wanted)}."
        case "enum":
            return f"{_quoted(value)} is none of these: {', '.join(map(_quoted, wanted))}."
        case "anyOf" | "oneOf":
            return f"{_quoted(value)} is {_no_choice(error.context or [])}."
        case "additionalProperties" | "unevaluatedProperties" if isinstance(value, dict):
            known = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
            return f"This can't be sent here: {', '.join(_quoted(name) for name in value if name not in known)}."
    sentence = _SENTENCES.get(error.validator)
    if sentence is None:
        return f"{error.message[:MAX_QUOTED_CHARS]}."
    count = len(value) if isinstance(value, list | dict) else 0
    return sentence.format(value=_quoted(value), wanted=_quoted(wanted), count=count)


def _no_choice(choices: Sequence[ValidationError]) -> str:
    """Return what a value is that fits none of several choices."""
    if all(each.validator == "type" for each in choices):
        return f"not {_types(each.validator_value for each in choices)}"
    return "nothing that can be sent here"


def _types(wanted: Iterable[Any]) -> str:
    return " or ".join(_TYPES.get(each, str(each)) for each in wanted)


def _quoted(value: Any) -> str:
    text = f"“{value}”" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
