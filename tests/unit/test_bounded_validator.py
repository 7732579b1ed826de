"""I14: a schema from outside cannot stop the process that checks a value against it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from turngate import InvalidToolInput
from turngate.bounded_validator import (
    MAX_SCHEMA_SECONDS,
    BoundedValidator,
    TooCostlyError,
    UnreadableSchemaError,
    compile_pattern,
)
from turngate.domain.errors import ConfigurationError
from turngate.toolkits.json_schema import JsonSchemaParameters

DRAFT = "https://json-schema.org/draft/2020-12/schema"
OLD_DRAFT = "http://json-schema.org/draft-07/schema#"
EVIL = "^(a+)+$"
TEXT = "a" * 40 + "X"


@pytest.fixture(autouse=True)
def ends_in_time() -> Iterator[None]:
    """Each test here would take minutes to years without the limit that it proves."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 3 * MAX_SCHEMA_SECONDS


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
    assert BoundedValidator(schema).errors(value, 1)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(30), {}),
        (doubling(30, ("$ref", "$dynamicRef")), {}),
        ({**doubling(30, ("$ref", "$dynamicRef")), "unevaluatedProperties": False}, {"a": 1}),
        ({**doubling(30), "unevaluatedProperties": False}, {f"a{n}": 1 for n in range(900)}),
        ({"uniqueItems": True}, [{"n": n} for n in range(100_000)]),
        ({"unevaluatedItems": False, "prefixItems": [True] * 5_000}, list(range(100_000))),
        ({"unevaluatedProperties": False}, {f"a{n}": 1 for n in range(100_000)}),
        ({"items": {"enum": list(range(1_000))}}, [-1] * 100_000),
        ({"items": {"anyOf": [{"type": "string"}] * 1_000}}, [1] * 100_000),
        ({"allOf": [{"minLength": 10_000_000, "maxLength": 1}] * 10_000}, "x" * 4_000_000),
        ({"items": {"pattern": "[ab]*a[ab]{200}c[ab]{300}d"}}, ["ab" * 10_000] * 100),
    ],
)
def test_i14_a_check_has_a_budget(schema: dict[str, Any], value: Any) -> None:
    """What takes exponential or quadratic time stops with a typed error."""
    with pytest.raises(TooCostlyError):
        BoundedValidator(schema).errors(value, 1_000_000)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)", "look-around"),
        (r"(a)\1", "back references"),
        ("(", "missing"),
        ("[a-z]{1,900}[a-z]{1,900}", "too large"),
        ("a" * 1_001, "characters"),
        ("\ud800", "Unicode"),
    ],
)
def test_i14_patterns_that_cannot_be_matched_in_linear_time_are_refused(pattern: str, reason: str) -> None:
    """The declaration of such a tool fails, and its message says what cannot be read."""
    with pytest.raises(UnreadableSchemaError, match=reason):
        compile_pattern(pattern)
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: True}}):
        with pytest.raises(ConfigurationError, match="pattern"):
            JsonSchemaParameters({"type": "object", "properties": {"x": schema}})


def test_i14_backtracking_never_happens_beside_unevaluated_properties() -> None:
    """The library matches patternProperties itself when it looks for unevaluated ones: the two are refused together."""
    schema = {"type": "object", "$defs": {"x": {"patternProperties": {"^a": True}}}, "unevaluatedProperties": False}
    with pytest.raises(ConfigurationError, match="cannot be in one schema"):
        JsonSchemaParameters(schema)


def test_i14_a_hidden_pattern_is_a_complaint() -> None:
    """A pattern that no declaration can see, and that cannot be read, makes a complaint and no exception."""
    schema = {"type": "object", "properties": {"x": {"$ref": "#/x-own/here"}}, "x-own": {"here": {"pattern": "(?=a)"}}}
    with pytest.raises(InvalidToolInput, match="cannot be used"):
        JsonSchemaParameters(schema).decode('{"x": "a"}')


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
        assert time.monotonic() - started < 2 * MAX_SCHEMA_SECONDS


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
    assert (not BoundedValidator({"pattern": pattern}).errors(text, 1)) == fits
