"""The fields of a form made from a JSON Schema: what each holds and how they nest. Plain values, no schema in them.

======== ===================================================== ==============================================
class    stands for                                            its controls, beside ``NAME-state``
======== ===================================================== ==============================================
Control  one value in one control                              ``NAME``
Group    an object: its members, and free ones after them      those of its fields
Rows     a list, or the free members of an object              ``NAME-rows``; ``NAME-ID-key`` where they have names
Variants one of several types of value                         ``NAME-variant``; those of every option
======== ===================================================== ==============================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from turngate.forms.schema_kinds import Kind, Scalar

State = Literal["value", "null", "absent"]

_FORMATS = {
    "date": "date, as 2026-01-31",
    "date-time": "date and time, as 2026-01-31T09:30:00Z",
    "time": "time, as 09:30:00Z",
    "duration": "duration, as PT1H30M",
    "email": "e-mail address",
    "uri": "address, as https://example.com",
    "uuid": "UUID",
}
"""What a person types for a string of this format. A value that a browser's own field would change has a plain one."""
_ZONES = {"": "without a zone", "Z": "in UTC"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One option of a choice. ``value``: JSON text, empty for "leave it out"; ``label``: what the person reads."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class _Field:
    """What all fields have.

    ``name``: of the control, or the prefix of its controls' names. ``key``: the member it stands for, None for a row, an
    option, or the whole form. ``states``: what the person may pick between; one entry needs no picking.
    """

    name: str
    key: str | None = None
    required: bool = True
    state: State = "value"
    states: tuple[State, ...] = ("value",)
    description: str = ""
    note: str = ""

    @property
    def state_name(self) -> str:
        """Name of the control that says value, null or left out."""
        return f"{self.name}-state"


@dataclass(frozen=True, kw_only=True)
class Control(_Field):
    """One control. ``text``: what it holds; for a choice the JSON text of the chosen option.

    ``item``: of each line, or how a decimal is sent. ``zone``: of an instant, as it follows the text; empty: it has none.
    """

    kind: Kind
    text: str
    item: Scalar = "string"
    choices: tuple[Choice, ...] = ()
    format: str = ""
    zone: str = ""

    @property
    def hint(self) -> str:
        """How to fill the field in; empty when it goes without saying."""
        if self.kind == "json":
            return "JSON"
        if self.kind == "decimal":
            return "decimal number, as 12.50"
        if self.kind == "instant":
            return f"date and time {_ZONES.get(self.zone, f'in UTC{self.zone}')}, as 2026-01-31T09:30:00"
        if self.kind == "lines":
            return f"{self.item}s, one per line" if self.item != "string" else "one per line, no quotes"
        return self.item if self.kind in {"integer", "number"} else _FORMATS.get(self.format, "")


@dataclass(frozen=True, kw_only=True)
class Group(_Field):
    """An object. ``more``: its members besides the fields; None: none may be added. ``order``: of the keys as given."""

    kind: Literal["group"] = "group"
    fields: tuple[Field, ...]
    more: Rows | None = None
    order: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. ``id``: stays while rows come and go. ``key_text``: the member's name at first; None in a list."""

    id: int
    name: str
    key_text: str | None
    field: Field

    @property
    def key_name(self) -> str:
        """Name of the control that holds the member's name."""
        return f"{self.name}-key"


@dataclass(frozen=True, kw_only=True)
class Rows(_Field):
    """A list (``keyed`` False) or a map. ``blank``: a new row. ``original_count``: how many the value brought, their ids from 0.

    ``addable``: there is room for one more.
    """

    kind: Literal["rows"] = "rows"
    keyed: bool
    rows: tuple[Row, ...]
    blank: Row
    original_count: int
    addable: bool = True

    @property
    def rows_name(self) -> str:
        """Name of the hidden control that says which rows there are, in order: ``0 1 7``."""
        return f"{self.name}-rows"

    def new(self, row_id: int) -> Row:
        """Return an empty row of this id."""
        name = f"{self.name}-{row_id}"
        return replace(self.blank, id=row_id, name=name, field=_renamed(self.blank.field, self.blank.name, name))


@dataclass(frozen=True, kw_only=True)
class Variants(_Field):
    """One of several types of value. ``chosen``: the option that the value has; None: nothing is chosen yet."""

    kind: Literal["variants"] = "variants"
    options: tuple[Field, ...]
    labels: tuple[str, ...]
    chosen: int | None

    @property
    def variant_name(self) -> str:
        """Name of the radio buttons that say which option counts."""
        return f"{self.name}-variant"


Field = Control | Group | Rows | Variants


def inside(field: Field) -> Iterator[Field]:
    """Yield the fields directly inside a field, those of options that are not chosen, too."""
    match field:
        case Group():
            yield from field.fields
            if field.more is not None:
                yield field.more
        case Rows():
            yield from (row.field for row in field.rows)
        case Variants():
            yield from field.options


def every(field: Field) -> Iterator[Field]:
    """Yield a field and all fields inside it, from the top down."""
    yield field
    for each in inside(field):
        yield from every(each)


def drawn_texts(form: Field) -> dict[str, str]:
    """Return what each control of a form holds when it is drawn, by its name."""
    return dict(_texts(form))


def _texts(form: Field) -> Iterator[tuple[str, str]]:
    if len(form.states) > 1:
        yield form.state_name, form.state
    match form:
        case Control():
            yield form.name, form.text
        case Rows():
            yield form.rows_name, " ".join(str(row.id) for row in form.rows)
            for row in form.rows:
                if row.key_text is not None:
                    yield row.key_name, row.key_text
        case Variants():
            yield form.variant_name, "" if form.chosen is None else str(form.chosen)
        case Group():
            pass
    for each in inside(form):
        yield from _texts(each)


def _renamed(field: Field, old: str, new: str) -> Field:
    """Return the field with another prefix of its controls' names."""
    name = new + field.name.removeprefix(old)
    match field:
        case Control():
            return replace(field, name=name)
        case Group(more=more):
            renamed_more = None if more is None else _renamed_rows(more, old, new)
            return replace(
                field, name=name, fields=tuple(_renamed(each, old, new) for each in field.fields), more=renamed_more
            )
        case Rows():
            return _renamed_rows(field, old, new)
        case Variants():
            return replace(field, name=name, options=tuple(_renamed(each, old, new) for each in field.options))


def _renamed_rows(rows: Rows, old: str, new: str) -> Rows:
    def row(each: Row) -> Row:
        return replace(each, name=new + each.name.removeprefix(old), field=_renamed(each.field, old, new))

    return replace(rows, name=new + rows.name.removeprefix(old), rows=tuple(map(row, rows.rows)), blank=row(rows.blank))
