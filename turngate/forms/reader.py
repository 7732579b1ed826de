"""From a submitted form back to JSON, and what to show when it does not fit: nothing typed is ever lost.

Pure. The fields come from :mod:`turngate.forms.schema_fields`, made again from the same schema and value as when
the form was shown, so the form itself carries no types that someone could change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turngate.domain.text import json_text
from turngate.domain.text.json_text import JsonTree, NumberToken
from turngate.forms.fields import Control, Field, Group, Rows, Variants, every
from turngate.forms.rows import row_ids
from turngate.forms.schema_kinds import ABSENT, DECIMAL, INTEGER, NUMBER, Absent, Scalar, instant_parts, is_date

LEFT_OVER = "You typed something here, but the choice beside it says to send none. Clear the field or choose “a value”."
DID_NOT_ARRIVE = "This field did not arrive. Load the page again and repeat the edit."
CHOOSE = "Choose one of the options."


@dataclass(frozen=True, kw_only=True)
class FormValue:
    """What a form said. ``args``: raw JSON text, None when ``errors`` (control name → message) is not empty."""

    args: str | None
    errors: Mapping[str, str] = field(default_factory=dict)


class _Misfit(Exception):  # noqa: N818 - a message for one control, never leaves this module
    """What was typed is not a value of the field's type."""


def read(form: Field, typed: Mapping[str, str], *, original: str = "") -> FormValue:
    """Return the JSON that was typed into a form (:func:`turngate.forms.rows.grown` by ``typed``).

    ``original``: the raw text the form was filled from. Members keep its order, and when no value differs from it the
    very same text comes back.
    """
    reader = _Reader(typed)
    tree = reader.value(form)
    if reader.errors:
        return FormValue(args=None, errors=reader.errors)
    parsed = json_text.parse(json_text.arguments_text(original))
    # Compared as text, because in Python True equals 1; a text with doubled keys is never "the same".
    if parsed is not None and not parsed.doubled and json_text.dump(parsed.tree) == json_text.dump(tree):
        return FormValue(args=original)
    return FormValue(args=json_text.dump(tree))


class _Reader:
    """Reads one form from the top down; a misfit is noted under its control's name, and reading continues."""

    def __init__(self, typed: Mapping[str, str]) -> None:
        self._typed = typed
        self.errors: dict[str, str] = {}

    def value(self, each: Field) -> JsonTree | Absent:
        """Return what a field says: a value, null, or ABSENT (also when it is an error)."""
        try:
            state = self._state(each)
            if state != "value":
                if self._is_touched(each):
                    raise _Misfit(LEFT_OVER)  # noqa: TRY301 - one way for a field to be wrong
                return None if state == "null" else ABSENT
            match each:
                case Control():
                    return _control_value(each, self._text(each.name))
                case Group():
                    return self._members(each)
                case Rows(keyed=True):
                    return self._named(each, frozenset())
                case Rows():
                    return [self.value(row.field) for row in self._there(each).rows]
                case Variants():
                    return self.value(each.options[self._chosen(each)])
        except _Misfit as misfit:
            self.errors[each.name] = str(misfit)
            return ABSENT

    def _members(self, group: Group) -> dict[str, JsonTree]:
        values: dict[str, JsonTree] = {}
        for each in group.fields:
            value = self.value(each)
            if value is not ABSENT and each.key is not None:
                values[each.key] = value
        if group.more is not None:
            values |= self._named(group.more, frozenset(each.key for each in group.fields if each.key is not None))
        return {key: values[key] for key in [*group.order, *values] if key in values}

    def _named(self, rows: Rows, taken: frozenset[str]) -> dict[str, JsonTree]:
        """Return free members by the names that were typed. ``taken``: names that have a field of their own."""
        values: dict[str, JsonTree] = {}
        for row in self._there(rows).rows:
            value = self.value(row.field)
            try:
                key = self._text(row.key_name)
                if key == "" and row.id >= rows.original_count:
                    raise _Misfit("Type a name, or remove this row.")  # noqa: TRY301 - as above
                if key in values or key in taken:
                    raise _Misfit(f"The name “{key}” is given twice; each may be used once.")  # noqa: TRY301 - as above
                values[key] = value
            except _Misfit as misfit:
                self.errors[row.key_name] = str(misfit)
        return values

    def _there(self, rows: Rows) -> Rows:
        if row_ids(self._typed, rows) != tuple(row.id for row in rows.rows):
            raise _Misfit(DID_NOT_ARRIVE)
        return rows

    def _chosen(self, variants: Variants) -> int:
        picked = self._typed.get(variants.variant_name, "")
        if picked not in {str(at) for at in range(len(variants.options))}:
            raise _Misfit(CHOOSE)
        return int(picked)

    def _state(self, each: Field) -> str:
        if len(each.states) == 1:
            return each.states[0]
        state = self._text(each.state_name)
        if state not in each.states:
            raise _Misfit(DID_NOT_ARRIVE)
        return state

    def _text(self, name: str) -> str:
        if name not in self._typed:
            raise _Misfit(DID_NOT_ARRIVE)
        return self._typed[name].replace("\r\n", "\n")

    def _is_touched(self, top: Field) -> bool:
        """Tell whether something was typed into a field, or into one inside it, that is not to be sent."""
        if isinstance(top, Control):
            return self._text(top.name).strip() != ""
        return any(self._differs(each, top) for each in every(top))

    def _differs(self, each: Field, top: Field) -> bool:
        if each is not top and len(each.states) > 1 and self._typed.get(each.state_name, each.state) != each.state:
            return True
        match each:
            case Control():
                return self._typed.get(each.name, each.text).replace("\r\n", "\n") != each.text
            case Group():
                return False
            case Rows():
                keys = {row.key_name: row.key_text for row in each.rows if row.key_text is not None}
                moved = [row.id for row in each.rows] != list(range(each.original_count))
                return moved or any(self._typed.get(name, key) != key for name, key in keys.items())
            case Variants():
                chosen = "" if each.chosen is None else str(each.chosen)
                return self._typed.get(each.variant_name, chosen) != chosen


def _control_value(each: Control, text: str) -> JsonTree | Absent:
    match each.kind:
        case "line" | "text":
            return text
        case "integer" | "number":
            return _scalar(each.item, text.strip())
        case "decimal":
            return _decimal(each.item, text.strip())
        case "date":
            return _date(text.strip())
        case "instant":
            return _instant(each, text.strip())
        case "choice":
            return _chosen_value(each, text)
        case "lines":
            return [_scalar(each.item, line) for line in text.split("\n") if line]
        case "json":
            return _json(text)


def _decimal(item: Scalar, text: str) -> JsonTree:
    """Return a decimal digit by digit, never as a float: as a text, or as a number where it was one."""
    if (NUMBER if item == "number" else DECIMAL).fullmatch(text) is None:
        raise _Misfit(
            f"“{text}” is not a decimal number. Type one such as 12.50, with a point and without separators, or use raw JSON."
        )
    return NumberToken(text) if item == "number" else text


def _date(text: str) -> str:
    if not is_date(text):
        raise _Misfit(f"“{text}” is not a date. Type one such as 2026-01-31.")
    return text


def _instant(each: Control, text: str) -> str:
    """Return a date and time with its zone. A browser leaves out seconds that are zero; someone may type a zone of their own."""
    whole = f"{text}:00" if len(text) == len("2026-01-31T09:30") else text
    parts = instant_parts(whole)
    if parts is None:
        raise _Misfit(f"“{text}” is not a date and time. Type one such as 2026-01-31T09:30:00.")
    return f"{parts[0]}{parts[1] or each.zone}"


def _chosen_value(each: Control, text: str) -> JsonTree | Absent:
    if text not in {choice.value for choice in each.choices} or (not text and each.required):
        raise _Misfit(CHOOSE)
    return _json(text) if text else ABSENT


def _scalar(item: Scalar, text: str) -> JsonTree:
    match item:
        case "string":
            return text
        case "integer":
            if INTEGER.fullmatch(text.strip()):
                return NumberToken(text.strip())
            raise _Misfit(f"“{text}” is not a whole number. Type one such as 3.")
        case "number":
            if NUMBER.fullmatch(text.strip()):
                return NumberToken(text.strip())
            raise _Misfit(f"“{text}” is not a number. Type one such as 2.5.")
        case "boolean":
            if text.strip() in {"true", "false"}:
                return text.strip() == "true"
            raise _Misfit(f"Type true or false; “{text}” is neither.")


def _json(text: str) -> JsonTree:
    parsed = json_text.parse(text)
    if parsed is None:
        raise _Misfit('This is not JSON. Text goes in quotes: "like this".')
    if parsed.doubled:
        raise _Misfit(f"The key “{parsed.doubled[0]}” is given twice; keep one.")
    return parsed.tree
