"""From a JSON Schema and a value to the fields of a form, losing nothing.

Pure. Owns which property gets which kind of control. What a plain control cannot hold without loss (nested values,
carriage returns, characters nobody can see, values of another type than the schema's) becomes a JSON field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from approvals_api.pages import json_text
from approvals_api.pages.json_text import JsonTree, NumberToken
from approvals_api.pages.visible import escape_hidden, has_hidden

Scalar = Literal["string", "integer", "number", "boolean"]
Kind = Literal["line", "text", "integer", "number", "choice", "lines", "json"]
State = Literal["value", "null", "absent"]
Schema = Mapping[str, Any]

INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LONG_LINE: Final = 80
_MAX_REFS: Final = 16


class _Absent:
    """The type of :data:`ABSENT`."""


ABSENT: Final = _Absent()
"""A property that is not there; ``null`` is a value of its own."""


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


def fields_of(schema: Schema, value: JsonTree | _Absent = ABSENT, *, prefix: str = "field") -> tuple[Field, ...]:
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
        given: JsonTree | _Absent = members.get(key, ABSENT)
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


def resolve(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return the schema with its local ``$ref`` and single ``allOf`` folded in; others are left as they are.

    Nothing is ever fetched: a reference that does not begin with ``#/`` stays unresolved and gives a JSON field.
    """
    folded = dict(schema)
    for _round in range(_MAX_REFS):
        inner: object = None
        if isinstance(reference := folded.get("$ref"), str):
            inner = _at(root, reference)
            folded.pop("$ref")
        elif isinstance(parts := folded.get("allOf"), list) and len(parts) == 1:
            inner = parts[0]
            folded.pop("allOf")
        else:
            return folded
        folded = {**(inner if isinstance(inner, dict) else {}), **folded}
    return {}


def _field(name: str, key: str | None, schema: dict[str, Any], value: JsonTree | _Absent, *, required: bool) -> Field:
    inner, nullable = _without_null(schema)
    kind, item = _kind_for(inner, value, nullable=nullable)
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


def _without_null(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema of the value that is not null, and whether null is allowed besides."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        rest = [kind for kind in kinds if kind != "null"]
        return {**schema, "type": rest[0] if len(rest) == 1 else rest}, True
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list) and {"type": "null"} in options:
        rest_options = [option for option in options if option != {"type": "null"}]
        if len(rest_options) == 1 and isinstance(rest_options[0], dict):
            outer = {name: value for name, value in schema.items() if name not in {"anyOf", "oneOf"}}
            return {**rest_options[0], **outer}, True
    if isinstance(schema.get("enum"), list) and None in schema["enum"]:
        return {**schema, "enum": [option for option in schema["enum"] if option is not None]}, True
    return schema, False


def _kind_for(schema: dict[str, Any], value: JsonTree | _Absent, *, nullable: bool) -> tuple[Kind, Scalar]:
    """Return the control that holds this value without loss, and the scalar type in it."""
    if "$ref" in schema or "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
        return "json", "string"
    if "const" in schema or isinstance(schema.get("enum"), list) or schema.get("type") == "boolean":
        return "choice", "string"
    empty = value is ABSENT or (value is None and nullable)
    match schema.get("type"):
        case "string" if empty or (isinstance(value, str) and _fits_a_field(value)):
            return ("text" if _is_long(schema, value) else "line"), "string"
        case "integer" if empty or (isinstance(value, NumberToken) and INTEGER.fullmatch(value.text)):
            return "integer", "integer"
        case "number" if empty or isinstance(value, NumberToken):
            return "number", "number"
        case "array":
            item = _item_type(schema)
            if item is not None and (empty or _fits_lines(item, value)):
                return "lines", item
    return "json", "string"


def _fits_a_field(text: str) -> bool:
    # A browser turns every line end it sends into CRLF, so a lone CR could not come back as it was.
    return not has_hidden(text)


def _is_long(schema: dict[str, Any], value: JsonTree | _Absent) -> bool:
    if isinstance(value, str):
        return "\n" in value or len(value) > LONG_LINE
    return not {"maxLength", "pattern", "format"} & schema.keys()


def _item_type(schema: dict[str, Any]) -> Scalar | None:
    items = schema.get("items")
    if (
        not isinstance(items, dict)
        or {"enum", "const", "anyOf", "oneOf", "allOf", "$ref", "prefixItems"} & items.keys()
    ):
        return None
    kind = items.get("type")
    return kind if kind in {"string", "integer", "number", "boolean"} else None


def _fits_lines(item: Scalar, value: JsonTree | _Absent) -> bool:
    if not isinstance(value, list):
        return False
    match item:
        case "string":
            # An empty string would be a blank line, and blank lines are left out.
            return all(isinstance(line, str) and line and "\n" not in line and _fits_a_field(line) for line in value)
        case "integer":
            return all(isinstance(line, NumberToken) and INTEGER.fullmatch(line.text) for line in value)
        case "number":
            return all(isinstance(line, NumberToken) for line in value)
        case "boolean":
            return all(isinstance(line, bool) for line in value)


def _text_for(kind: Kind, value: JsonTree | _Absent, *, nullable: bool) -> str:
    if value is ABSENT or (value is None and nullable):
        return ""
    if kind == "json":
        return escape_hidden(json_text.dump(value, indent=2))
    if isinstance(value, list):
        return "\n".join(line if isinstance(line, str) else json_text.dump(line) for line in value)
    return value.text if isinstance(value, NumberToken) else str(value or "")


def _choice_text(schema: dict[str, Any], value: JsonTree | _Absent, *, required: bool) -> str:
    if value is not ABSENT:
        return json_text.dump(value)
    return json_text.dump(_as_tree(schema["const"])) if required and "const" in schema else ""


def _choices_for(
    schema: dict[str, Any], value: JsonTree | _Absent, *, nullable: bool, required: bool
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


def _at(root: Schema, reference: str) -> object:
    if not reference.startswith("#/"):
        return None
    place: object = root
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        place = place.get(key) if isinstance(place, Mapping) else None
    return place
