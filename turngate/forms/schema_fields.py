"""From a JSON Schema and a value to the fields of a form, losing nothing. Pure.

Owns names, states, texts and choices of the controls; which control a value gets is told by ``schema_kinds``, which
type of several it has by ``schema_variants``. What no field can hold, what refers to itself, and what would make the
form too large gets a JSON field: that part only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.text.json_text import JsonTree, tree_of
from turngate.forms.fields import Field, Group, Row, Rows, Variants
from turngate.forms.schema_controls import Place, control, stated
from turngate.forms.schema_kinds import ABSENT, Absent, Schema, kind_for, read_schema
from turngate.forms.schema_variants import chosen_of, label_of, variants_of

MAX_FIELDS: Final = 400
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
    drawing = _Drawing(schema)
    read = read_schema(schema, schema)
    try:
        if (value is ABSENT or isinstance(value, dict)) and not read.nullable and not variants_of(read.schema, schema):
            top = Place(name=prefix, refs=read.refs)
            group = drawing.group(top, read.schema, value, fresh=value is ABSENT, map_as_rows=False)
            if group is not None:
                return group
        return drawing.field(Place(name=f"{prefix}-0"), schema, value, fresh=value is ABSENT)
    except _TooLargeError:
        return None


class _TooLargeError(Exception):
    """The form has more fields than a person can look through; never leaves this module."""


class _Drawing:
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
        left = self._left
        if place.depth < MAX_DEPTH and not read.refs & place.refs:
            inner = replace(place, refs=place.refs | read.refs)
            try:
                found = self._container(inner, read.schema, value, nullable=read.nullable, fresh=fresh)
            except _TooLargeError:
                self._left, found = left, None
            if found is not None:
                return found
        return control(place, read.schema, value, nullable=read.nullable)

    def group(
        self,
        place: Place,
        schema: dict[str, Any],
        value: JsonTree | Absent,
        *,
        fresh: bool,
        nullable: bool = False,
        map_as_rows: bool = True,
    ) -> Field | None:
        """Return the field of an object; None where its schema names no members and allows no typed ones.

        ``map_as_rows``: an object of free members only is :class:`Rows`, not a group of nothing but rows.
        """
        given = schema.get("properties")
        properties: dict[str, Any] = given if isinstance(given, dict) else {}
        free = schema.get("additionalProperties")
        if schema.get("type") != "object" and not (properties and "type" not in schema):
            return None
        members: dict[str, JsonTree] = value if isinstance(value, dict) else {}
        others = {key: member for key, member in members.items() if key not in properties}
        keyed = isinstance(free, dict) and bool(free) and "patternProperties" not in schema
        keyed = keyed and len(others) <= MAX_ROWS and not any("\n" in key or has_hidden(key) for key in others)
        if not properties and not keyed and not (others and place.depth == 0 and place.key is None):
            return None
        fresh = fresh or not isinstance(value, dict)
        if keyed and not properties and map_as_rows:
            return self._rows(place, free, value, fresh=fresh, keyed=True, nullable=nullable)
        required = schema.get("required")
        required = required if isinstance(required, list) else []
        # A value that lacks what it must have stays as it is until somebody fills the field in.
        fields = [
            self.field(
                place.inside(at, key, required=key in required and (fresh or key in members)),
                subschema,
                members.get(key, ABSENT),
                fresh=fresh,
            )
            for at, (key, subschema) in enumerate(properties.items())
        ]
        more = None
        if keyed:
            at_more = replace(place, name=f"{place.name}-more", key=None, required=True)
            more = self._rows(at_more, free, others, fresh=False, keyed=True, nullable=False)
        else:
            for at, (key, member) in enumerate(others.items(), len(fields)):
                fields.append(self.field(place.inside(at, key, required=False), _NOT_KNOWN, member, fresh=False))
        return Group(
            **stated(place, schema, value, nullable=nullable), fields=tuple(fields), more=more, order=tuple(members)
        )

    def _container(
        self, place: Place, schema: dict[str, Any], value: JsonTree | Absent, *, nullable: bool, fresh: bool
    ) -> Field | None:
        """Return a field that holds others; None where a single control does, or must."""
        empty = value is ABSENT or (value is None and nullable)
        if variants := variants_of(schema, self._root):
            return self._variants(place, schema, variants, value, nullable=nullable, fresh=fresh)
        if {"enum", "const", "anyOf", "oneOf", "allOf", "$ref"} & schema.keys():
            return None
        if isinstance(value, dict) or (empty and schema.get("type") != "array"):
            return self.group(place, schema, value, fresh=fresh, nullable=nullable)
        items = schema.get("items")
        if schema.get("type") != "array" or not isinstance(items, dict) or not items or "prefixItems" in schema:
            return None
        if not empty and (not isinstance(value, list) or len(value) > MAX_ROWS):
            return None
        if kind_for(schema, value, nullable=nullable)[0] == "lines":
            return None
        return self._rows(place, items, value, fresh=fresh, keyed=False, nullable=nullable, about=schema)

    def _variants(
        self,
        place: Place,
        schema: dict[str, Any],
        variants: list[dict[str, Any]],
        value: JsonTree | Absent,
        *,
        nullable: bool,
        fresh: bool,
    ) -> Field | None:
        empty = value is ABSENT or (value is None and nullable)
        chosen = None if empty else chosen_of(variants, value, self._root)
        if chosen is None and not empty:
            return None
        options = tuple(
            self.field(
                place.inside(at),
                variant,
                value if at == chosen else ABSENT,
                fresh=fresh or at != chosen,
            )
            for at, variant in enumerate(variants)
        )
        labels = [label_of(variant, self._root) for variant in variants]
        numbered = [f"{label} ({at + 1})" if labels.count(label) > 1 else label for at, label in enumerate(labels)]
        return Variants(
            **stated(place, schema, value, nullable=nullable), options=options, labels=tuple(numbered), chosen=chosen
        )

    def _rows(
        self,
        place: Place,
        items: object,
        value: JsonTree | Absent,
        *,
        fresh: bool,
        keyed: bool,
        nullable: bool,
        about: dict[str, Any] | None = None,
    ) -> Rows:
        given: list[tuple[str | None, JsonTree]] = []
        if isinstance(value, dict):
            given = list(value.items())
        elif isinstance(value, list):
            given = [(None, item) for item in value]
        blank = self._row(place, _BLANK, "" if keyed else None, items, ABSENT, fresh=True)
        rows = tuple(self._row(place, at, key, items, item, fresh=fresh) for at, (key, item) in enumerate(given))
        return Rows(
            **stated(place, about or {}, value, nullable=nullable),
            keyed=keyed,
            rows=rows,
            blank=blank,
            given=len(given),
        )

    def _row(
        self, place: Place, row_id: int | str, key: str | None, items: object, item: JsonTree | Absent, *, fresh: bool
    ) -> Row:
        inner = place.inside(row_id)
        field = self.field(inner, items, item, fresh=fresh)
        return Row(id=row_id if isinstance(row_id, int) else -1, name=inner.name, key_text=key, field=field)
