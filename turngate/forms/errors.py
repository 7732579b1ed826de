"""Complaints about a value, put beside the field of the form that each is about. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turngate.domain.text.json_pointers import pointer_of, tokens_of
from turngate.forms.fields import Control, Field, Group, Rows, Variants


def place_errors(
    form: Field, errors: Sequence[Mapping[str, str]], typed: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Put ``{pointer, message}`` complaints beside the field each is about; returns (by control name, the rest).

    Pointers are RFC 6901, from the form's own value. ``form``: grown by ``typed``. What is about the form as a whole,
    or about a member that it has no field for, is among the rest.
    """
    beside: dict[str, str] = {}
    rest: list[str] = []
    for error in errors:
        pointer, message = error.get("pointer", ""), error.get("message", "")
        owner, left = _owner(form, tokens_of(pointer), typed)
        if owner is form and isinstance(owner, Group):
            rest.append(f"{pointer}: {message}" if pointer else message)
            continue
        inner = pointer_of(left)
        text = f"{inner}: {message}" if inner else message
        beside[owner.name] = f"{beside[owner.name]} {text}" if owner.name in beside else text
    return beside, rest


def _owner(field: Field, steps: list[str], typed: Mapping[str, str]) -> tuple[Field, list[str]]:
    """Return the innermost field on the way, and the steps that lead on inside its value."""
    match field:
        case Control():
            return field, steps
        case Variants():
            picked = typed.get(field.variant_name, "")
            options = {str(at): option for at, option in enumerate(field.options)}
            # A complaint about the value as a whole is about the choice of its type.
            return _owner(options[picked], steps, typed) if picked in options and steps else (field, steps)
        case Group() | Rows() if steps:
            inner = _child(field, steps[0], typed)
            return (field, steps) if inner is None else _owner(inner, steps[1:], typed)
        case _:
            return field, steps


def _child(field: Group | Rows, step: str, typed: Mapping[str, str]) -> Field | None:
    match field:
        case Group():
            own = next((each for each in field.fields if each.key == step), None)
            return own if own is not None or field.more is None else _child(field.more, step, typed)
        case Rows(keyed=True):
            return next((row.field for row in field.rows if typed.get(row.key_name, row.key_text) == step), None)
        case Rows():
            return field.rows[int(step)].field if step.isdecimal() and int(step) < len(field.rows) else None
