"""Tools described by raw JSON Schema in place of pydantic models: for schemas that come from elsewhere.

Owns :class:`JsonSchemaParameters` and :func:`json_schema_tool`. Must not open a connection: a ``$ref`` that points out of
its own document is refused when the tool is declared, never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Unpack

from pydantic import JsonValue, SerializerFunctionWrapHandler, WrapSerializer

from turngate import InvalidToolInput, Tool, declare_tool
from turngate.domain.errors import ConfigurationError
from turngate.domain.tools.declare import SplitToolOptions
from turngate.domain.tools.failures import describe_issues
from turngate.domain.tools.parameters import object_text
from turngate.readable_schema import compiled
from turngate.schemas.validator import SchemaValidator


@dataclass(frozen=True)
class JsonSchemaParameters:
    """A tool's parameters as JSON Schema, draft 2020-12 unless its ``$schema`` names another; a handler gets a ``dict``.

    ``format`` is checked for dates, e-mail and IP addresses, UUIDs and patterns.
    Defaults are not filled in: what was approved is what the handler gets.

    Raises:
        ConfigurationError: no valid JSON Schema, not of an object, a ``$ref`` that does not resolve within it, or a
            ``pattern`` that can't be used (look-around, back references, or too large).
    """

    schema: Mapping[str, JsonValue]
    _validator: SchemaValidator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Copy the schema and compile it."""
        copied = _copy(self.schema, "parameters")
        if copied.get("type") != "object":
            raise ConfigurationError(
                'a tool\'s parameters are an object: put `"type": "object"` at the root of their JSON Schema, and what '
                'you have now under "properties"'
            )
        object.__setattr__(self, "schema", copied)
        object.__setattr__(self, "_validator", compiled(copied, "parameters"))

    @property
    def python_type(self) -> type:
        """Handlers take ``dict[str, JsonValue]``."""
        return dict

    def json_schema(self) -> dict[str, JsonValue]:
        """Return a copy of the schema."""
        return _copy(self.schema, "parameters")

    def decode(self, raw_input: str) -> dict[str, JsonValue]:
        """Return the arguments as they were sent. Raises InvalidToolInput, with a complaint for each wrong place."""
        decoded: dict[str, JsonValue] = json.loads(object_text(raw_input))
        if issues := self._validator.mismatches(decoded):
            raise InvalidToolInput(describe_issues(issues))
        return decoded


def json_schema_tool(
    *,
    name: str,
    description: str,
    parameters: Mapping[str, JsonValue] | None = None,
    success: Mapping[str, JsonValue] | None = None,
    **options: Unpack[SplitToolOptions],
) -> Tool:
    """Declare a tool whose schemas are JSON, not Python types.

    Its handler is ``async def handler(params: dict[str, JsonValue], ctx: ToolContext, …services) -> JSON value``.

    Args:
        name: as the model calls it.
        description: as the model reads it.
        parameters: JSON Schema of an object; None for a tool that takes nothing.
        success: JSON Schema of what the handler returns. A result that does not fit is the tool's own bug, reported as
            such; it is never shown to the model as if it were what was promised.
        options: everything else :func:`turngate.declare_tool` takes (``effect``, ``ask``, ``handler``, …).

    Raises:
        ConfigurationError: a schema cannot be used, or ``declare_tool`` refuses the rest; the message says why.
    """
    success_schema = None if success is None else _copy(success, "success")
    try:
        params = None if parameters is None else JsonSchemaParameters(parameters)
        returns = JsonValue if success_schema is None else _checked(compiled(success_schema, "success"))
    except ConfigurationError as error:
        raise ConfigurationError(f"tool {name!r}: {error.message}") from None
    return declare_tool(
        name=name, description=description, params=params, success=returns, success_schema=success_schema, **options
    )


def _checked(validator: SchemaValidator) -> Any:
    """Return a type that refuses to be shown when it does not fit: the executor then says that the effects remain."""

    def fitting(value: Any, encode: SerializerFunctionWrapHandler) -> Any:
        encoded = encode(value)
        if issues := validator.mismatches(encoded):
            raise ValueError(f"the result does not fit the tool's success schema: {describe_issues(issues)}")
        return encoded

    return Annotated[JsonValue, WrapSerializer(fitting)]


def _copy(schema: Mapping[str, JsonValue], what: str) -> dict[str, JsonValue]:
    """Return a deep copy, so that no one changes the schema under the digest that was approved."""
    try:
        copied = json.loads(json.dumps(dict(schema), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the {what} schema is not JSON: {error}") from None
    assert isinstance(copied, dict)  # noqa: S101 - it was one
    return copied
