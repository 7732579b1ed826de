"""Tools from raw JSON Schema: which declarations fail, what the model reads, what a handler may return."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import JsonValue
from support.engine.one_call import run_tool

from turngate import Failure, InvalidToolInput, Ok, Parameters, ToolContext, Toolkit, declare_tool
from turngate.activities.execution.executor import Unknown
from turngate.domain.errors import ConfigurationError
from turngate.toolkits.json_schema import JsonSchemaParameters, json_schema_tool

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
                "required": ["sku", "count"],
            },
        },
        "on": {"type": "string", "format": "date"},
    },
    "required": ["lines"],
    "additionalProperties": False,
}


def complaint(schema: dict[str, Any], raw: str) -> InvalidToolInput:
    with pytest.raises(InvalidToolInput) as refused:
        JsonSchemaParameters(schema).decode(raw)
    return refused.value


def test_decoded_as_sent() -> None:
    """Valid arguments are returned as they were sent: nothing is filled in or converted."""
    schema = {"type": "object", "properties": {"n": {"type": "number"}, "unset": {"default": 1}}}
    parameters = JsonSchemaParameters(schema)
    assert isinstance(parameters, Parameters)
    assert parameters.decode('{"n": 1.0, "more": "1"}') == {"n": 1.0, "more": "1"}
    assert parameters.decode("") == {}


def test_complaints_name_the_place() -> None:
    """Each error names its argument by path, several at once."""
    text = str(complaint(ORDER, '{"lines": [{"sku": "a", "count": 0}, {"sku": 5, "count": 1}], "extra": 1}'))
    assert "lines.0.count: Input is less than the minimum of 1" in text
    assert "lines.1.sku: Input should be of JSON type string" in text
    assert "arguments: Additional properties are not allowed ('extra' was unexpected)" in text


def test_missing_and_boolean() -> None:
    """A missing argument is named, and true is no integer."""
    assert '"lines" is a required property' in str(complaint(ORDER, "{}"))
    assert "lines.0.count: Input should be of JSON type integer" in str(
        complaint(ORDER, '{"lines": [{"sku": "a", "count": true}]}')
    )


def test_complaints_quote_no_value() -> None:
    """Whatever is wrong with a value, it may be a secret, and so may what is around it."""
    kinds: list[dict[str, Any]] = [
        {"type": "integer"},
        {"enum": ["a", "b"]},
        {"const": 1},
        {"pattern": "^[0-9]+$"},
        {"maxLength": 2},
        {"format": "date"},
        {"not": {"type": "string"}},
        {"anyOf": [{"type": "integer"}, {"minLength": 50}]},
        {"oneOf": [{}, {}]},
        {"allOf": [False]},
    ]
    for kind in kinds:
        assert "hunter2" not in str(complaint({"type": "object", "properties": {"a": kind}}, '{"a": "hunter2"}'))
    around = [{"minProperties": 3}, {"required": ["b"]}, {"propertyNames": {"maxLength": 3}}, {"maxProperties": 0}]
    for keyword in [*around, {"additionalProperties": False}]:
        assert "hunter2" not in str(complaint({"type": "object", **keyword}, '{"hunter2": "hunter2"}'))


def test_a_long_value_leaves_room() -> None:
    """One absurdly long value does not hide the other error from the model."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    text = str(complaint(schema, json.dumps({"a": "x" * 5000, "b": "y"})))
    assert "b: Input should be of JSON type integer" in text


def test_formats() -> None:
    """An invalid date is refused."""
    assert 'on: Input is not a "date"' in str(complaint(ORDER, '{"lines": [], "on": "soon"}'))


@pytest.mark.parametrize("raw", ["[]", "{", '{"n": NaN}', '{"n": -Infinity}', '"text"'])
def test_not_json(raw: str) -> None:
    """Anything but a JSON object is a malformed call, NaN included."""
    assert complaint({"type": "object"}, raw).problem == "malformed_json"


def test_self_reference_ends() -> None:
    """A schema that refers to itself endlessly, and deeply nested arguments, give errors, not crashes."""
    with pytest.raises(ConfigurationError, match="without end"):
        JsonSchemaParameters({"type": "object", "allOf": [{"$ref": "#"}]})
    tree = {"type": "object", "properties": {"t": {"$ref": "#"}}}
    assert "nest deeper than 200 levels" in str(complaint(tree, '{"t":' * 900 + "1" + "}" * 900))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "string"}, '"type": "object"'),
        ({}, '"type": "object"'),
        ({"type": "object", "properties": {"a": {"type": "text"}}}, "at properties.a.type"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "at properties.a.pattern"),
        ({"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}, "never fetched"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}}, "'#/$defs/A'"),
        ({"type": "object", "properties": {"a": {"const": float("nan")}}}, "not JSON"),
        ({"type": "object", "properties": {"a": {1, 2}}}, "not JSON"),
    ],
)
def test_schemas_that_cannot_be_used(schema: dict[str, Any], says: str) -> None:
    """A schema that is wrong, or refers to the outside, stops the start and says what and where."""
    with pytest.raises(ConfigurationError) as refused:
        json_schema_tool(name="order", description="d", parameters=schema)
    assert says in str(refused.value)
    assert str(refused.value).startswith("tool 'order': ")


def test_references_inside() -> None:
    """References within the document work; a literal that looks like one is unchanged."""
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"const": {"$ref": "elsewhere"}}},
        "$defs": {"A": {"type": "integer"}},
    }
    assert JsonSchemaParameters(schema).decode('{"a": 1, "b": {"$ref": "elsewhere"}}')["a"] == 1
    assert "a: Input should be of JSON type integer" in str(complaint(schema, '{"a": "x"}'))


def test_older_draft() -> None:
    """A schema that declares draft 7 is read as draft 7."""
    pair = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"pair": pair},
    }
    assert "pair.1: Input should be of JSON type string" in str(complaint(schema, '{"pair": [1, 2]}'))


def test_it_cannot_be_changed_later() -> None:
    """Changing the schema that was passed in, or the one that was returned, changes nothing."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    parameters = JsonSchemaParameters(schema)
    schema["properties"]["a"]["type"] = "string"
    parameters.json_schema()["properties"]["a"]["type"] = "string"
    assert parameters.json_schema()["properties"] == {"a": {"type": "integer"}}
    assert parameters.decode('{"a": 1}') == {"a": 1}


async def count(params: dict[str, JsonValue], ctx: ToolContext) -> JsonValue:
    return {"count": params.get("as", 1), "key": ctx.idempotency_key}


COUNTED: dict[str, Any] = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "key": {"type": "string"}},
    "required": ["count"],
}


async def test_a_tool_runs() -> None:
    """A tool of raw schemas runs through the executor and shows its schemas unchanged."""
    tool = json_schema_tool(
        name="count", description="Count.", parameters=ORDER, success=COUNTED, effect="read", handler=count
    )
    assert (tool.manifest.parameters, tool.manifest.success, tool.manifest.effect) == (ORDER, COUNTED, "read")
    assert await run_tool(tool, lines=[]) == Ok(value={"count": 1, "key": "key_1"})
    refused = await run_tool(tool, lines=1)
    assert isinstance(refused, Failure)
    assert refused.kind == "input_validation_error"


async def test_no_parameters_and_bare_values() -> None:
    """Without parameters the model sends nothing; a bare value is wrapped like every tool's."""

    async def now() -> JsonValue:
        return 12

    tool = json_schema_tool(name="now", description="d", success={"type": "integer"}, handler=now)
    assert await run_tool(tool) == Ok(value={"value": 12})


async def test_a_result_that_does_not_fit() -> None:
    """An invalid result is the tool's bug: it ran to its end, and no one knows with what result (I3)."""
    tool = json_schema_tool(
        name="count", description="d", parameters={"type": "object"}, success=COUNTED, handler=count
    )
    result = await run_tool(tool, **{"as": "many"})
    assert isinstance(result, Unknown)
    assert "ran to its end, but what it returned does not fit" in result.why


async def test_a_swapped_handler_is_checked_too() -> None:
    """The declaration's schema also applies to a handler that is swapped in later."""

    async def wrong(params: dict[str, JsonValue]) -> JsonValue:
        return {"count": "many"}

    kit = Toolkit.of(
        json_schema_tool(name="count", description="d", parameters={"type": "object"}, success=COUNTED, handler=count)
    ).override("count", wrong)
    swapped = kit.find("count")
    assert swapped is not None
    assert isinstance(await run_tool(swapped), Unknown)


def test_handler_takes_a_dict() -> None:
    """A handler that expects anything but a dict is refused at declaration, and so is a bad success schema."""

    async def wants_nothing(ctx: ToolContext) -> JsonValue:
        return None

    declare_tool(name="a", description="d", params=JsonSchemaParameters({"type": "object"}), handler=wants_nothing)
    with pytest.raises(ConfigurationError, match="the success schema is not valid"):
        json_schema_tool(name="a", description="d", success={"type": "nothing"}, handler=wants_nothing)
    with pytest.raises(ConfigurationError, match="declared with no parameters"):
        json_schema_tool(name="a", description="d", handler=count)
