"""Check values against JSON Schemas from outside, within a bound (DESIGN §4, I14).

Owns :class:`SchemaValidator`. jsonschema-rs checks a value in microseconds and matches patterns in linear time. Before it
begins, the checks that a value could need are counted (:mod:`turngate.schemas.costs`), and a value that is too large or
too deep is refused. So is a list of errors that could be long: the library makes all of them at once, each with a copy of
its value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from jsonschema_rs import (
    Draft202012Validator,
    RegexOptions,
    ValidationError,
    ValidationErrorKind,
    validator_cls_for,
    validator_for,
)

from turngate.schemas.costs import SchemaCosts
from turngate.schemas.document import PATTERN_BYTES, UnusableSchemaError

MAX_CHECKS: Final = 10_000_000
"""Of a value: each takes some 100 ns."""
MAX_ERRORS: Final = 100_000
"""That a value could have, if they are listed: each takes some 14 µs."""
MAX_COPIED: Final = 2_000_000
"""Values that the errors could quote, all together: 100 MB."""
MAX_DEPTH: Final = 200
MAX_STACK: Final = 2_000
"""Levels of a value times schemas for the same place inside one another: the library goes through them on the stack."""
MAX_MISMATCHES: Final = 10
MAX_WORDS_CHARS: Final = 200
"""Of what is said about a mismatch: a long one must not push the others out of the 500 characters that the model reads."""
_CHARS_PER_CHECK: Final = 8
_CHARS_PER_COPY: Final = 50
_TOO_DEEP: Final = "nested too deep to be checked"

_UNCHECKED: Final = "date-time time duration hostname json-pointer relative-json-pointer"
_UNCHECKED_ADDRESSES: Final = "uri uri-reference uri-template iri iri-reference"
_FORMATS: Final = {
    **dict.fromkeys(f"{_UNCHECKED} {_UNCHECKED_ADDRESSES}".split(), lambda _text: True),
    **dict.fromkeys(("email", "idn-email"), lambda text: "@" in text),
}
"""Those that the library is too strict with: pydantic takes times without a zone, and addresses that the standards don't know."""


class MisfitError(ValueError):
    """The value doesn't fit as a whole: it is too deep or too large to be checked, or to list where it doesn't fit."""


@dataclass(frozen=True)
class _Level:
    """How many values a value has at one depth, and the characters of their texts and names."""

    values: int
    chars: int


def _levels_of(value: Any) -> list[_Level]:
    levels: list[_Level] = []
    values, chars = [value], 0
    while values:
        if len(levels) > MAX_DEPTH:
            raise MisfitError(_TOO_DEEP)
        if any(isinstance(each, float) and not math.isfinite(each) for each in values):
            raise MisfitError("a number in it is too large")
        chars += sum(len(each) for each in values if isinstance(each, str))
        levels.append(_Level(len(values), chars))
        below: list[Any] = []
        chars = 0
        for each in values:
            if isinstance(each, dict):
                below += each.values()
                chars += sum(map(len, each))
            elif isinstance(each, list | tuple):
                below += each
        values = below
    return levels


class SchemaValidator:
    """A JSON Schema, draft 2020-12 unless its ``$schema`` names another that is known. A check of a value always ends soon.

    ``checks_formats``: whether dates, e-mail and IP addresses, UUIDs and patterns are checked.

    Raises UnusableSchemaError.
    """

    def __init__(self, schema: Mapping[str, Any], *, checks_formats: bool = True) -> None:
        known = dict(schema)
        if isinstance(known.get("$schema"), str) and validator_cls_for(known) is Draft202012Validator:
            del known["$schema"]  # it may name a draft that is not known
        try:
            self._costs = SchemaCosts(known)
            self._validator = validator_for(
                known,
                formats=_FORMATS,
                validate_formats=checks_formats,
                mask="Input",
                pattern_options=RegexOptions(size_limit=PATTERN_BYTES),
                offline=True,
            )
        except ValidationError as error:
            place = ".".join(map(str, error.instance_path)) or "the root"
            raise UnusableSchemaError(
                f"is not valid JSON Schema: at {place}: {error.message[:MAX_WORDS_CHARS]}"
            ) from None
        except UnusableSchemaError:
            raise
        except ValueError as error:
            raise UnusableSchemaError(f"can't be read: {error}") from None

    def errors(self, value: Any, limit: int) -> list[ValidationError]:
        """Return the first mismatches of a value, at most ``limit``; empty: it fits. Their messages don't quote the value.

        Raises MisfitError.
        """
        levels = _levels_of(value)
        if len(levels) * self._costs.height > MAX_STACK:
            raise MisfitError(_TOO_DEEP)
        errors = sum(self._costs.checks.at(depth) * level.values for depth, level in enumerate(levels))
        matches = sum(self._costs.pattern_checks.at(depth) * level.chars for depth, level in enumerate(levels))
        if errors + matches // _CHARS_PER_CHECK > MAX_CHECKS:
            raise MisfitError(
                "checking this value against its schema takes too long: send a smaller value or use a simpler schema"
            )
        try:
            fits = self._validator.is_valid(value)
        except UnicodeEncodeError:  # half a surrogate pair, which is in no pattern
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
            fits = self._validator.is_valid(value)
        if fits:
            return []
        if errors > MAX_ERRORS or self._copied(levels) > MAX_COPIED:
            raise MisfitError("this value doesn't fit its schema, and is too large to say where: send less at once")
        return list(islice(self._validator.iter_errors(value), limit))

    def _copied(self, levels: Sequence[_Level]) -> int:
        """Return how many values the errors could quote: an error quotes the value at its place with all that is in it."""
        copied = inside = 0
        for depth in reversed(range(len(levels))):
            inside += levels[depth].values + levels[depth].chars // _CHARS_PER_COPY
            copied += self._costs.checks.at(depth) * inside
        return copied

    def mismatches(self, value: Any) -> list[tuple[list[int | str], str]]:
        """Return ``(path, words)`` for each place where the value does not fit, at most ten; the words quote no value."""
        try:
            return [(error.instance_path, _words(error)) for error in self.errors(value, MAX_MISMATCHES)]
        except MisfitError as error:
            return [([], str(error))]


def types_of_choice(choices: list[list[ValidationError]]) -> list[str]:
    """Return the JSON types that a value could be of, if its type is all that is wrong; otherwise an empty list."""
    kinds = [each.kind for errors in choices for each in errors]
    types = [kind.types for kind in kinds if isinstance(kind, ValidationErrorKind.Type)]
    return [name for names in types for name in names] if len(types) == len(kinds) else []


def _words(error: ValidationError) -> str:
    """Return what is wrong in words from the schema alone: the value may be a secret."""
    match error.kind:
        case ValidationErrorKind.Type(types=types):
            return f"Input should be of JSON type {' or '.join(types)}"
        case ValidationErrorKind.AnyOf(context=context) | ValidationErrorKind.OneOfNotValid(context=context):
            if types := types_of_choice(context):
                return f"Input should be of JSON type {' or '.join(types)}"
        case ValidationErrorKind.PropertyNames():
            return "A name in it does not fit the schema's propertyNames"
        case ValidationErrorKind.FalseSchema() if error.schema_path[-1:] == ["additionalProperties"]:
            return "Additional properties are not allowed"
        case ValidationErrorKind.FalseSchema():
            return "Input is not allowed"
    return error.message if len(error.message) <= MAX_WORDS_CHARS else f"{error.message[:MAX_WORDS_CHARS]}…"
