"""Which control holds a value of a JSON Schema without loss, and what a schema says once its references are followed. Pure.

What a plain control cannot hold (carriage returns, invisible characters, values of another type than the
schema's) gets a JSON field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, Literal

from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.text.json_pointers import tokens_of
from turngate.domain.text.json_text import JsonTree, NumberToken

Scalar = Literal["string", "integer", "number", "boolean"]
Kind = Literal["line", "text", "integer", "number", "decimal", "date", "instant", "choice", "lines", "json"]
"""``decimal``: a number or a text that says one. ``date``, ``instant``: texts, typed into the browser's own fields."""
Schema = Mapping[str, Any]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
DECIMAL = re.compile(r"[+-]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)")
INSTANT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(Z|[+-][0-9]{2}:[0-9]{2}|)")
"""A date and time of whole seconds, and its zone: what a browser's field for both holds, and what is beside it."""
LONG_LINE: Final = 80
_MAX_REFS: Final = 16
_SCALARS: Final = ("string", "integer", "number", "boolean")
_PYDANTIC_DECIMAL: Final = "^(?!^[-+.]*$)[+-]?0*"
"""How the pattern of the texts begins that pydantic takes for a Decimal."""
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
            inner = _at(root, folded["$ref"])
            if inner is None:
                break
            refs.add(folded["$ref"])
            folded = merged(inner, _without("$ref", folded))
        elif (only := _only_part(folded)) is not None:
            folded = merged(only, _without("allOf", folded))
        elif (not_null := _without_null(folded)) is not None:
            folded, nullable = not_null, True
        else:
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
    if _is_decimal(schema, value, nullable=nullable):
        return "decimal", "number" if isinstance(value, NumberToken) else "string"
    if _COMPOSED & schema.keys():
        return "json", "string"
    if "const" in schema or isinstance(schema.get("enum"), list) or schema.get("type") == "boolean":
        return "choice", "string"
    empty = is_empty(value, nullable=nullable)
    kind = schema.get("type")
    item = _item_type(schema) if kind == "array" else None
    if item is not None and (empty or _fits_lines(item, value)):
        return "lines", item
    if kind in _SCALARS and (empty or _fits(kind, value)):
        if kind == "string":
            return _kind_of_text(schema, value, empty=empty), "string"
        return kind, kind
    return "json", "string"


def _kind_of_text(schema: dict[str, Any], value: JsonTree | Absent, *, empty: bool) -> Kind:
    if schema.get("format") == "date" and (empty or is_date(value)):
        return "date"
    if schema.get("format") == "date-time" and (empty or instant_parts(value) is not None):
        return "instant"
    return "text" if _is_long(schema, value) else "line"


def is_date(value: object) -> bool:
    """Tell whether a value is a date as a browser's field for dates holds it."""
    if not isinstance(value, str) or len(value) != len("2026-01-31"):
        return False
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def instant_parts(value: object) -> tuple[str, str] | None:
    """Return the date and time of an instant in whole seconds, and its zone as it is written; None: it is something else."""
    match = INSTANT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    try:
        datetime.fromisoformat(match[0])
    except ValueError:
        return None
    return match[1], match[2]


def _is_decimal(schema: dict[str, Any], value: JsonTree | Absent, *, nullable: bool) -> bool:
    """Tell whether a value is a Decimal, or may be one, by a schema as pydantic writes it: a number or a text.

    ``float | str`` has the same schema. Where its value is no number, it isn't one; other texts can be sent as raw JSON.
    """
    options = schema.get("anyOf")
    if not isinstance(options, list) or not all(isinstance(each, Mapping) for each in options):
        return False
    by_type = {str(each.get("type")): each for each in options}
    if len(options) != len(by_type) or by_type.keys() != {"number", "string"}:
        return False
    if not by_type["string"].keys() <= {"type", "pattern"} or not _is_pattern_of_decimals(by_type["string"]):
        return False
    return is_empty(value, nullable=nullable) or _fits_decimal(value)


def _is_pattern_of_decimals(schema: Schema) -> bool:
    pattern = schema.get("pattern", _PYDANTIC_DECIMAL)
    return isinstance(pattern, str) and pattern.startswith(_PYDANTIC_DECIMAL)


def _fits_decimal(value: JsonTree | Absent) -> bool:
    if isinstance(value, str):
        return DECIMAL.fullmatch(value) is not None
    return isinstance(value, NumberToken)


def is_empty(value: JsonTree | Absent, *, nullable: bool) -> bool:
    """Tell whether there is no value to hold: left out, or a null that the schema allows."""
    return value is ABSENT or (value is None and nullable)


def _without(name: str, schema: Schema) -> dict[str, Any]:
    return {other: value for other, value in schema.items() if other != name}


def _only_part(schema: Schema) -> Schema | None:
    """Return the schema in an ``allOf`` of one; None: it has none, or several."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or len(parts) != 1 or not isinstance(parts[0], Mapping):
        return None
    return parts[0]


def _without_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of the value that is not null; None: null is not allowed."""
    for look in (_without_null_type, _without_null_variant, _without_null_option):
        rest = look(schema)
        if rest is not None:
            return rest
    return None


def _without_null_type(schema: dict[str, Any]) -> dict[str, Any] | None:
    kinds = schema.get("type")
    if not isinstance(kinds, list) or "null" not in kinds or "const" in schema:
        return None
    rest = [kind for kind in kinds if kind != "null"]
    typed = {**schema, "type": rest[0] if len(rest) == 1 else rest}
    if isinstance(schema.get("enum"), list):
        typed["enum"] = [option for option in schema["enum"] if option is not None]
    return typed


def _without_null_variant(schema: dict[str, Any]) -> dict[str, Any] | None:
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        if not isinstance(options, list) or {"type": "null"} not in options:
            continue
        rest = [option for option in options if option != {"type": "null"}]
        outer = _without(name, schema)
        if len(rest) == 1 and isinstance(rest[0], Mapping):
            return {**rest[0], **outer}
        if len(rest) > 1:
            return {**outer, name: rest}
    return None


def _without_null_option(schema: dict[str, Any]) -> dict[str, Any] | None:
    options = schema.get("enum")
    if not isinstance(options, list) or None not in options or len(options) == 1:
        return None
    return {**schema, "enum": [option for option in options if option is not None]}


def _as_enum(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a choice between constants as an ``enum``; any other schema as it is. Titled constants keep their titles."""
    names = [name for name in ("anyOf", "oneOf") if isinstance(schema.get(name), list)]
    if len(names) != 1 or {"enum", "const"} & schema.keys():
        return schema
    values: list[Any] = []
    for option in schema[names[0]]:
        if not isinstance(option, Mapping) or not option.keys() <= {"const", "enum", "type"}:
            return schema
        allowed = [option["const"]] if "const" in option else option.get("enum")
        if not isinstance(allowed, list):
            return schema
        values += allowed
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


def _fits(kind: Scalar, value: JsonTree | Absent) -> bool:
    """Tell whether a plain control holds a value of this type as it is."""
    match kind:
        case "string":
            return isinstance(value, str) and not has_hidden(value)
        case "integer":
            return isinstance(value, NumberToken) and INTEGER.fullmatch(value.text) is not None
        case "number":
            return isinstance(value, NumberToken)
        case "boolean":
            return isinstance(value, bool)


def _fits_lines(item: Scalar, value: JsonTree | Absent) -> bool:
    if not isinstance(value, list):
        return False
    # An empty string would be a blank line, and blank lines are left out.
    return all(_fits(item, line) and line != "" and not (isinstance(line, str) and "\n" in line) for line in value)


def _at(root: Schema, reference: object) -> Schema | None:
    """Return the schema that a local reference names; None: it is none, or leads out of the document or nowhere."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    place: object = root
    for key in tokens_of(reference):
        place = place.get(key) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None
