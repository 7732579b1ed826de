"""Rows of a form that come and go: which a submitted form has, and what its buttons for rows do. Pure.

Works without JavaScript: a button posts the whole form, and the page comes back with one row more or less. A row keeps
its id, so that a row of the original value is drawn again from that value, whatever is before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from turngate.forms.fields import Control, Field, Group, Rows, Variants, every

ROW_BUTTON: Final = "row"
"""Name of the buttons: ``add NAME``, ``remove NAME ID``."""
ROW_FOCUS: Final = "row-focus"
"""Name under which a changed form says which row, or which button, a person works at."""
MAX_ROWS: Final = 100
MAX_GROWN: Final = 700
"""Fields of a form with its added rows; a form may have three controls a field, and the page takes 2,000 controls."""
_MAX_ID: Final = 9_999


def row_ids(typed: Mapping[str, str], rows: Rows) -> tuple[int, ...] | None:
    """Return the ids of the rows that a form says there are, in order; None when it says nothing that makes sense."""
    words = typed[rows.rows_name].split() if rows.rows_name in typed else None
    if words is None or len(words) > MAX_ROWS or len(set(words)) < len(words):
        return None
    ids = [int(word) for word in words if word.isascii() and word.isdigit() and int(word) <= _MAX_ID]
    return tuple(ids) if len(ids) == len(words) else None


def grown(form: Field, typed: Mapping[str, str]) -> Field:
    """Return the form with the rows that a submitted form says it has. Rows that there is no room for are left out."""
    return _RowBuilder(form, typed).grow(form)


def pressed(form: Field, typed: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return what is typed after a button for rows was pressed; None when none of this form was.

    ``form``: grown by ``typed``.
    """
    button = _button(typed)
    rows = None if button is None else _rows_named(button[0], form)
    if button is None or rows is None:
        return None
    ids, focus = _changed(rows, removed=button[1])
    others = {key: text for key, text in typed.items() if key != ROW_BUTTON}
    state = {rows.state_name: "value"} if len(rows.states) > 1 else {}
    return {**others, **state, rows.rows_name: " ".join(map(str, ids)), ROW_FOCUS: focus}


def _button(typed: Mapping[str, str]) -> tuple[str, int | None] | None:
    """Return the rows whose button was pressed, with the row to remove (None: one is added); None: no button was."""
    match typed.get(ROW_BUTTON, "").split():
        case ["add", name]:
            return name, None
        case ["remove", name, row] if row.isascii() and row.isdigit():
            return name, int(row)
        case _:
            return None


def _rows_named(name: str, form: Field) -> Rows | None:
    return next((each for each in every(form) if isinstance(each, Rows) and each.name == name), None)


def _changed(rows: Rows, *, removed: int | None) -> tuple[list[int], str]:
    """Return the rows' ids after the button, and the name of the row or button that a person works at then."""
    ids = [row.id for row in rows.rows]
    if removed is None and rows.addable:
        new = max([rows.original_count - 1, *ids]) + 1
        return [*ids, new], rows.new(new).name
    return [each for each in ids if each != removed], f"{rows.name}-add"


class _RowBuilder:
    """One form with its rows. Room is counted, because a form that was tampered with may ask for any number of rows."""

    def __init__(self, form: Field, typed: Mapping[str, str]) -> None:
        self._typed = typed
        self._room = MAX_GROWN - sum(1 for _each in every(form))

    def grow(self, field: Field) -> Field:
        match field:
            case Control():
                return field
            case Group(more=more):
                fields = tuple(self.grow(each) for each in field.fields)
                return replace(field, fields=fields, more=None if more is None else self._rows(more))
            case Rows():
                return self._rows(field)
            case Variants():
                return replace(field, options=tuple(self.grow(each) for each in field.options))

    def _rows(self, rows: Rows) -> Rows:
        ids = row_ids(self._typed, rows)
        size = sum(1 for _each in every(rows.blank.field))
        there = {row.id: row for row in rows.rows}
        rows_shown = []
        for row_id in there if ids is None else ids:
            if row_id not in there:
                self._room -= size
                if self._room < 0 or row_id < rows.original_count:
                    continue
            rows_shown.append(there.get(row_id) or rows.new(row_id))
        grown_rows = tuple(replace(row, field=self.grow(row.field)) for row in rows_shown)
        return replace(rows, rows=grown_rows, addable=len(rows_shown) < MAX_ROWS and self._room >= size)
