"""Which types a value may have, and which of them it has. Pure.

Only what tells types apart is looked at; a value's limits and patterns are checked when it is sent. A pattern is never
run here: a schema can come from a remote tool server, and one pattern can keep a processor busy for years.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from turngate.domain.text import json_text
from turngate.domain.text.json_text import JsonTree, NumberToken, tree_of
from turngate.forms.schema_kinds import INTEGER, Schema, merged, read_schema

MAX_VARIANTS: Final = 12
_MAX_LOOKS: Final = 2_000
"""Values compared for one answer. More than that, and the value counts as not fitting: it gets a JSON field."""
_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
}


def variants_of(schema: dict[str, Any], root: Schema) -> list[dict[str, Any]]:
    """Return the schemas a value may have one of, what stands beside the choice merged into each; empty: no choice."""
    names = [name for name in ("anyOf", "oneOf") if name in schema]
    if "allOf" in schema or "$ref" in schema or len(names) > 1:
        return []
    return _options_of(names[0], schema, root) if names else _types_of(schema)


def _types_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a schema of several types as one schema each."""
    kinds = schema.get("type")
    if not isinstance(kinds, list) or not 1 < len(kinds) <= MAX_VARIANTS or {"enum", "const"} & schema.keys():
        return []
    return [{**schema, "type": kind} for kind in kinds]


def _options_of(name: str, schema: dict[str, Any], root: Schema) -> list[dict[str, Any]]:
    options = schema[name]
    if not isinstance(options, list) or not 1 <= len(options) <= MAX_VARIANTS:
        return []
    outer = {key: value for key, value in schema.items() if key not in {name, "description", "title", "default"}}
    variants = []
    for option in options:
        if not isinstance(option, Mapping):
            return []
        read = read_schema(option, root)
        # Read again when it is drawn, for its nulls and references; here it must only stand by itself.
        variants.append(merged(outer, option if read.nullable or read.refs else read.schema))
    return variants


def label_of(variant: Mapping[str, Any], root: Schema) -> str:
    """Return what a person calls this type of value: its title, the constant that marks it, or its type."""
    schema = read_schema(variant, root).schema
    title = variant.get("title") or schema.get("title")
    if isinstance(title, str):
        return title
    if "const" in schema:
        return json_text.dump(tree_of(schema["const"]))
    kind = schema.get("type")
    return _WORDS.get(kind, "anything") if isinstance(kind, str) else "anything"


def chosen_of(variants: list[dict[str, Any]], value: JsonTree, root: Schema) -> int | None:
    """Return the first variant that the value has; better one that knows all its members. None: it has none of them."""
    for closed in (True, False):
        for place, variant in enumerate(variants):
            if _Fit(root, closed=closed).fits(variant, value):
                return place
    return None


class _Fit:
    """Compares one value with one schema. ``closed``: an object may have no members that its schema does not name."""

    def __init__(self, root: Schema, *, closed: bool) -> None:
        self._root = root
        self._closed = closed
        self._looks = 0

    def fits(self, schema: object, value: JsonTree) -> bool:
        """Tell whether the value fits. One that a schema without end takes too long, or too deep, to compare does not."""
        try:
            return self._fits(schema, value)
        except RecursionError:
            return False

    def _fits(self, schema: object, value: JsonTree) -> bool:
        self._looks += 1
        if self._looks > _MAX_LOOKS or schema is False:
            return False
        read = read_schema(schema, self._root)
        inner = read.schema
        if value is None and read.nullable:
            return True
        if not self._fits_options(inner, value) or not _is_constant(inner, value) or not _is_typed(inner, value):
            return False
        if isinstance(value, dict):
            return self._fits_object(inner, value)
        if isinstance(value, list) and inner.get("items") is not None:
            return all(self._fits(inner["items"], item) for item in value)
        return True

    def _fits_options(self, schema: dict[str, Any], value: JsonTree) -> bool:
        for options in (schema.get("anyOf"), schema.get("oneOf")):
            if not isinstance(options, list):
                continue
            for option in options:
                if self._fits(option, value):
                    break
            else:
                return False
        return True

    def _fits_object(self, schema: dict[str, Any], value: dict[str, JsonTree]) -> bool:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        others = schema.get("additionalProperties", not (self._closed and known))
        required = schema.get("required")
        if isinstance(required, list) and any(key not in value for key in required):
            return False
        return all(self._fits(known.get(key, others), member) for key, member in value.items())


def _is_constant(schema: dict[str, Any], value: JsonTree) -> bool:
    """Tell whether the value is the schema's constant, and among its options, where it has any."""
    if "const" in schema and json_text.dump(tree_of(schema["const"])) != json_text.dump(value):
        return False
    options = schema.get("enum")
    if not isinstance(options, list):
        return True
    return json_text.dump(value) in {json_text.dump(tree_of(option)) for option in options}


def _is_typed(schema: dict[str, Any], value: JsonTree) -> bool:
    kinds = schema.get("type")
    if kinds is None:
        return True
    return any(_is_a(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _is_a(kind: object, value: JsonTree) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, NumberToken) and INTEGER.fullmatch(value.text) is not None
        case "number":
            return isinstance(value, NumberToken)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return kind == "null" and value is None
