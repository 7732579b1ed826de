"""Forms in an editor: the few words that an answer takes, asked for where the editor has said that it can ask.

Source: https://agentclientprotocol.com/protocol/elicitation
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from acp.schema import ElicitationSchema
from pydantic import ValidationError

from turngate.drivers import acp_showing as show

_KEPT: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "enum", "default"}),
    "number": frozenset({"minimum", "maximum", "default"}),
    "integer": frozenset({"minimum", "maximum", "default"}),
    "boolean": frozenset({"default"}),
}
"""What a form's fields may be, and what of their JSON Schema an editor understands; the API checks the whole of it."""
_WORDS: Final = ("title", "description")


def form_of(schema: Mapping[str, Any]) -> ElicitationSchema | None:
    """Return the form for an answer of this JSON Schema; None: it takes more than plain fields."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    fields: dict[str, Any] = {}
    for name, declared in properties.items():
        kept = _KEPT.get(str(declared.get("type"))) if isinstance(declared, dict) else None
        if kept is None:
            return None
        words = {word: show.marked(str(declared[word])) for word in _WORDS if word in declared}
        fields[name] = {"type": declared["type"], **words, **{key: declared[key] for key in kept & declared.keys()}}
    try:
        return ElicitationSchema.model_validate(
            {"type": "object", "properties": fields, "required": list(schema.get("required", []))}
        )
    except ValidationError:
        return None


def one_line(name: str, title: str) -> ElicitationSchema:
    """Return a form that asks for one text, which may not be empty."""
    return ElicitationSchema.model_validate(
        {
            "type": "object",
            "properties": {name: {"type": "string", "title": title, "minLength": 1}},
            "required": [name],
        }
    )
