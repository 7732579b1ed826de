"""Which control holds a value of a JSON Schema without loss. Pure.

What a plain control cannot hold (nested values, carriage returns, characters nobody can see, values of another type
than the schema's) gets a JSON field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from approvals_api.pages.json_text import JsonTree, NumberToken
from approvals_api.pages.visible import has_hidden

Scalar = Literal["string", "integer", "number", "boolean"]
Kind = Literal["line", "text", "integer", "number", "choice", "lines", "json"]
Schema = Mapping[str, Any]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LONG_LINE: Final = 80
_MAX_REFS: Final = 16


class Absent:
    """The type of :data:`ABSENT`."""


ABSENT: Final = Absent()
"""A property that is not there; ``null`` is a value of its own."""


def resolve(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return the schema with its local ``$ref`` and single ``allOf`` folded in; others are left as they are.

    Nothing is ever fetched: a reference that does not begin with ``#/`` stays unresolved and gives a JSON field.
    """
    folded = dict(schema)
    for _round in range(_MAX_REFS):
        inner: object = None
        if isinstance(reference := folded.get("$ref"), str):
            inner = _at(root, reference)
            folded.pop("$ref")
        elif isinstance(parts := folded.get("allOf"), list) and len(parts) == 1:
            inner = parts[0]
            folded.pop("allOf")
        else:
            return folded
        folded = {**(inner if isinstance(inner, dict) else {}), **folded}
    return {}


def without_null(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of the value that is not null, and whether null is allowed besides."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        rest = [kind for kind in kinds if kind != "null"]
        return {**schema, "type": rest[0] if len(rest) == 1 else rest}, True
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest_options = [option for option in options if option != {"type": "null"}]
        if len(rest_options) == 1 and isinstance(rest_options[0], dict):
            outer = {name: value for name, value in schema.items() if name not in {"anyOf", "oneOf"}}
            return {**rest_options[0], **outer}, True
    if isinstance(schema.get("enum"), list) and None in schema["enum"]:
        return {**schema, "enum": [option for option in schema["enum"] if option is not None]}, True
    return schema, False


def kind_for(schema: dict[str, Any], value: JsonTree | Absent, *, nullable: bool) -> tuple[Kind, Scalar]:
    """Return the control that holds this value without loss, and the scalar type in it."""
    if "$ref" in schema or "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
        return "json", "string"
    if "const" in schema or isinstance(schema.get("enum"), list) or schema.get("type") == "boolean":
        return "choice", "string"
    empty = value is ABSENT or (value is None and nullable)
    match schema.get("type"):
        case "string" if empty or (isinstance(value, str) and _fits_a_field(value)):
            return ("text" if _is_long(schema, value) else "line"), "string"
        case "integer" if empty or (isinstance(value, NumberToken) and INTEGER.fullmatch(value.text)):
            return "integer", "integer"
        case "number" if empty or isinstance(value, NumberToken):
            return "number", "number"
        case "array":
            item = _item_type(schema)
            if item is not None and (empty or _fits_lines(item, value)):
                return "lines", item
    return "json", "string"


def _fits_a_field(text: str) -> bool:
    # A browser turns every line end it sends into CRLF, so a lone CR could not come back as it was.
    return not has_hidden(text)


def _is_long(schema: dict[str, Any], value: JsonTree | Absent) -> bool:
    if isinstance(value, str):
        return "\n" in value or len(value) > LONG_LINE
    return not {"maxLength", "pattern", "format"} & schema.keys()


def _item_type(schema: dict[str, Any]) -> Scalar | None:
    items = schema.get("items")
    if (
        not isinstance(items, dict)
        or {"enum", "const", "anyOf", "oneOf", "allOf", "$ref", "prefixItems"} & items.keys()
    ):
        return None
    kind = items.get("type")
    return kind if kind in {"string", "integer", "number", "boolean"} else None


def _fits_lines(item: Scalar, value: JsonTree | Absent) -> bool:
    if not isinstance(value, list):
        return False
    match item:
        case "string":
            # An empty string would be a blank line, and blank lines are left out.
            return all(isinstance(line, str) and line and "\n" not in line and _fits_a_field(line) for line in value)
        case "integer":
            return all(isinstance(line, NumberToken) and INTEGER.fullmatch(line.text) for line in value)
        case "number":
            return all(isinstance(line, NumberToken) for line in value)
        case "boolean":
            return all(isinstance(line, bool) for line in value)


def _at(root: Schema, reference: str) -> object:
    if not reference.startswith("#/"):
        return None
    place: object = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place
