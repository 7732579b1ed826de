"""JSON Schemas from elsewhere: check that one can be used here, or leave out of it what can't.

Must not open a connection: a ``$ref`` is resolved within the schema only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from jsonschema.exceptions import best_match
from pydantic import JsonValue
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from turngate.bounded_validator import BoundedValidator, TooCostlyError, UnreadableSchemaError, compile_pattern
from turngate.domain.errors import ConfigurationError

MAX_SCHEMA_CHARS: Final = 100_000
"""Of a schema that describes an external call's tool, as JSON."""
MAX_SCHEMA_ERRORS: Final = 10
MAX_ISSUE_CHARS: Final = 200
"""A complaint quotes the value; a long one must not push the others out of the 500 characters the model reads."""
_ANY_OBJECT: Final = '{"type":"object"}'
_MAX_REFERENCES: Final = 50
"""References to references, before we take them for a circle."""
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose value is data, which may be null."""


def compiled(schema: dict[str, JsonValue], what: str) -> BoundedValidator:
    """Return a validator that never leaves the document. Raises ConfigurationError naming ``what`` and the place."""
    try:
        validator = BoundedValidator(schema)
        invalid = best_match(validator.errors_of_schema(MAX_SCHEMA_ERRORS))
        if invalid is not None:
            place = ".".join(str(step) for step in invalid.absolute_path) or "the root"
            raise ConfigurationError(f"the {what} schema is not valid JSON Schema: at {place}: {clipped(invalid)}")
        dangling = _dangling(schema)
    except RecursionError:
        raise ConfigurationError(f"the {what} schema is nested too deep") from None
    except UnreadableSchemaError as error:
        raise ConfigurationError(f"the {what} schema: {error}") from None
    except TooCostlyError:
        raise ConfigurationError(f"the {what} schema is too large to be checked: send a smaller one") from None
    if dangling is not None:
        raise ConfigurationError(
            f"the {what} schema refers to {dangling!r}, which is not in it. References are never fetched: put the "
            'definition under "$defs" and refer to "#/$defs/NAME"'
        )
    return validator


def clipped(error: Any) -> str:
    """Return a validator's message, cut where it is long."""
    message = str(error.message)
    return message if len(message) <= MAX_ISSUE_CHARS else f"{message[:MAX_ISSUE_CHARS]}…"


def readable(schema: Mapping[str, Any]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Return a tool's schema as one that can be used here, and what of it is not checked; empty: all is.

    A pattern that RE2 can't read, a reference that leads nowhere and a null in place of a keyword's value are left out, and a
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
        errors = BoundedValidator(schema, checks_formats=False).errors(value, 1)
    except TooCostlyError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - the schema is the server's, and may be broken in any way
        return None
    return str(errors[0].message) if errors else None


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


def _leave_out(schema: dict[str, Any], left_out: list[str]) -> None:
    """Remove what can't be used from a schema and those within it, noting each."""
    specification = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    _leave_out_nulls(schema, left_out)
    root: Resource[Any] = Resource.from_contents(schema, default_specification=specification)
    resolver = Registry().with_resource("", root).resolver("")
    pending = [(root, resolver)]
    while pending:
        resource, resolver = pending.pop()
        contents = resource.contents
        if isinstance(contents, dict):
            _leave_out_nulls(contents, left_out)
            _leave_out_patterns(contents, left_out)
            reference = contents.get("$ref")
            if isinstance(reference, str) and not _leads_somewhere(resolver, reference):
                del contents["$ref"]
                left_out.append(f"the reference {reference[:80]!r}, which leads nowhere")
        pending += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def _leads_somewhere(resolver: Any, reference: str) -> bool:
    try:
        for _step in range(_MAX_REFERENCES):
            resolved = resolver.lookup(reference)
            contents = resolved.contents
            if not isinstance(contents, dict) or not isinstance(contents.get("$ref"), str):
                return True
            reference, resolver = contents["$ref"], resolved.resolver
    except Unresolvable:
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
        compile_pattern(pattern)
    except UnreadableSchemaError:
        return False
    return True


def _dangling(schema: dict[str, JsonValue]) -> str | None:
    """Return the first reference that points at nothing in the document, or None.

    Raises UnreadableSchemaError for a pattern on the way that cannot be used.
    """
    specification = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    root: Resource[Any] = Resource.from_contents(schema, default_specification=specification)
    # Crawled once: otherwise each reference by an anchor reads the whole document again.
    registry: Registry[Any] = Registry().with_resource(root.id() or "", root).crawl()
    pending = [(root, registry.resolver(root.id() or ""))]
    while pending:
        resource, resolver = pending.pop()
        _read_patterns(resource.contents)
        for keyword in ("$ref", "$dynamicRef") if isinstance(resource.contents, Mapping) else ():
            reference = resource.contents.get(keyword)
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable:
                return str(reference)
        pending += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]
    return None


def _read_patterns(schema: Any) -> None:
    if not isinstance(schema, Mapping):
        return
    pattern, patterns = schema.get("pattern"), schema.get("patternProperties")
    for each in (
        *([pattern] if isinstance(pattern, str) else ()),
        *(patterns if isinstance(patterns, Mapping) else ()),
    ):
        compile_pattern(each)
