"""From a JSON Schema and a value to the fields of a form, losing nothing. Pure.

Owns names, states, texts and choices of the controls; ``schema_kinds`` says which control a value gets, which
type of several it has by ``schema_variants``. What no field can hold, what refers to itself, and what would make the
form too large gets a JSON field: that part only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from turngate.domain.text import json_text
from turngate.domain.text.hidden_text import escape_hidden, has_hidden
from turngate.domain.text.json_text import JsonTree, NumberToken, tree_of
from turngate.forms.fields import Choice, Control, Field, Group, Row, Rows, State, Variants
from turngate.forms.schema_kinds import (
    ABSENT,
    INTEGER,
    Absent,
    Kind,
    Schema,
    instant_parts,
    is_empty,
    kind_for,
    merged,
    read_schema,
)

# Which types a value may have, and which of them it has. Pure.
#
# Only what tells types apart is looked at; a value's limits and patterns are checked when it is sent. A pattern is never
# run here: a schema can come from a remote tool server, and one pattern can keep a processor busy for years.


MAX_VARIANTS: Final = 12
_MAX_LOOKS: Final = 2_000
"""Values compared for one answer. More than that, and the value counts as not fitting: it gets a JSON field."""
_WORDS: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "list",
    "object": "object",
}


def variants_of(schema: dict[str, Any], root: Schema) -> list[dict[str, Any]]:
    """Return the schemas a value may have one of, what is beside the choice merged into each; empty: no choice."""
    names = [name for name in ("anyOf", "oneOf") if name in schema]
    if "allOf" in schema or "$ref" in schema or len(names) > 1:
        return []
    return _options_of(names[0], schema, root) if names else _types_of(schema)


def _types_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a schema of several types as one schema each."""
    kinds = schema.get("type")
    if not isinstance(kinds, list) or not 1 < len(kinds) <= MAX_VARIANTS or {"enum", "const"} & schema.keys():
        return []
    return [{**schema, "type": kind} for kind in kinds]


def _options_of(name: str, schema: dict[str, Any], root: Schema) -> list[dict[str, Any]]:
    options = schema[name]
    if not isinstance(options, list) or not 1 <= len(options) <= MAX_VARIANTS:
        return []
    outer = {key: value for key, value in schema.items() if key not in {name, "description", "title", "default"}}
    variants = []
    for option in options:
        if not isinstance(option, Mapping):
            return []
        read = read_schema(option, root)
        # Read again when it is drawn, for its nulls and references; here it must only be valid by itself.
        variants.append(merged(outer, option if read.nullable or read.refs else read.schema))
    return variants


def label_of(variant: Mapping[str, Any], root: Schema) -> str:
    """Return what a person calls this type of value: its title, the constant that marks it, or its type."""
    schema = read_schema(variant, root).schema
    title = variant.get("title") or schema.get("title")
    if isinstance(title, str):
        return title
    if "const" in schema:
        return json_text.dump(tree_of(schema["const"]))
    kind = schema.get("type")
    return _WORDS.get(kind, "anything") if isinstance(kind, str) else "anything"


def chosen_of(variants: list[dict[str, Any]], value: JsonTree, root: Schema) -> int | None:
    """Return the first variant that the value has; better one that knows all its members. None: it has none of them."""
    for closed in (True, False):
        for place, variant in enumerate(variants):
            if _Fit(root, closed=closed).fits(variant, value):
                return place
    return None


class _Fit:
    """Compares one value with one schema. ``closed``: an object may have no members that its schema does not name."""

    def __init__(self, root: Schema, *, closed: bool) -> None:
        self._root = root
        self._closed = closed
        self._looks = 0

    def fits(self, schema: object, value: JsonTree) -> bool:
        """Tell whether the value fits. One that a schema without end takes too long, or too deep, to compare does not."""
        try:
            return self._fits(schema, value)
        except RecursionError:
            return False

    def _fits(self, schema: object, value: JsonTree) -> bool:
        self._looks += 1
        if self._looks > _MAX_LOOKS or schema is False:
            return False
        read = read_schema(schema, self._root)
        inner = read.schema
        if value is None and read.nullable:
            return True
        if not self._fits_options(inner, value) or not _is_constant(inner, value) or not _is_typed(inner, value):
            return False
        if isinstance(value, dict):
            return self._fits_object(inner, value)
        if isinstance(value, list) and inner.get("items") is not None:
            return all(self._fits(inner["items"], item) for item in value)
        return True

    def _fits_options(self, schema: dict[str, Any], value: JsonTree) -> bool:
        for options in (schema.get("anyOf"), schema.get("oneOf")):
            if not isinstance(options, list):
                continue
            for option in options:
                if self._fits(option, value):
                    break
            else:
                return False
        return True

    def _fits_object(self, schema: dict[str, Any], value: dict[str, JsonTree]) -> bool:
        properties = schema.get("properties")
        known = properties if isinstance(properties, dict) else {}
        others = schema.get("additionalProperties", not (self._closed and known))
        required = schema.get("required")
        if isinstance(required, list) and any(key not in value for key in required):
            return False
        return all(self._fits(known.get(key, others), member) for key, member in value.items())


def _is_constant(schema: dict[str, Any], value: JsonTree) -> bool:
    """Tell whether the value is the schema's constant, and among its options, where it has any."""
    if "const" in schema and json_text.dump(tree_of(schema["const"])) != json_text.dump(value):
        return False
    options = schema.get("enum")
    if not isinstance(options, list):
        return True
    return json_text.dump(value) in {json_text.dump(tree_of(option)) for option in options}


def _is_typed(schema: dict[str, Any], value: JsonTree) -> bool:
    kinds = schema.get("type")
    if kinds is None:
        return True
    return any(_is_a(kind, value) for kind in (kinds if isinstance(kinds, list) else [kinds]))


def _is_a(kind: object, value: JsonTree) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, NumberToken) and INTEGER.fullmatch(value.text) is not None
        case "number":
            return isinstance(value, NumberToken)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return kind == "null" and value is None


# One control of a form: its content, what may be picked, and what every field has. Pure.


_ESCAPED: Final = "Shown as a JSON string, because it holds characters that a plain field would hide or change."
_OTHER_TYPE: Final = "Shown as JSON, because it is of none of the types that the schema names."


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a field is: its name and key, and what lies above it (``depth`` fields, the references followed)."""

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
        # Null and "leave it out" are among the options.
        common |= {"state": "value", "states": ("value",)}
        return Control(**common, kind=kind, text=_choice_text(part), choices=_choices_for(part))
    if kind == "json" and isinstance(value, str):
        common["note"] = _ESCAPED
    elif kind == "json" and value is not ABSENT and {"anyOf", "oneOf"} & schema.keys():
        common["note"] = _OTHER_TYPE
    text, zone = "" if part.is_empty else _text_for(kind, value), ""
    if kind == "instant":
        text, zone = instant_parts(text) or ("", "Z")
    hint = schema.get("format")
    return Control(**common, kind=kind, item=item, text=text, format=hint if isinstance(hint, str) else "", zone=zone)


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
    if len(options) > MAX_CHOICES:
        raise _TooLargeError
    if part.nullable:
        options = [*options, None]
    texts = dict.fromkeys(json_text.dump(tree_of(option)) for option in options)
    choices = [Choice(value=text, label=_label(text)) for text in texts]
    if value is not ABSENT and json_text.dump(value) not in texts:
        text = json_text.dump(value)
        choices.append(Choice(value=text, label=f"{_label(text)} (as sent, not among the options)"))
    if not part.place.required:
        choices.append(Choice(value="", label="(leave it out)"))
    elif value is ABSENT:
        choices.insert(0, Choice(value="", label="(choose)"))
    return tuple(choices)


def _label(text: str) -> str:
    """Return a choice's JSON text for people: a string without its quotes, unless it could be taken for something else."""
    parsed = json_text.parse(text)
    plain = None if parsed is None else parsed.tree
    # A bracket could make it read like one of our own words, such as "(leave it out)".
    if isinstance(plain, str) and plain.strip() and "(" not in plain and json_text.parse(plain) is None:
        return plain
    return text


MAX_FIELDS: Final = 400
MAX_CHOICES: Final = 1_000
MAX_ROWS: Final = 50
MAX_DEPTH: Final = 6
_BLANK: Final = "new"
_NOT_KNOWN: Final = {"description": "Not in the tool's schema."}


def form_of(schema: Schema, value: JsonTree | Absent = ABSENT, *, prefix: str = "field") -> Field | None:
    """Return the form: members in the schema's order, then what the value has besides. None: too large for a form.

    ``value``: what the fields hold at first; ABSENT starts from the schema's defaults. A schema that is not of an
    object, or a value that is not one, gives one field whose ``key`` is None. ``prefix``: of the controls' names, so
    that several forms of one page never share a name.
    """
    drawing = _Fields(schema)
    read = read_schema(schema, schema)
    try:
        if (value is ABSENT or isinstance(value, dict)) and not read.nullable and not variants_of(read.schema, schema):
            top = Place(name=prefix, refs=read.refs)
            part = Part(place=top, schema=read.schema, value=value, fresh=value is ABSENT)
            group = drawing.group(part, map_as_rows=False)
            if group is not None:
                return group
        return drawing.field(Place(name=f"{prefix}-0"), schema, value, fresh=value is ABSENT)
    except _TooLargeError:
        return None


class _TooLargeError(Exception):
    """The form has more fields than a person can look through; never leaves this module."""


class _Fields:
    """One form in the making. ``fresh``: there is no value yet, so that defaults fill the fields."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_FIELDS

    def field(self, place: Place, schema: object, value: JsonTree | Absent, *, fresh: bool) -> Field:
        """Return the field of one value."""
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        read = read_schema(schema, self._root)
        if fresh and value is ABSENT and "default" in read.schema:
            value = tree_of(read.schema["default"])
        part = Part(place=place, schema=read.schema, value=value, nullable=read.nullable, fresh=fresh)
        left = self._left
        if place.depth < MAX_DEPTH and not read.refs & place.refs:
            inner = replace(place, refs=place.refs | read.refs)
            try:
                container = self._container(replace(part, place=inner))
            except _TooLargeError:
                self._left, container = left, None
            if container is not None:
                return container
        return control(part)

    def group(self, part: Part, *, map_as_rows: bool = True) -> Field | None:
        """Return the field of an object; None where its schema names no members and allows no typed ones.

        ``map_as_rows``: an object of free members only is :class:`Rows`, not a group of nothing but rows.
        """
        place = part.place
        members = _Members.of(part)
        if members is None:
            return None
        is_whole_form = place.depth == 0 and place.key is None
        if not members.named and members.free is None and not (members.others and is_whole_form):
            return None
        part = replace(part, fresh=part.fresh or not isinstance(part.value, dict))
        if members.free is not None and not members.named and map_as_rows:
            return self._rows(replace(part, schema={}), members.free, keyed=True)
        fields = self._named(part, members)
        more = None
        if members.free is not None:
            at_more = replace(place, name=f"{place.name}-more", key=None, required=True)
            more = self._rows(Part(place=at_more, schema={}, value=members.others), members.free, keyed=True)
        else:
            for at, (key, member) in enumerate(members.others.items(), len(fields)):
                fields.append(self.field(place.inside(at, key, required=False), _NOT_KNOWN, member, fresh=False))
        return Group(**common_of(part), fields=tuple(fields), more=more, order=tuple(members.present))

    def _named(self, part: Part, members: _Members) -> list[Field]:
        """Return the fields of the members that the schema names, in its order."""
        fields = []
        for at, (key, schema) in enumerate(members.named.items()):
            # A value that lacks what it must have stays as it is until someone fills the field in.
            required = key in members.required and (part.fresh or key in members.present)
            member = members.present.get(key, ABSENT)
            fields.append(self.field(part.place.inside(at, key, required=required), schema, member, fresh=part.fresh))
        return fields

    def _container(self, part: Part) -> Field | None:
        """Return a field that holds others; None where a single control does, or must."""
        if kind_for(part.schema, part.value, nullable=part.nullable)[0] == "decimal":
            return None
        if variants := variants_of(part.schema, self._root):
            return self._variants(part, variants)
        if {"enum", "const", "anyOf", "oneOf", "allOf", "$ref"} & part.schema.keys():
            return None
        is_list = part.schema.get("type") == "array"
        if isinstance(part.value, dict) or (part.is_empty and not is_list):
            return self.group(part)
        return self._list(part) if is_list else None

    def _list(self, part: Part) -> Field | None:
        """Return the rows of a list; None where its items are of no one type, or fit into a single control."""
        items = part.schema.get("items")
        if not isinstance(items, dict) or not items or "prefixItems" in part.schema:
            return None
        if not part.is_empty and (not isinstance(part.value, list) or len(part.value) > MAX_ROWS):
            return None
        if kind_for(part.schema, part.value, nullable=part.nullable)[0] == "lines":
            return None
        return self._rows(part, items, keyed=False)

    def _variants(self, part: Part, variants: list[dict[str, Any]]) -> Field | None:
        chosen = None
        if not part.is_empty:
            chosen = chosen_of(variants, part.value, self._root)
            if chosen is None:
                return None
        options = []
        for at, variant in enumerate(variants):
            value = part.value if at == chosen else ABSENT
            options.append(self.field(part.place.inside(at), variant, value, fresh=part.fresh or at != chosen))
        labels = [label_of(variant, self._root) for variant in variants]
        numbered = [f"{label} ({at + 1})" if labels.count(label) > 1 else label for at, label in enumerate(labels)]
        return Variants(**common_of(part), options=tuple(options), labels=tuple(numbered), chosen=chosen)

    def _rows(self, part: Part, items: object, *, keyed: bool) -> Rows:
        pairs: list[tuple[str | None, JsonTree]] = []
        if isinstance(part.value, dict):
            pairs = list(part.value.items())
        elif isinstance(part.value, list):
            pairs = [(None, item) for item in part.value]
        blank = self._row(part.place, _BLANK, "" if keyed else None, items, ABSENT, fresh=True)
        rows = tuple(
            self._row(part.place, at, key, items, item, fresh=part.fresh) for at, (key, item) in enumerate(pairs)
        )
        return Rows(**common_of(part), keyed=keyed, rows=rows, blank=blank, original_count=len(pairs))

    def _row(
        self, place: Place, row_id: int | str, key: str | None, items: object, item: JsonTree | Absent, *, fresh: bool
    ) -> Row:
        inner = place.inside(row_id)
        field = self.field(inner, items, item, fresh=fresh)
        return Row(id=row_id if isinstance(row_id, int) else -1, name=inner.name, key_text=key, field=field)


@dataclass(frozen=True, kw_only=True)
class _Members:
    """What an object is made of. ``named``: by its schema, which says of ``required`` that they must be there.

    ``present``: what the value has; ``others``: those that the schema does not name. ``free``: the schema of members that may
    be added under any name; None: none may, or the value's cannot be rows.
    """

    named: dict[str, Any]
    required: Collection[object]
    present: dict[str, JsonTree]
    others: dict[str, JsonTree]
    free: dict[str, Any] | None

    @staticmethod
    def of(part: Part) -> _Members | None:
        """Return the members of an object; None: the schema is of something else."""
        schema = part.schema
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        if schema.get("type") != "object" and not (named and "type" not in schema):
            return None
        required = schema.get("required")
        present = part.value if isinstance(part.value, dict) else {}
        others = {key: member for key, member in present.items() if key not in named}
        return _Members(
            named=named,
            required=required if isinstance(required, list) else [],
            present=present,
            others=others,
            free=_free_members(schema, others),
        )


def _free_members(schema: dict[str, Any], others: Collection[str]) -> dict[str, Any] | None:
    free = schema.get("additionalProperties")
    if not isinstance(free, dict) or not free or "patternProperties" in schema:
        return None
    if len(others) > MAX_ROWS or any("\n" in key or has_hidden(key) for key in others):
        return None
    return free
