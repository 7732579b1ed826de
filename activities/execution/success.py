"""What a tool returned, as the JSON value that its result holds: encoded by its success type, bounded, storable."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from turngate.domain.tools.results import MAX_DEPTH, is_deeper
from turngate.domain.tools.tool import Tool
from turngate.store.storable import storable


def encoded(tool: Tool, value: Any) -> Any:
    """Return the JSON value of what the handler returned.

    It is encoded as it is: validating it first would decode a second time what the handler has decoded already, and a
    type that parses text would choke on its own value (I7). Only what does not fit the type, such as a dict in place of
    a model, is validated. Through JSON text, because NaN has no place in a result.

    Raises:
        Exception: it does not fit the type (pydantic's errors, or those of the author's own types), or nests deeper than
            every reader of a stored result can follow (ValueError).
    """
    if value is None:  # pydantic encodes it in place of anything; a handler that forgot its `return` is found here
        tool.success.validate_python(None)
    try:
        made = _read(tool.success.dump_json(value, warnings="error"))
    except PydanticSerializationError as mismatch:
        made = _second_try(tool, value, mismatch)
    if is_deeper(made, MAX_DEPTH):
        raise ValueError(f"the result nests deeper than {MAX_DEPTH} levels")
    return made


def _second_try(tool: Tool, value: Any, mismatch: PydanticSerializationError) -> Any:
    try:
        # A text with half a surrogate pair, from a file name that is not UTF-8, cannot be encoded; it is worth keeping.
        tree = tool.success.dump_python(value, mode="json", warnings="error")
    except PydanticSerializationError:
        pass
    else:
        return json_of(tree)
    try:
        fitting = tool.success.validate_python(value)
    except ValidationError:
        raise mismatch from None
    return _read(tool.success.dump_json(fitting))


def json_of(value: Any) -> Any:
    """Return a value that JSON can say, as it can be stored: without NaN, without halves of surrogate pairs."""
    return _read(storable(json.dumps(value, ensure_ascii=False)))


def _read(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=lambda _: None)  # a type may be configured to write NaN as such
