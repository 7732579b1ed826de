"""What a tool returned, as the JSON value that its result holds: encoded by its success type, bounded, storable."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from turngate.domain.results import MAX_DEPTH, is_deeper
from turngate.domain.tools import Tool
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
    try:
        made = json.loads(tool.success.dump_json(value, warnings="error"))
    except PydanticSerializationError as mismatch:
        made = _second_try(tool, value, mismatch)
    if is_deeper(made, MAX_DEPTH):
        raise ValueError(f"the result nests deeper than {MAX_DEPTH} levels")
    return made


def _second_try(tool: Tool, value: Any, mismatch: PydanticSerializationError) -> Any:
    try:
        # Half a surrogate pair, from a file name that is not UTF-8, has no JSON text of its own; the rest is worth keeping.
        tree = tool.success.dump_python(value, mode="json", warnings="error")
    except PydanticSerializationError:
        pass
    else:
        text = storable(json.dumps(tree, ensure_ascii=False))
        return json.loads(text, parse_constant=lambda _: None)
    try:
        fitting = tool.success.validate_python(value)
    except ValidationError:
        raise mismatch from None
    return json.loads(tool.success.dump_json(fitting))
