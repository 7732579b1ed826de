"""Forms of a JSON Schema, as the terminal draws them: what was typed into their fields, and what it says.

The one module of this package that uses ``turngate.forms``, as the pages do: a form asks for the same things, keeps the same
types and complains in the same words on both surfaces. Nothing of a terminal is in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from turngate.domain.text import json_text
from turngate.forms.errors import place_errors
from turngate.forms.fields import Choice, Control, Field, Group, Row, Rows, Variants, drawn_texts, every
from turngate.forms.reader import FormValue, read
from turngate.forms.rows import ROW_BUTTON, ROW_FOCUS, grown, pressed
from turngate.forms.schema_fields import form_of
from turngate.forms.schema_kinds import Schema

__all__ = [
    "ROW_FOCUS",
    "Choice",
    "Control",
    "Draft",
    "Field",
    "Group",
    "Row",
    "Rows",
    "Variants",
    "choice_of",
    "every",
    "form_for",
    "form_grown",
    "object_form",
    "path_to",
    "place_errors",
    "press_row",
    "reading_of",
    "text_field",
    "typed_into",
]

Draw = Callable[[str], Field | None]
"""From the JSON text that fields are filled from (empty: none yet) to the form; None: it fits no form."""


@dataclass
class Draft:
    """The content of a form. ``source``: the JSON text that its fields were filled from; empty: none.

    ``typed``: control name → text, of what was touched. ``raw``: the text in the editor of the whole JSON, while that is
    what is shown; None: the fields are.
    """

    source: str = ""
    typed: dict[str, str] = field(default_factory=dict)
    raw: str | None = None

    def copy(self) -> Draft:
        """Return a draft that goes its own way."""
        return replace(self, typed=dict(self.typed))


def form_for(schema: Schema, *, needs_object: bool) -> Draw:
    """Return what draws the forms of a schema. ``needs_object``: without an object to fill it from there is no form."""

    def draw(source: str) -> Field | None:
        parsed = json_text.parse(source) if source else None
        if parsed is None:
            return None if source or needs_object else form_of(schema)
        if parsed.doubled or (needs_object and not isinstance(parsed.tree, dict)):
            return None
        form = form_of(schema, parsed.tree)
        return None if isinstance(form, Group) and not form.fields and form.more is None else form

    return draw


def object_form(*controls: Control) -> Group:
    """Return a form of the program's own with these controls; it says an object of what their keys name."""
    return Group(name="own", fields=tuple(replace(each, name=f"own-{at}") for at, each in enumerate(controls)))


def choice_of(
    key: str, options: Iterable[tuple[str | None, str]], *, description: str = "", chosen: str = ""
) -> Control:
    """Return a choice between texts: value and label each; the value None: the member is left out."""
    choices = tuple(
        Choice(value="" if value is None else json_text.dump(value), label=label) for value, label in options
    )
    text = json_text.dump(chosen) if chosen else choices[0].value
    return Control(
        name=key,
        key=key,
        kind="choice",
        text=text,
        choices=choices,
        required=all(each.value for each in choices),
        description=description,
    )


def form_grown(form: Field, typed: Mapping[str, str]) -> Field:
    """Return the form with the rows that it was given."""
    return grown(form, typed)


def press_row(form: Field, typed: Mapping[str, str], button: str) -> dict[str, str] | None:
    """Return what is typed once a button for rows was pressed: ``add NAME`` or ``remove NAME ID``."""
    changed = pressed(form, {**typed, ROW_BUTTON: button})
    return None if changed is None else dict(changed)


def typed_into(form: Field, typed: Mapping[str, str]) -> dict[str, str]:
    """Return the text of every control: what was typed, else what it holds at first."""
    return {**drawn_texts(form), **typed}


def reading_of(form: Field, draft: Draft) -> FormValue:
    """Return what the fields of a form say. Content of a container that is not to be sent does not count."""
    texts = typed_into(grown(form, draft.typed), draft.typed)
    typed = dict(draft.typed)
    for each in every(grown(form, draft.typed)):
        if not isinstance(each, Control) and texts.get(each.state_name, "value") != "value":
            typed = {name: text for name, text in typed.items() if not name.startswith(f"{each.name}-")}
            typed[each.state_name] = texts[each.state_name]
    whole = grown(form, typed)
    return read(whole, typed_into(whole, typed), original=draft.source)


def text_field(form: Field) -> Control | None:
    """Return the one text that a form asks for, which a suggested answer fills; None where it asks for something else."""
    match form:
        case Group(fields=(Control() as only,), more=None) | (Control() as only) if only.kind in {"line", "text"}:
            return only
        case _:
            return None


def path_to(form: Field, name: str) -> Iterator[Field]:
    """Yield the fields on the way to a control, the outermost first."""
    for each in every(form):
        if name == each.name or name.startswith(f"{each.name}-"):
            yield each
