"""From a JSON Schema and a value to the fields of a form, losing nothing. Pure.

Owns names, states, texts and choices of the controls; which control a value gets is told by ``schema_kinds``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from approvals_api.pages import json_text
from approvals_api.pages.json_text import JsonTree, NumberToken
from approvals_api.pages.schema_kinds import ABSENT, Absent, Kind, Scalar, Schema, kind_for, resolve, without_null
from approvals_api.pages.visible import escape_hidden

State = Literal["value", "null", "absent"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One option of a choice. ``value``: JSON text, empty for "leave it out"; ``label``: what the person reads."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Field:
    """One control of the form.

    ``name``: of the control; ``key``: the property it stands for, None when the form is one value as a whole.
    ``states``: what the person may pick between; one entry needs no picking. ``text``: what the control holds; for a
    choice the JSON text of the chosen option. ``item``: scalar type, of a ``lines`` field one line's.
    """

    name: str
    key: str | None
    kind: Kind
    text: str
    state: State
    states: tuple[State, ...]
    required: bool
    item: Scalar = "string"
    choices: tuple[Choice, ...] = ()
    description: str = ""
    note: str = ""

    @property
    def pointer(self) -> str:
        """JSON pointer of the value this field stands for (RFC 6901)."""
        return "" if self.key is None else "/" + self.key.replace("~", "~0").replace("/", "~1")

    @property
    def state_name(self) -> str:
        """Name of the control that says value, null or left out."""
        return f"{self.name}-state"

    @property
    def hint(self) -> str:
        """How to fill the field in; empty when it goes without saying."""
        if self.kind == "json":
            return "JSON"
        if self.kind == "lines":
            return f"{self.item}s, one per line" if self.item != "string" else "one per line, no quotes"
        return self.item if self.kind in {"integer", "number"} else ""


def fields_of(schema: Schema, value: JsonTree | Absent = ABSENT, *, prefix: str = "field") -> tuple[Field, ...]:
    """Return the form's fields in the schema's order, then what the value has besides (kept, as JSON).

    ``value``: what the fields hold at first; ABSENT starts from the schema's defaults. A schema that is not of an
    object, or a value that is not one, gives a single field whose ``key`` is None. ``prefix``: of the controls' names,
    so that several forms of one page never share a name.
    """
    resolved = resolve(schema, schema)
    properties = resolved.get("properties")
    is_object = resolved.get("type") == "object" or isinstance(properties, dict)
    if not is_object or not (value is ABSENT or isinstance(value, dict)):
        return (_field(f"{prefix}-0", None, resolved, value, required=True),)
    members: dict[str, JsonTree] = value if isinstance(value, dict) else {}
    required = resolved.get("required") or []
    fields: list[Field] = []
    for key, subschema in (properties or {}).items():
        of_key = resolve(subschema if isinstance(subschema, dict) else {}, schema)
        given: JsonTree | Absent = members.get(key, ABSENT)
        if value is ABSENT and "default" in of_key:
            given = _as_tree(of_key["default"])
        fields.append(_field(f"{prefix}-{len(fields)}", key, of_key, given, required=key in required))
    for key, given in members.items():
        if key not in (properties or {}):
            extra = _field(
                f"{prefix}-{len(fields)}", key, {"description": "Not in the tool's schema."}, given, required=False
            )
            fields.append(extra)
    return tuple(fields)


def _field(name: str, key: str | None, schema: dict[str, Any], value: JsonTree | Absent, *, required: bool) -> Field:
    inner, nullable = without_null(schema)
    kind, item = kind_for(inner, value, nullable=nullable)
    states: list[State] = ["value"]
    if kind != "choice":
        if nullable:
            states.append("null")
        if not required:
            states.append("absent")
    state: State = "value"
    if value is ABSENT and not required:
        state = "absent"
    elif nullable and (value is None or value is ABSENT):
        state = "null"
    note = ""
    if kind == "json" and isinstance(value, str):
        note = "Shown as a JSON string, because it holds characters that a plain field would hide or change."
    return Field(
        name=name,
        key=key,
        kind=kind,
        item=item,
        text=_choice_text(inner, value, required=required)
        if kind == "choice"
        else _text_for(kind, value, nullable=nullable),
        state="value" if kind == "choice" else state,
        states=tuple(states),
        required=required,
        choices=_choices_for(inner, value, nullable=nullable, required=required) if kind == "choice" else (),
        description=str(schema.get("description", "")),
        note=note,
    )


def _text_for(kind: Kind, value: JsonTree | Absent, *, nullable: bool) -> str:
    if value is ABSENT or (value is None and nullable):
        return ""
    if kind == "json":
        return escape_hidden(json_text.dump(value, indent=2))
    if isinstance(value, list):
        return "\n".join(line if isinstance(line, str) else json_text.dump(line) for line in value)
    return value.text if isinstance(value, NumberToken) else str(value or "")


def _choice_text(schema: dict[str, Any], value: JsonTree | Absent, *, required: bool) -> str:
    if value is not ABSENT:
        return json_text.dump(value)
    return json_text.dump(_as_tree(schema["const"])) if required and "const" in schema else ""


def _choices_for(
    schema: dict[str, Any], value: JsonTree | Absent, *, nullable: bool, required: bool
) -> tuple[Choice, ...]:
    if "const" in schema:
        options = [schema["const"]]
    else:
        options = schema["enum"] if isinstance(schema.get("enum"), list) else [True, False]
    if nullable:
        options = [*options, None]
    trees = [_as_tree(option) for option in options]
    choices = [Choice(value=json_text.dump(tree), label=_label(tree)) for tree in trees]
    if value is not ABSENT and json_text.dump(value) not in {choice.value for choice in choices}:
        choices.append(Choice(value=json_text.dump(value), label=f"{_label(value)} (as sent, not among the options)"))
    if not required:
        choices.append(Choice(value="", label="(leave it out)"))
    elif value is ABSENT:
        choices.insert(0, Choice(value="", label="(choose)"))
    return tuple(choices)


def _label(tree: JsonTree) -> str:
    return tree if isinstance(tree, str) and tree else json_text.dump(tree)


def _as_tree(value: object) -> JsonTree:
    """Return a schema's own JSON value as a tree with number tokens."""
    parsed = json_text.parse(json.dumps(value))
    return None if parsed is None else parsed.tree
