"""A form in the terminal: its fields with their labels, and what is wrong beside each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import Input, Select, Static, TextArea

from turngate.frontends.tui.controls import Held, Pick, Press, SafeInput, control_for, picker
from turngate.frontends.tui.form_model import (
    ROW_FOCUS,
    Control,
    Draft,
    Field,
    Group,
    Rows,
    Variants,
    form_grown,
    press_row,
    said_to,
    typed_into,
)
from turngate.frontends.tui.texts import Piece, line, plain, plain_line

STATES: Final = {"value": "a value", "null": "null", "absent": "leave it out"}
NAME_CHARS: Final = 60


class SchemaForm(VerticalScroll, can_focus=False):
    """The fields of a form. ``form``: as drawn from the draft's source; ``draft``: what was typed, kept by :meth:`gather`."""

    def __init__(self, form: Field, draft: Draft) -> None:
        super().__init__()
        self._form = form
        self.draft = draft
        self._wrong: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    @property
    def form(self) -> Field:
        """The form with the rows that it has now."""
        return form_grown(self._form, self.draft.typed)

    def gather(self) -> Draft:
        """Keep what stands in the controls, and return it."""
        for each in self.query(".control"):
            if isinstance(each, Held):
                self.draft.typed[each.control_name] = each.held
        return self.draft

    def compose(self) -> ComposeResult:
        """Draw the fields."""
        form = self.form
        self._texts = typed_into(form, self.draft.typed)
        if isinstance(form, Group) and len(form.states) == 1:
            yield from self._members(form)
        else:
            yield from self._field(form, "value")

    def complain(self, wrong: Mapping[str, str]) -> None:
        """Show what is wrong beside the field that it is about, and go to the first of them."""
        self._wrong = dict(wrong)
        first: Widget | None = None
        for each in self.query(".wrong").results(Static):
            name = str(each.name)
            said = wrong.get(name, "")
            each.update(_complaint(said))
            each.display = bool(said)
            if said and first is None:
                first = each
                self._focus(name)
        if first is not None:
            self.call_after_refresh(self.scroll_to_widget, first, animate=False)

    def _focus(self, name: str) -> bool:
        named = [each for each in self.query(".control") if isinstance(each, Held) and each.control_name == name]
        inside = [each for each in self.query(".control") if isinstance(each, Held) and _is_in(each.control_name, name)]
        for each in [*named, *inside]:
            each.focus()
            return True
        return False

    def _members(self, group: Group) -> Iterator[Widget]:
        for each in group.fields:
            yield from self._field(each, "value")
        if group.more is not None:
            yield from self._field(group.more, "more")

    def _field(self, field: Field, whole: str) -> Iterator[Widget]:
        yield Vertical(*self._parts(field, whole), classes="field")

    def _parts(self, field: Field, whole: str) -> Iterator[Widget]:
        if whole or field.key is not None:
            yield Static(_label(field, whole), classes="label")
        if len(field.states) > 1:
            options = [(each, STATES[each]) for each in field.states]
            yield self._control(picker(field.state_name, options, self._texts[field.state_name]))
        if isinstance(field, Control):
            yield self._control(control_for(field, self._texts[field.name]))
        else:
            inside = Vertical(*self._inside(field, whole), classes="inside", name=field.state_name)
            inside.display = self._texts.get(field.state_name, "value") == "value"
            yield inside
        if field.description or field.note:
            yield Static(line((plain(f"{field.description} {field.note}".strip()), "dim")), classes="about")
        yield self._wrong_line(field.name)

    def _inside(self, field: Group | Rows | Variants, whole: str) -> Iterator[Widget]:
        match field:
            case Group():
                yield from self._members(field)
            case Rows():
                called = plain_line(field.key or whole, NAME_CHARS)
                for at, row in enumerate(field.rows, 1):
                    if field.keyed:
                        yield Static(line(("name of ", "dim"), f"{called} {at}"), classes="label")
                        yield self._control(SafeInput(self._texts[row.key_name], control_name=row.key_name))
                        yield self._wrong_line(row.key_name)
                    yield from self._field(row.field, f"{called} {at}")
                    yield Press(f"remove {called} {at}", f"remove {field.name} {row.id}")
                if field.addable:
                    yield Press(f"add to {called}", f"add {field.name}")
                else:
                    yield Static(line(("There is no room for more here. As raw JSON (F2) there is.", "dim")))
            case Variants():
                picked = self._texts[field.variant_name]
                options = [(str(at), label) for at, label in enumerate(field.labels)]
                yield self._control(picker(field.variant_name, options, picked))
                for at, option in enumerate(field.options):
                    # A single control needs no label beside the pick itself.
                    called = "" if isinstance(option, Control) else field.labels[at]
                    of_this = Vertical(*self._field(option, called), classes="option", name=_option(field, at))
                    of_this.display = str(at) == picked
                    yield of_this

    def _control(self, widget: Widget) -> Widget:
        widget.add_class("control")
        return widget

    def _wrong_line(self, name: str) -> Static:
        made = Static(_complaint(self._wrong.get(name, "")), classes="wrong", name=name)
        made.display = name in self._wrong
        return made

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Keep the field's label, and what is wrong with it, in sight of the control that is typed into."""
        self._show_field_of(event.widget)

    def on_resize(self) -> None:
        """As for another focus."""
        if self.screen.focused is not None and self in self.screen.focused.ancestors:
            self._show_field_of(self.screen.focused)

    def _show_field_of(self, control: Widget) -> None:
        for each in control.ancestors:
            if isinstance(each, Vertical) and each.has_class("field"):
                self.call_after_refresh(self.scroll_to_widget, each, animate=False)
                return

    def on_pick_changed(self, event: Pick.Changed) -> None:
        """Show what another type of value, or a container that is sent now, brings with it."""
        event.stop()
        self._picked(event.pick.control_name)

    def on_select_changed(self, event: Select.Changed) -> None:
        """As for a pick."""
        event.stop()
        if isinstance(event.select, Held):
            self._picked(event.select.control_name)

    def _picked(self, name: str) -> None:
        before = self._texts.get(name)
        self._texts = typed_into(self.form, self.gather().typed)
        picked = self._texts.get(name)
        if before == picked:
            return  # Told at its first drawing.
        for each in self.query(".inside, .option"):
            if each.name == name:
                each.display = picked == "value"
            elif (each.name or "").rpartition("=")[0] == name:
                each.display = each.name == f"{name}={picked}"
        self._sent_now(name)

    async def on_press_pressed(self, event: Press.Pressed) -> None:
        """Add or remove a row."""
        event.stop()
        changed = press_row(self.form, self.gather().typed, event.does)
        if changed is not None:
            focus = changed.pop(ROW_FOCUS, "")
            self.draft.typed = changed
            await self._draw_again(focus)

    async def _draw_again(self, focus: str) -> None:
        top = self.scroll_y
        with self.app.batch_update():
            await self.recompose()
            self.scroll_to(y=top, animate=False)
        if not self._focus(focus):
            does = f"add {focus.removesuffix('-add')}"
            for each in self.query(Press):
                if each.does == does:
                    each.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What is typed is meant to be sent."""
        if isinstance(event.input, Held) and event.value:
            self._sent_now(event.input.control_name)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """What is typed is meant to be sent."""
        if isinstance(event.text_area, Held) and event.text_area.text:
            self._sent_now(event.text_area.control_name)

    def _sent_now(self, name: str) -> None:
        states = {each.state_name for each in said_to(self.form, name) if len(each.states) > 1} - {name}
        for pick in self.query(Pick):
            if pick.control_name in states:
                pick.put("value")


def _option(field: Variants, at: int) -> str:
    return f"{field.variant_name}={at}"


def _label(field: Field, whole: str) -> Text:
    pieces: list[Piece] = [(plain_line(field.key if field.key is not None else whole, NAME_CHARS), "bold")]
    hint = field.hint if isinstance(field, Control) else ""
    if hint:
        pieces.append((f"  {plain_line(hint, NAME_CHARS)}", "dim"))
    if isinstance(field, Control) and field.kind != "choice" and field.required and field.key is not None:
        pieces.append(("  required", "dim"))
    return line(*pieces)


def _complaint(said: str) -> Text:
    return line(("! ", "bold red"), (plain_line(said, 1_000), "red")) if said else Text()


def _is_in(name: str, field: str) -> bool:
    return name.startswith(f"{field}-")
