"""JSON Schemas from elsewhere: check that one can be used here, or leave out of it what can't.

Must not open a connection: a ``$ref`` is resolved within the schema only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic import JsonValue

from turngate.domain.errors import ConfigurationError
from turngate.schemas.document import Document, Schema, UnusableSchemaError, pattern_checks
from turngate.schemas.validator import MisfitError, SchemaValidator

MAX_SCHEMA_CHARS: Final = 100_000
"""Of a schema that describes an external call's tool, as JSON."""
_ANY_OBJECT: Final = '{"type":"object"}'
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data, which may be null."""


def compiled(schema: Schema, what: str) -> SchemaValidator:
    """Return a validator that never leaves the document. Raises ConfigurationError naming ``what`` and the place."""
    try:
        return SchemaValidator(schema)
    except UnusableSchemaError as error:
        raise ConfigurationError(f"the {what} schema {error}") from None


def readable(schema: Mapping[str, Any]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Return a tool's schema as one that can be used here, and what of it is not checked; empty: all is.

    A pattern that can't be used, a reference that leads nowhere and a null in place of a keyword's value are left out, and a
    pattern stays readable as ``$comment``. A schema that still can't be used is replaced by that of any object. The program
    that runs the tool checks its arguments itself, in every case.
    """
    try:
        text = json.dumps(dict(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return {"type": "object"}, (f"it is not JSON: {error}",)
    changed, left_out = _readable(text)
    copied: dict[str, JsonValue] = json.loads(changed)
    return copied, left_out


def misfit(value: JsonValue, schema: dict[str, Any]) -> str | None:
    """Return how a result breaks the schema that a server promised, or None; a schema that can't be read promises nothing."""
    try:
        errors = SchemaValidator(schema, checks_formats=False).errors(value, 1)
    except MisfitError as error:
        return str(error)
    except UnusableSchemaError:
        return None
    return errors[0].message if errors else None


@lru_cache(maxsize=256)
def _readable(text: str) -> tuple[str, tuple[str, ...]]:
    schema: dict[str, Any] = {"type": "object", **json.loads(text)}
    left_out: list[str] = []
    if len(text) > MAX_SCHEMA_CHARS:
        return _ANY_OBJECT, (f"it has more than {MAX_SCHEMA_CHARS:,} characters",)
    if schema["type"] != "object":
        return _ANY_OBJECT, ("it is not of an object",)
    try:
        _leave_out(schema, left_out)
        compiled(schema, "parameters")
    except Exception as error:  # noqa: BLE001 - a schema may be broken in any way
        why = error.message if isinstance(error, ConfigurationError) else f"it can't be read ({type(error).__name__})"
        return _ANY_OBJECT, (why,)
    return json.dumps(schema), tuple(left_out)


def _leave_out(schema: Schema, left_out: list[str]) -> None:
    """Remove what can't be used from a schema and those within it, noting each."""
    document = Document(schema)
    for _place, contents in document.schemas:
        _leave_out_nulls(contents, left_out)
        _leave_out_patterns(contents, left_out)
        reference = contents.get("$ref")
        if isinstance(reference, str) and not _leads_somewhere(document, reference):
            del contents["$ref"]
            left_out.append(f"the reference {reference[:80]!r}, which leads nowhere")


def _leads_somewhere(document: Document, reference: str) -> bool:
    seen: set[str] = set()
    try:
        while reference not in seen:
            seen.add(reference)
            target = document.target(reference)
            if not isinstance(target, dict) or not isinstance(target.get("$ref"), str):
                return True
            reference = target["$ref"]
    except UnusableSchemaError:
        pass
    return False


def _leave_out_nulls(contents: dict[str, Any], left_out: list[str]) -> None:
    for keyword in [each for each, value in contents.items() if value is None and each not in _VALUES]:
        del contents[keyword]
        left_out.append(f"{keyword!r}, which is null")


def _leave_out_patterns(contents: dict[str, Any], left_out: list[str]) -> None:
    by_name = contents.get("patternProperties")
    names = [each for each in by_name if not _compiles(each)] if isinstance(by_name, dict) else []
    for name in names:
        del contents["patternProperties"][name]
        # Properties of that name would be forbidden ones now.
        contents.pop("additionalProperties", None)
        contents.pop("unevaluatedProperties", None)
    pattern = contents.get("pattern")
    if isinstance(pattern, str) and not _compiles(pattern):
        del contents["pattern"]
        contents["$comment"] = f"Not checked by Turngate: pattern {pattern}"
        names.append(pattern)
    left_out += [f"the pattern {each[:80]!r}" for each in names]


def _compiles(pattern: str) -> bool:
    try:
        pattern_checks(pattern)
    except UnusableSchemaError:
        return False
    return True
