"""From a submitted form back to JSON, and what to show when it does not fit: nothing typed is ever lost.

Pure. The fields come from :mod:`approvals_api.pages.schema_fields`, made again from the same schema and value as when
the form was shown, so the form itself carries no types that somebody could change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from approvals_api.pages import json_text
from approvals_api.pages.json_text import JsonTree, NumberToken
from approvals_api.pages.schema_fields import Field
from approvals_api.pages.schema_kinds import ABSENT, INTEGER, NUMBER, Scalar

LEFT_OVER = "You typed something here, but the choice beside it says to send none. Clear the field or choose “a value”."
DID_NOT_ARRIVE = "This field did not arrive. Load the page again and repeat the edit."


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a form said. ``args``: raw JSON text, None when ``errors`` (control name → message) is not empty."""

    args: str | None
    errors: Mapping[str, str] = field(default_factory=dict)


class _Misfit(Exception):  # noqa: N818 - a message for one control, never leaves this module
    """What was typed is not a value of the field's type."""


def read(fields: Sequence[Field], typed: Mapping[str, str], *, original: str = "") -> Reading:
    """Return the JSON that was typed.

    ``original``: the raw text the form was filled from. Properties keep its order, and when no value differs from it
    the very same text comes back.
    """
    values: dict[str | None, JsonTree] = {}
    errors: dict[str, str] = {}
    for each in fields:
        try:
            value = _value(each, typed)
        except _Misfit as misfit:
            errors[each.name] = str(misfit)
        else:
            if value is not ABSENT:
                values[each.key] = value
    if errors:
        return Reading(args=None, errors=errors)
    parsed = json_text.parse(original)
    if None in values:
        tree: JsonTree = values[None]
    else:
        order = list(parsed.tree) if parsed is not None and isinstance(parsed.tree, dict) else []
        tree = {key: values[key] for key in [*order, *values] if key in values}
    # Compared as text, because in Python True equals 1; a text with doubled keys is never "the same".
    if parsed is not None and not parsed.doubled and json_text.dump(parsed.tree) == json_text.dump(tree):
        return Reading(args=original)
    return Reading(args=json_text.dump(tree))


def _value(field_: Field, typed: Mapping[str, str]) -> JsonTree:
    if field_.name not in typed:
        raise _Misfit(DID_NOT_ARRIVE)
    text = typed[field_.name].replace("\r\n", "\n")
    state = typed.get(field_.state_name, field_.states[0]) if len(field_.states) > 1 else field_.states[0]
    if state not in field_.states:
        raise _Misfit(DID_NOT_ARRIVE)
    if state != "value":
        if text.strip():
            raise _Misfit(LEFT_OVER)
        return None if state == "null" else ABSENT
    match field_.kind:
        case "line" | "text":
            return text
        case "integer" | "number":
            return _scalar(field_.item, text.strip())
        case "choice":
            return _chosen(field_, text)
        case "lines":
            return [_scalar(field_.item, line) for line in text.split("\n") if line]
        case "json":
            return _json(text)


def _chosen(field_: Field, text: str) -> JsonTree:
    if text not in {choice.value for choice in field_.choices}:
        raise _Misfit("Choose one of the options.")
    if text:
        return _json(text)
    if field_.required:
        raise _Misfit("Choose one of the options.")
    return ABSENT


def _scalar(item: Scalar, text: str) -> JsonTree:
    match item:
        case "string":
            return text
        case "integer":
            if INTEGER.fullmatch(text.strip()):
                return NumberToken(text.strip())
            raise _Misfit(f"Type a whole number, such as 3; “{text}” is none.")
        case "number":
            if NUMBER.fullmatch(text.strip()):
                return NumberToken(text.strip())
            raise _Misfit(f"Type a number, such as 2.5; “{text}” is none.")
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


def place_errors(fields: Sequence[Field], errors: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[str]]:
    """Put ``{pointer, message}`` complaints beside the field each is about; returns (by control name, the rest)."""
    beside: dict[str, str] = {}
    rest: list[str] = []
    for error in errors:
        pointer, message = error.get("pointer", ""), error.get("message", "")
        owner = next((each for each in fields if _is_about(pointer, each)), None)
        if owner is None:
            rest.append(f"{pointer}: {message}" if pointer else message)
        else:
            inner = pointer.removeprefix(owner.pointer)
            said = f"{inner}: {message}" if inner else message
            beside[owner.name] = f"{beside[owner.name]} {said}" if owner.name in beside else said
    return beside, rest


def _is_about(pointer: str, field_: Field) -> bool:
    if field_.key is None:
        return True
    return pointer == field_.pointer or pointer.startswith(field_.pointer + "/")
