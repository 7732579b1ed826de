"""From a JSON Schema and a value to the fields of a form, losing nothing. Pure.

Owns names, states, texts and choices of the controls; which control a value gets is told by ``schema_kinds``, which
type of several it has by ``schema_variants``. What no field can hold, what refers to itself, and what would make the
form too large gets a JSON field: that part only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from turngate.domain.text.hidden_text import has_hidden
from turngate.domain.text.json_text import JsonTree, tree_of
from turngate.forms.fields import Field, Group, Row, Rows, Variants
from turngate.forms.schema_controls import Part, Place, common_of, control
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
            part = Part(place=top, schema=read.schema, value=value, fresh=value is ABSENT)
            group = drawing.group(part, map_as_rows=False)
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
            # A value that lacks what it must have stays as it is until somebody fills the field in.
            required = key in members.required and (part.fresh or key in members.present)
            member = members.present.get(key, ABSENT)
            fields.append(self.field(part.place.inside(at, key, required=required), schema, member, fresh=part.fresh))
        return fields

    def _container(self, part: Part) -> Field | None:
        """Return a field that holds others; None where a single control does, or must."""
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
        given: list[tuple[str | None, JsonTree]] = []
        if isinstance(part.value, dict):
            given = list(part.value.items())
        elif isinstance(part.value, list):
            given = [(None, item) for item in part.value]
        blank = self._row(part.place, _BLANK, "" if keyed else None, items, ABSENT, fresh=True)
        rows = tuple(
            self._row(part.place, at, key, items, item, fresh=part.fresh) for at, (key, item) in enumerate(given)
        )
        return Rows(**common_of(part), keyed=keyed, rows=rows, blank=blank, given=len(given))

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
