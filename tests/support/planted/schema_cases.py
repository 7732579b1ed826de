"""Strategies: JSON Schemas with raw JSON texts that mostly fit them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
LINES = st.text(alphabet="\n\r\t <>&\"'/ab", max_size=8)
KEY = st.one_of(st.sampled_from(["a", "b", "~1/0", "constructor", "state", "rows"]), TEXT)
INTEGER = st.one_of(st.just("1" + "0" * 30), st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})\Z"))
NUMBER = st.one_of(
    st.sampled_from(["1.0", "1.10", "-0", "1E400"]),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,3})?\Z"),
)
QUOTED = st.one_of(TEXT, LINES, st.just("")).map(lambda text: json.dumps(text, ensure_ascii=False))
SCALARS = {"string": QUOTED, "integer": INTEGER, "number": NUMBER, "boolean": st.sampled_from(["true", "false"])}


def array(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


def obj(members: dict[str, str]) -> str:
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members.items()) + "}"


ANY = st.recursive(
    st.one_of(*SCALARS.values(), st.just("null")),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(array), st.dictionaries(KEY, inner, max_size=3).map(obj)),
    max_leaves=4,
)

NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["name"],
}
UNKNOWN: list[dict[str, Any]] = [
    {},
    {"not": {"type": "null"}},
    {"$ref": "https://example.invalid/schema.json"},
    {"$ref": "#/$defs/Nowhere"},
    {"type": "array", "prefixItems": [{"type": "integer"}]},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
    {"allOf": [{"type": "object"}, {"required": ["a"]}]},
]

FORMATS: list[dict[str, Any]] = [
    {"type": "string", "format": "date"},
    {"type": "string", "format": "date-time"},
    TypeAdapter(Decimal).json_schema(),
]
DATES = [
    '"2026-01-31"', '"2026-02-30"', '"2026-01-31T09:30:00Z"', '"2026-01-31T09:30:00-03:30"', '"2026-01-31T09:30:00"',
    '"2026-01-31T09:30:00.1Z"', '"2026-01-31T24:00:00Z"', '"1.10"', "1.10", '"+.5"', '"1."', "1e400", '""', "null", "[]",
]  # fmt: skip


def _node(draw: Any, depth: int) -> str:
    members = {"name": draw(QUOTED)}
    if depth > 0 and draw(st.booleans()):
        members["next"] = _node(draw, depth - 1)
    if depth > 0 and draw(st.booleans()):
        members["children"] = array([_node(draw, depth - 1)])
    return obj(members)


def _one(draw: Any, depth: int, defs: dict[str, Any]) -> tuple[dict[str, Any], str]:  # noqa: C901, PLR0912 - a table
    """A schema with a raw value of it."""
    kinds = [*SCALARS, "enum", "const", "unknown", "format"]
    if depth > 0:
        kinds += ["array", "array", "object", "object", "map", "nullable", "variants", "types", "ref", "node"]
    match draw(st.sampled_from(kinds)):
        case "enum":
            options = draw(st.lists(st.one_of(TEXT, st.integers(), st.booleans(), st.none()), min_size=1, max_size=4))
            schema, raw = {"enum": options}, json.dumps(draw(st.sampled_from(options)))
        case "const":
            schema, raw = {"const": "on"}, '"on"'
        case "format":
            schema, raw = dict(draw(st.sampled_from(FORMATS))), draw(st.sampled_from(DATES))
        case "unknown":
            schema, raw = dict(draw(st.sampled_from(UNKNOWN))), draw(ANY)
        case "array":
            items, _raw = first = _one(draw, depth - 1, defs)
            schema = {"type": "array", "items": items}
            raw = array([first[1]] * draw(st.integers(0, 3)))
        case "object":
            schema, raw = _object(draw, depth - 1, defs)
        case "map":
            inner, value = _one(draw, depth - 1, defs)
            schema = {"type": "object", "additionalProperties": inner}
            raw = obj(dict.fromkeys(draw(st.lists(KEY, max_size=3)), value))
        case "nullable":
            inner, value = _one(draw, depth - 1, defs)
            schema, raw = {"anyOf": [inner, {"type": "null"}]}, draw(st.sampled_from([value, "null"]))
        case "variants":
            name = draw(st.sampled_from(["anyOf", "oneOf"]))
            several = [_one(draw, depth - 1, defs) for _each in range(draw(st.integers(1, 3)))]
            schema, raw = {name: [each for each, _value in several]}, draw(st.sampled_from(several))[1]
        case "types":
            kinds = draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=3, unique=True))
            schema, raw = (
                {"type": [*kinds, "null"]},
                draw(st.one_of(st.just("null"), *(SCALARS[kind] for kind in kinds))),
            )
        case "ref":
            inner, raw = _one(draw, depth - 1, defs)
            name = f"D{len(defs)}"
            defs[name] = inner
            schema = {"$ref": f"#/$defs/{name}", "description": "By reference."}
        case "node":
            defs["Node"] = NODE
            schema, raw = {"$ref": "#/$defs/Node"}, _node(draw, 3)
        case kind:
            schema, raw = {"type": kind, "format": draw(st.sampled_from(["date", "none"]))}, draw(SCALARS[kind])
    if draw(st.integers(0, 5)) == 0:
        schema = {**schema, "default": json.loads(draw(QUOTED))}
    # Now and then a value of a type the schema does not have: it must survive too.
    return schema, draw(ANY) if draw(st.integers(0, 9)) == 0 else raw


def _object(draw: Any, depth: int, defs: dict[str, Any]) -> tuple[dict[str, Any], str]:
    properties: dict[str, Any] = {}
    members: dict[str, str] = {}
    required = []
    for key in draw(st.lists(KEY, max_size=4, unique=True)):
        properties[key], raw = _one(draw, depth, defs)
        if draw(st.booleans()):
            required.append(key)
        elif draw(st.booleans()):
            continue
        members[key] = raw
    free = draw(st.sampled_from([None, False, {"type": "integer"}, {"type": "array", "items": {"type": "string"}}]))
    for key in draw(st.lists(KEY, max_size=2, unique=True)):
        if key not in properties:
            members[key] = draw(st.one_of(INTEGER, ANY))
    order = draw(st.permutations(sorted(members)))
    schema = {"type": "object", "properties": properties, "required": required}
    if free is not None:
        schema["additionalProperties"] = free
    return schema, obj({key: members[key] for key in order})


@st.composite
def schemas_with_values(draw: Any) -> tuple[dict[str, Any], str]:
    """A whole schema with its ``$defs``, of an object or of anything, and a raw JSON text."""
    defs: dict[str, Any] = {}
    schema, raw = _object(draw, 3, defs) if draw(st.integers(0, 3)) else _one(draw, 3, defs)
    return {**schema, "$defs": defs}, raw
