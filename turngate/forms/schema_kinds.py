"""Which control holds a value of a JSON Schema without loss, and what a schema says once its references are followed. Pure.

What a plain control cannot hold (carriage returns, characters nobody can see, values of another type than the
schema's) gets a JSON field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.text.json_text import JsonTree, NumberToken

Scalar = Literal["string", "integer", "number", "boolean"]
Kind = Literal["line", "text", "integer", "number", "choice", "lines", "json"]
Schema = Mapping[str, Any]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LONG_LINE: Final = 80
_MAX_REFS: Final = 16
_SCALARS: Final = ("string", "integer", "number", "boolean")
_COMPOSED: Final = {"$ref", "$dynamicRef", "anyOf", "oneOf", "allOf"}


class Absent:
    """The type of :data:`ABSENT`."""


ABSENT: Final = Absent()
"""A property that is not there; ``null`` is a value of its own."""


@dataclass(frozen=True, kw_only=True)
class ReadSchema:
    """A schema without its wrapping. ``schema``: of the value that is not null; ``refs``: the references followed."""

    schema: dict[str, Any]
    nullable: bool = False
    refs: frozenset[str] = frozenset()


def read_schema(schema: object, root: Schema) -> ReadSchema:
    """Return the schema with its local ``$ref``, single ``allOf`` and null taken off; others are left as they are.

    Nothing is ever fetched: a reference that leads out of ``root`` or nowhere stays, and gives a JSON field.
    """
    if not isinstance(schema, Mapping):
        return ReadSchema(schema={})
    folded, nullable, refs = dict(schema), False, set[str]()
    for _round in range(_MAX_REFS):
        if "$ref" in folded:
            reference = folded["$ref"]
            inner = _at(root, reference) if isinstance(reference, str) else None
            if not isinstance(inner, Mapping):
                break
            refs.add(reference)
            folded = merged(inner, {name: value for name, value in folded.items() if name != "$ref"})
        elif isinstance(parts := folded.get("allOf"), list) and len(parts) == 1 and isinstance(parts[0], Mapping):
            folded = merged(parts[0], {name: value for name, value in folded.items() if name != "allOf"})
        else:
            folded, null = _without_null(folded)
            nullable = nullable or null
            if not null:
                break
    return ReadSchema(schema=_as_enum(folded), nullable=nullable, refs=frozenset(refs))


def merged(base: Schema, over: Schema) -> dict[str, Any]:
    """Return both at once: the members and the required ones of both; elsewhere ``over`` has the last word."""
    both = {**base, **over}
    if isinstance(base.get("properties"), Mapping) and isinstance(over.get("properties"), Mapping):
        both["properties"] = {**base["properties"], **over["properties"]}
    if isinstance(base.get("required"), list) and isinstance(over.get("required"), list):
        both["required"] = [*base["required"], *over["required"]]
    return both


def kind_for(schema: dict[str, Any], value: JsonTree | Absent, *, nullable: bool) -> tuple[Kind, Scalar]:
    """Return the one control that holds this value without loss, and the scalar type in it."""
    if _COMPOSED & schema.keys():
        return "json", "string"
    if "const" in schema or isinstance(schema.get("enum"), list) or schema.get("type") == "boolean":
        return "choice", "string"
    empty = value is ABSENT or (value is None and nullable)
    match schema.get("type"):
        case "string" if empty or (isinstance(value, str) and not has_hidden(value)):
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


def _without_null(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of the value that is not null, and whether null is allowed besides."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds and "const" not in schema:
        rest = [kind for kind in kinds if kind != "null"]
        options = schema.get("enum")
        enum = {"enum": [each for each in options if each is not None]} if isinstance(options, list) else {}
        return {**schema, **enum, "type": rest[0] if len(rest) == 1 else rest}, True
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        if isinstance(options, list) and {"type": "null"} in options:
            rest_options = [option for option in options if option != {"type": "null"}]
            outer = {key: value for key, value in schema.items() if key != name}
            if len(rest_options) == 1 and isinstance(rest_options[0], Mapping):
                return {**rest_options[0], **outer}, True
            if len(rest_options) > 1:
                return {**outer, name: rest_options}, True
    if isinstance(schema.get("enum"), list) and None in schema["enum"] and len(schema["enum"]) > 1:
        return {**schema, "enum": [option for option in schema["enum"] if option is not None]}, True
    return schema, False


def _as_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a choice between constants as an ``enum``; any other schema as it is. Titled constants keep their titles."""
    names = [name for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)]
    if len(names) != 1 or {"enum", "const"} & schema.keys():
        return schema
    values: list[Any] = []
    for option in schema[names[0]]:
        if not isinstance(option, Mapping) or not option.keys() <= {"const", "enum", "type"}:
            return schema
        given = [option["const"]] if "const" in option else option.get("enum")
        if not isinstance(given, list):
            return schema
        values += given
    return {**{name: value for name, value in schema.items() if name not in names}, "enum": values}


def _is_long(schema: dict[str, Any], value: JsonTree | Absent) -> bool:
    # A browser drops line ends from a one-line control.
    if isinstance(value, str):
        return "\n" in value or len(value) > LONG_LINE
    return not {"maxLength", "pattern", "format"} & schema.keys()


def _item_type(schema: dict[str, Any]) -> Scalar | None:
    items = schema.get("items")
    if "prefixItems" in schema or not isinstance(items, dict) or (_COMPOSED | {"enum", "const"}) & items.keys():
        return None
    return next((kind for kind in _SCALARS if kind == items.get("type")), None)


def _fits_lines(item: Scalar, value: JsonTree | Absent) -> bool:
    if not isinstance(value, list):
        return False
    match item:
        case "string":
            # An empty string would be a blank line, and blank lines are left out.
            return all(isinstance(line, str) and line and "\n" not in line and not has_hidden(line) for line in value)
        case "integer":
            return all(isinstance(line, NumberToken) and INTEGER.fullmatch(line.text) for line in value)
        case "number":
            return all(isinstance(line, NumberToken) for line in value)
        case "boolean":
            return all(isinstance(line, bool) for line in value)


def _at(root: Schema, reference: str) -> object:
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    place: object = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place
