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
    if not names:
        kinds = schema.get("type")
        several = isinstance(kinds, list) and 1 < len(kinds) <= MAX_VARIANTS and not {"enum", "const"} & schema.keys()
        return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) and several else []
    options = schema[names[0]]
    if not isinstance(options, list) or not 1 <= len(options) <= MAX_VARIANTS:
        return []
    outer = {name: value for name, value in schema.items() if name not in {*names, "description", "title", "default"}}
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
        self._looks += 1
        if self._looks > _MAX_LOOKS or schema is False:
            return False
        read = read_schema(schema, self._root)
        inner = read.schema
        if value is None and read.nullable:
            return True
        for name in ("anyOf", "oneOf"):
            options = inner.get(name)
            if isinstance(options, list) and not any(self.fits(option, value) for option in options):
                return False
        if "const" in inner and json_text.dump(tree_of(inner["const"])) != json_text.dump(value):
            return False
        if isinstance(inner.get("enum"), list) and json_text.dump(value) not in {
            json_text.dump(tree_of(option)) for option in inner["enum"]
        }:
            return False
        kinds = inner.get("type")
        if kinds is not None and not any(
            _is_a(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds])
        ):
            return False
        if isinstance(value, dict):
            return self._fits_object(inner, value)
        items = inner.get("items")
        return not isinstance(value, list) or items is None or all(self.fits(items, item) for item in value)

    def _fits_object(self, schema: dict[str, Any], value: dict[str, JsonTree]) -> bool:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        others = schema.get("additionalProperties", not (self._closed and known))
        required = schema.get("required")
        if isinstance(required, list) and any(key not in value for key in required):
            return False
        return all(self.fits(known.get(key, others), member) for key, member in value.items())


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
