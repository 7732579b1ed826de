"""Does a value fit a tool's JSON Schema (draft 2020-12)? Each mismatch as a sentence, with its JSON pointer (RFC 6901)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jsonschema_rs import ValidationError, ValidationErrorKind

from turngate.domain.text.json_pointers import pointer_of
from turngate.schemas.document import UnusableSchemaError
from turngate.schemas.validator import MisfitError, SchemaValidator, types_of_choice

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
_CHOICES: Final = (ValidationErrorKind.AnyOf, ValidationErrorKind.OneOfNotValid)
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
    fetched on its word. A value that can't be checked in time is a problem too.
    """
    try:
        mismatches = SchemaValidator(schema).errors(value, MAX_ERRORS)
    except MisfitError as error:
        return [{"pointer": under, "message": str(error)}]
    except UnusableSchemaError as error:
        return [{"pointer": under, "message": f"the tool's schema {error}"}]
    specific = [inner for error in mismatches for inner in _most_specific(error)]
    errors = sorted(specific, key=lambda error: list(map(str, error.instance_path)))
    return [
        {"pointer": under + pointer_of([*error.instance_path, *_missing(error)]), "message": _sentence(error)}
        for error in errors[:MAX_PROBLEMS]
    ]


def _most_specific(error: ValidationError) -> list[ValidationError]:
    """Return what is wrong with the one type that the value is of, for an error about a choice of types.

    "0 is not valid under any of the given schemas" does not tell a user that the number is too small. When several types,
    or none, could be intended, the error stays as it is.
    """
    if not isinstance(error.kind, _CHOICES):
        return [error]
    possible = [inner for inner in error.kind.context if not any(_rules_out(each, error) for each in inner)]
    if len(possible) != 1:
        return [error]
    return [each for inner in possible[0] for each in _most_specific(inner)]


def _rules_out(inner: ValidationError, choice: ValidationError) -> bool:
    """Tell whether this error shows that the value is of another type: by its type, or by the constant that tags it."""
    depth = len(inner.instance_path) - len(choice.instance_path)
    return (depth == 0 and inner.kind.name == "type") or (depth == 1 and inner.kind.name in {"const", "enum"})


def _missing(error: ValidationError) -> list[str]:
    """Return the member that is missing, if the error is about one: what it says is said where that member belongs."""
    return [error.kind.property] if isinstance(error.kind, ValidationErrorKind.Required) else []


def _sentence(error: ValidationError) -> str:
    value: Any = error.instance
    match error.kind:
        case ValidationErrorKind.Required():
            return "It is missing."
        case ValidationErrorKind.Type(types=types):
            return f"{_quoted(value)} is not {_types(types)}."
        case ValidationErrorKind.Enum(options=options):
            return f"{_quoted(value)} is none of these: {', '.join(map(_quoted, options))}."
        case ValidationErrorKind.AnyOf(context=context) | ValidationErrorKind.OneOfNotValid(context=context):
            types = types_of_choice(context)
            return f"{_quoted(value)} is {f'not {_types(types)}' if types else 'nothing that can be sent here'}."
        case (
            ValidationErrorKind.AdditionalProperties(unexpected=names)
            | ValidationErrorKind.UnevaluatedProperties(unexpected=names)
        ):
            return f"This can't be sent here: {', '.join(map(_quoted, names))}."
        case ValidationErrorKind.FalseSchema() if error.schema_path[-1:] == ["additionalProperties"]:
            return f"This can't be sent here: {', '.join(map(_quoted, value))}."
        case ValidationErrorKind.FalseSchema():
            return "This can't be sent here."
    sentence = _SENTENCES.get(error.kind.name)
    if sentence is None:
        return f"{error.message[:MAX_QUOTED_CHARS]}."
    (wanted,) = error.kind.as_dict().values() or (None,)
    count = len(value) if isinstance(value, list | dict) else 0
    return sentence.format(value=_quoted(value), wanted=_quoted(wanted), count=count)


def _types(wanted: Iterable[Any]) -> str:
    return " or ".join(_TYPES.get(each, str(each)) for each in wanted)


def _quoted(value: Any) -> str:
    text = f"“{value}”" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[:MAX_QUOTED_CHARS]}…"
