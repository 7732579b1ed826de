"""One control of a form: what stands in it, what may be picked, and what every field has. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from turngate.domain.text import json_text
from turngate.domain.text.hidden_text import escape_hidden
from turngate.domain.text.json_text import JsonTree, NumberToken, tree_of
from turngate.forms.fields import Choice, Control, State
from turngate.forms.schema_kinds import ABSENT, Absent, Kind, is_empty, kind_for

_ESCAPED: Final = "Shown as a JSON string, because it holds characters that a plain field would hide or change."
_OTHER_TYPE: Final = "Shown as JSON, because it is of none of the types that the schema names."


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a field stands: its name and key, and what lies above it (``depth`` fields, the references followed)."""

    name: str
    key: str | None = None
    required: bool = True
    depth: int = 0
    refs: frozenset[str] = field(default_factory=frozenset)

    def inside(self, part: object, key: str | None = None, *, required: bool = True) -> Place:
        """Return a place inside this one."""
        return Place(name=f"{self.name}-{part}", key=key, required=required, depth=self.depth + 1, refs=self.refs)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one field is for. ``schema``: read, of the value that is not null. ``fresh``: defaults fill what is missing."""

    place: Place
    schema: dict[str, Any]
    value: JsonTree | Absent
    nullable: bool = False
    fresh: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no value to hold: left out, or a null that the schema allows."""
        return is_empty(self.value, nullable=self.nullable)


def common_of(part: Part) -> dict[str, Any]:
    """Return what every field has: its name, what may be picked for it, and what it is for."""
    place, schema = part.place, part.schema
    states: list[State] = ["value"]
    if part.nullable:
        states.append("null")
    if not place.required:
        states.append("absent")
    state: State = "value"
    if part.value is ABSENT and not place.required:
        state = "absent"
    elif part.nullable and part.is_empty:
        state = "null"
    description = schema.get("description")
    note = ""
    if state == "absent" and "default" in schema:
        note = f"Left out, it is {json_text.dump(tree_of(schema['default']))}."
    return {
        "name": place.name,
        "key": place.key,
        "required": place.required,
        "state": state,
        "states": tuple(states),
        "description": description if isinstance(description, str) else "",
        "note": note,
    }


def control(part: Part) -> Control:
    """Return the one control that holds the value without loss."""
    schema, value = part.schema, part.value
    kind, item = kind_for(schema, value, nullable=part.nullable)
    common = common_of(part)
    if kind == "choice":
        # Null and "leave it out" stand among the options.
        common |= {"state": "value", "states": ("value",)}
        return Control(**common, kind=kind, text=_choice_text(part), choices=_choices_for(part))
    if kind == "json" and isinstance(value, str):
        common["note"] = _ESCAPED
    elif kind == "json" and value is not ABSENT and {"anyOf", "oneOf"} & schema.keys():
        common["note"] = _OTHER_TYPE
    text = "" if part.is_empty else _text_for(kind, value)
    hint = schema.get("format")
    return Control(**common, kind=kind, item=item, text=text, format=hint if isinstance(hint, str) else "")


def _text_for(kind: Kind, value: JsonTree | Absent) -> str:
    if kind == "json":
        return escape_hidden(json_text.dump(value, indent=2))
    if isinstance(value, list):
        return "\n".join(line if isinstance(line, str) else json_text.dump(line) for line in value)
    return value.text if isinstance(value, NumberToken) else str(value or "")


def _choice_text(part: Part) -> str:
    if part.value is not ABSENT:
        return json_text.dump(part.value)
    return json_text.dump(tree_of(part.schema["const"])) if part.place.required and "const" in part.schema else ""


def _choices_for(part: Part) -> tuple[Choice, ...]:
    schema, value = part.schema, part.value
    if "const" in schema:
        options = [schema["const"]]
    else:
        options = schema["enum"] if isinstance(schema.get("enum"), list) else [True, False]
    if part.nullable:
        options = [*options, None]
    texts = dict.fromkeys(json_text.dump(tree_of(option)) for option in options)
    choices = [Choice(value=text, label=_label(text)) for text in texts]
    if value is not ABSENT and json_text.dump(value) not in texts:
        given = json_text.dump(value)
        choices.append(Choice(value=given, label=f"{_label(given)} (as sent, not among the options)"))
    if not part.place.required:
        choices.append(Choice(value="", label="(leave it out)"))
    elif value is ABSENT:
        choices.insert(0, Choice(value="", label="(choose)"))
    return tuple(choices)


def _label(text: str) -> str:
    """Return a choice's JSON text for people: a string without its quotes, unless it could be taken for something else."""
    parsed = json_text.parse(text)
    said = None if parsed is None else parsed.tree
    # A bracket could make it read like one of our own words, such as "(leave it out)".
    if isinstance(said, str) and said.strip() and "(" not in said and json_text.parse(said) is None:
        return said
    return text
