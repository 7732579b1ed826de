"""I14: a schema from outside cannot stop the process that checks a value against it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from turngate.domain.errors import ConfigurationError
from turngate.schemas.document import UnusableSchemaError, pattern_checks
from turngate.schemas.validator import MisfitError, SchemaValidator
from turngate.toolkits.json_schema import JsonSchemaParameters

DRAFT = "https://json-schema.org/draft/2020-12/schema"
OLD_DRAFT = "http://json-schema.org/draft-07/schema#"
MAX_SECONDS = 5.0
EVIL = "^(a+)+$"
TEXT = "a" * 40 + "X"


@pytest.fixture(autouse=True)
def ends_in_time() -> Iterator[None]:
    """Each test here would take minutes to years without the limit that it proves."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < MAX_SECONDS


def doubling(levels: int, keywords: tuple[str, str] | None = None) -> dict[str, Any]:
    """Return a schema in which each definition refers to the next one twice."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "object"}}
    for level in range(levels):
        following = f"#/$defs/d{level + 1}"
        if keywords is None:
            definitions[f"d{level}"] = {"allOf": [{"$ref": following}, {"$ref": following}]}
        else:
            definitions[f"d{level}"] = dict.fromkeys(keywords, following)
    return {"type": "object", "$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": EVIL}, TEXT),
        ({"$schema": OLD_DRAFT, "pattern": EVIL}, TEXT),
        ({"properties": {"x": {"$schema": DRAFT, "pattern": EVIL}}}, {"x": TEXT}),
        ({"properties": {"x": {"$schema": OLD_DRAFT, "items": {"pattern": EVIL}}}}, {"x": [TEXT]}),
        ({"propertyNames": {"pattern": EVIL}}, {TEXT: 1}),
        ({"$ref": "#/hidden/here", "hidden": {"here": {"pattern": EVIL}}}, TEXT),
        ({"patternProperties": {EVIL: False}, "additionalProperties": False}, {TEXT: 1}),
    ],
)
def test_i14_patterns_are_matched_in_linear_time(schema: dict[str, Any], value: Any) -> None:
    """A pattern that a backtracking engine tries for years is answered at once, wherever the schema has it."""
    assert SchemaValidator(schema).errors(value, 1)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (doubling(26), "100,000 checks"),
        (doubling(26, ("$ref", "$dynamicRef")), "100,000 checks"),
        ({"allOf": [{"$ref": "#a"}] * 400, "$defs": {"a": {"$anchor": "a", "allOf": [True] * 400}}}, "100,000 checks"),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, "without end"),
        ({"$ref": "#/x-own/a", "x-own": {"a": {"$ref": "#"}}}, "without end"),
        ({"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)} | {"d3000": {}}}, "too deep"),
        ({"allOf": [{"minLength": n} for n in range(10_000)]}, "6,000 schemas"),
        ({"properties": {f"p{n}": {"pattern": f"[a-z]{{1,500}}{n}"} for n in range(200)}}, "patterns .* too large"),
        ({"$defs": {"x": {"$id": "https://example.com/x"}}}, r"\$id"),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "never fetched"),
        ({"properties": {"x": {"$ref": "#/$defs/y"}}}, "'#/\\$defs/y'"),
        ({"properties": {"x": {"type": None}}}, r"at properties\.x\.type"),
        ({"required": None}, "at required"),
        ({"const": "\ud800"}, "can't be read"),
    ],
)
def test_i14_a_schema_that_could_hold_up_a_check_is_refused(schema: dict[str, Any], says: str) -> None:
    """What a schema can cost is computed when it is declared: it is refused in a sentence, before any value is there."""
    with pytest.raises(UnusableSchemaError, match=says):
        SchemaValidator(schema)


TWICE = {"properties": {"t": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}
"""A schema that doubles its checks with each level of a value."""


def within_itself(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _level in range(levels):
        schema = {"allOf": [schema]}
    return schema


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _level in range(levels):
        value = {"t": value}
    return value


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        (TWICE, nested(30), "takes too long"),
        ({"items": {"enum": list(range(1_000))}}, [-1] * 100_000, "takes too long"),
        ({"items": {"anyOf": [{"type": "string"}] * 1_000}}, [1] * 100_000, "takes too long"),
        (
            {"allOf": [{"contains": {"const": n}, "minContains": 0} for n in range(1_000)]},
            [1] * 100_000,
            "takes too long",
        ),
        ({"items": {"pattern": "[ab]*a[ab]{200}c[ab]{300}d"}}, ["ab" * 10_000] * 100, "takes too long"),
        ({"propertyNames": {"pattern": "(([ab]?){20}){20}c"}}, {"ab" * 200_000: 1}, "takes too long"),
        ({"items": {"type": "string"}}, [1] * 1_000_000, "too large to say where"),
        ({"required": [f"b{n}" for n in range(1_000)]}, {f"a{n}": n for n in range(10_000)}, "too large to say where"),
        (
            {"properties": {"t": {"$ref": "#"}}, "required": ["x"]},
            nested(150) | {"a": list(range(100_000))},
            "to say where",
        ),
        ({"items": {"$ref": "#"}}, nested(201), "too deep"),
        ({"properties": {"t": {"$ref": "#"}}, **within_itself(12)}, nested(199), "too deep"),
        ({"maximum": 5}, float("inf"), "too large"),
    ],
)
def test_i14_a_check_has_a_bound(schema: dict[str, Any], value: Any, says: str) -> None:
    """What would take exponential time, or memory for each error, is a misfit of the whole value."""
    with pytest.raises(MisfitError, match=says):
        SchemaValidator(schema).errors(value, 1_000_000)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [{"n": n} for n in range(100_000)]),
        ({"unevaluatedProperties": {"type": "integer"}}, {f"a{n}": 1 for n in range(100_000)}),
        (
            {"items": {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}}},
            [{"a": 1, "b": "x"}] * 20_000,
        ),
        ({"items": {"pattern": "^[a-z]+$"}}, ["order"] * 20_000),
        (TWICE, nested(10)),
        ({"$defs": {"e": {"properties": {"l": {"$ref": "#/$defs/e"}}}}, "$ref": "#/$defs/e"}, nested(200)),
        ({"allOf": [{"enum": [f"sku-{n}" for n in range(50_000)]}]}, "sku-1"),
    ],
)
def test_large_values_of_ordinary_schemas_are_checked(schema: dict[str, Any], value: Any) -> None:
    """A list of 20,000 objects is no attack."""
    assert not SchemaValidator(schema).errors(value, 1)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-around"),
        (r"(a)\1", "back references"),
        ("(", "no regular expression"),
        ("[a-z]{1,900}[a-z]{1,900}", "too large"),
        ("a" * 1_001, "characters"),
        ("\ud800", "Unicode"),
    ],
)
def test_i14_patterns_that_cannot_be_matched_in_linear_time_are_refused(pattern: str, reason: str) -> None:
    """The declaration of such a tool fails, and its message says what cannot be read."""
    with pytest.raises(UnusableSchemaError, match=reason):
        pattern_checks(pattern)
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: True}}):
        with pytest.raises(ConfigurationError, match="pattern"):
            JsonSchemaParameters({"type": "object", "properties": {"x": schema}})


def test_i14_a_hidden_pattern_is_refused() -> None:
    """A pattern outside every keyword, which only a reference leads to, is read like the others."""
    schema = {"type": "object", "properties": {"x": {"$ref": "#/x-own/here"}}, "x-own": {"here": {"pattern": "(?=a)"}}}
    with pytest.raises(ConfigurationError, match="can't be used"):
        JsonSchemaParameters(schema)


def test_i14_a_declaration_ends_in_time() -> None:
    """Schemas of 100,000 characters are read, or refused, within the limit."""
    dense = {"type": "object", "properties": {f"p{n}": {} for n in range(1_000)}}
    anchors = {
        "type": "object",
        "$defs": {f"d{n}": {"$anchor": f"a{n}"} for n in range(300)},
        "properties": {f"p{n}": {"$ref": f"#a{n}"} for n in range(300)},
    }
    for schema in (dense, anchors):
        started = time.monotonic()
        with suppress(ConfigurationError):
            JsonSchemaParameters(schema)
        assert time.monotonic() - started < MAX_SECONDS


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("^[a-z]+$", "abc", True),
        ("b", "abc", True),
        (r"^[\u4e00-\u9fa5]+$", "中文", True),
        (r"^\\u4e00$", "\\u4e00", True),
        (r"^\d$", "٣", False),
        ("^.$", "\ud800", True),
    ],
)
def test_patterns_mean_what_json_schema_says(pattern: str, text: str, fits: bool) -> None:
    """Patterns are searched for, not anchored; JavaScript's code points are read; half a surrogate pair is a character."""
    assert (not SchemaValidator({"pattern": pattern}).errors(text, 1)) == fits
