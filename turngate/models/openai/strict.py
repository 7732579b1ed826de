"""A tool's schema in the form that ``strict`` needs, in which a provider holds the model to it.

Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import structlog

log = structlog.get_logger(__name__)

MAX_DEPTH: Final = 10
_REFUSED: Final = frozenset(
    {"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties"}
    | {"propertyNames", "prefixItems", "unevaluatedProperties"}
)


class NotStrictError(ValueError):
    """A schema says what ``strict`` can't; the message names the place and what it is."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with closed objects whose properties are all required. Raises NotStrictError where it would mean less.

    A property that may be left out has to take null, which the model sends in its place.
    """
    return _strict({"type": "object", "properties": {}, **schema}, "the arguments", MAX_DEPTH)


def _strict(schema: Any, place: str, depth: int) -> dict[str, Any]:
    _require_fit(schema, place, depth)
    closed = {key: value for key, value in schema.items() if key != "default"}
    for key in ("$defs", "definitions"):
        if isinstance(each := schema.get(key), Mapping):
            closed[key] = {name: _strict(inner, f"the type {name}", depth - 1) for name, inner in each.items()}
    if isinstance(branches := schema.get("anyOf"), list):
        closed["anyOf"] = [_strict(each, place, depth - 1) for each in branches]
    if "items" in schema:
        closed["items"] = _strict(schema["items"], f"the items of {place}", depth - 1)
    if schema.get("type") == "object":
        closed |= _closed(schema, place, depth)
    return closed


def _require_fit(schema: Any, place: str, depth: int) -> None:
    if depth == 0:
        raise NotStrictError(f"{place} nest deeper than {MAX_DEPTH} levels")
    if not isinstance(schema, Mapping) or not schema:
        raise NotStrictError(f"{place} may be anything")
    if refused := sorted(_REFUSED & schema.keys()):
        raise NotStrictError(f"{place} use {refused[0]!r}")
    if isinstance(kinds := schema.get("type"), list) and "object" in kinds:
        raise NotStrictError(f"{place} may be an object or something else")


def _closed(schema: Mapping[str, Any], place: str, depth: int) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    if schema.get("additionalProperties") not in (None, False):
        raise NotStrictError(f"{place} take members of any name")
    required = set(schema.get("required") or ())
    for name, each in properties.items():
        if name not in required and not _takes_null(each):
            raise NotStrictError(f"{name!r} may be left out, and is not null then")
    inner = {name: _strict(each, repr(name), depth - 1) for name, each in properties.items()}
    return {"properties": inner, "required": list(properties), "additionalProperties": False}


def _takes_null(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, list) and "null" in kind):
        return True
    return any(_takes_null(each) for each in schema.get("anyOf") or ())


@cache
def warn_not_strict(tool: str, why: str) -> None:
    """Log, once, that a tool's ``strict=True`` has no effect."""
    log.warning("a tool declared strict is sent without it", tool=tool, why=why)
