"""The dialog that asks by a form, or for the same value as raw JSON. It stays open, with all of it, until it was taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Select, Static, TextArea
from textual.widgets.option_list import Option

from turngate.frontends.tui.form_model import (
    ROW_FOCUS,
    Control,
    Draft,
    Draw,
    Field,
    Group,
    Rows,
    Variants,
    form_grown,
    path_to,
    place_errors,
    press_row,
    reading_of,
    text_field,
    typed_into,
)
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import Folded, Piece, editable, json_problem, line, plain, plain_line
from turngate.frontends.tui.widgets import Held, Pick, Press, SafeArea, SafeInput, control_for, picker

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
        """Keep what is in the controls, and return it."""
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
            complaint = wrong.get(name, "")
            each.update(_complaint(complaint))
            each.display = bool(complaint)
            if complaint and first is None:
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
        widget = Static(_complaint(self._wrong.get(name, "")), classes="wrong", name=name)
        widget.display = name in self._wrong
        return widget

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
            return  # It is shown at its first drawing.
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
        states = {each.state_name for each in path_to(self.form, name) if len(each.states) > 1} - {name}
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


def _complaint(message: str) -> Text:
    return line(("! ", "bold red"), (plain_line(message, 1_000), "red")) if message else Text()


def _is_in(name: str, field: str) -> bool:
    return name.startswith(f"{field}-")


NOT_SENT = "Something does not fit. It is marked, and what you typed is still there."


@dataclass(frozen=True, kw_only=True)
class FormSpec:
    """What a form is for.

    ``lead``: shown above, made harmless. ``draw``: makes the form. ``raw``: JSON that the raw editor begins with; None: there
    is no raw editor. ``send``: takes the JSON that the form says. ``fault``: why that JSON cannot be sent; None: it can.
    ``suggested``: texts that fill its one field. ``pointer``: where the API's complaints say that this value is.
    """

    title: str
    lead: Text | Folded
    draw: Draw
    send: Callable[[str], Awaitable[Sent]]
    raw: str | None = None
    fault: Callable[[str], str | None] = lambda _args: None
    suggested: Sequence[str] = field(default_factory=tuple)
    pointer: str = "/args"


class FormDialog(ModalScreen[Sent]):
    """Asks, and sends. Its result is what was taken; None when it was left. ``keep``: gets what is in it then."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("ctrl+s", "send", "Send", priority=True),
        Binding("f2", "turn", "Fields or JSON", priority=True),
        Binding("down", "app.focus_next", "Next field"),
        Binding("up", "app.focus_previous", "The field before"),
    ]

    def __init__(self, spec: FormSpec, draft: Draft, keep: Callable[[Draft], None]) -> None:
        super().__init__()
        self._spec = spec
        self._keep = keep
        self._is_sending = False
        self.draft = draft
        form = spec.draw(draft.source)
        if form is None and draft.raw is None and spec.raw is not None:
            draft.raw = spec.raw
        self._has_fields = form is not None

    def compose(self) -> ComposeResult:
        """Draw title, lead, suggestions, the fields or the editor, what is wrong, and keys."""
        with Vertical(classes="dialog many"):
            yield Static(line((plain_line(self._spec.title), "bold")))
            with VerticalScroll(classes="lead", can_focus=False):
                yield Static(self._spec.lead)
            if self._spec.suggested:
                texts = [Option(line(plain_line(each, 200))) for each in self._spec.suggested]
                yield OptionList(*texts, markup=False, id="suggested")
            yield Vertical(id="body")
            yield Static(Text(), id="wrong")
            yield Static(Text(), classes="keys", id="form-keys")

    async def on_mount(self) -> None:
        """Draw the fields, or the editor."""
        await self._show_body()

    @property
    def form(self) -> SchemaForm | None:
        """The fields; None while the whole JSON is shown."""
        forms = self.query(SchemaForm)
        return forms.first() if forms else None

    @property
    def _editor(self) -> SafeArea:
        return self.query_one("#raw", SafeArea)

    async def _show_body(self) -> None:
        body = self.query_one("#body", Vertical)
        form = self._spec.draw(self.draft.source) if self.draft.raw is None else None
        keys = ["Ctrl+S send"]
        with self.app.batch_update():
            await body.remove_children()
            if form is not None:
                await body.mount(SchemaForm(form, self.draft))
                keys.append("Tab next field")
            else:
                editor = SafeArea(self.draft.raw or "", is_json=True)
                editor.id = "raw"
                await body.mount(editor)
        if self._spec.raw is not None:
            other_form = "F2 fields" if self._has_fields else "as JSON"
            keys.append(other_form if form is None else "F2 raw JSON")
        self.query_one("#form-keys", Static).update(line(("  ".join([*keys, "Escape leave, keeping it"]), "dim")))
        suggested = self.query("#suggested").results(OptionList)
        for each in suggested:
            each.display = form is not None
            each.focus()
            return
        self.call_after_refresh(self._focus_first)

    def _focus_first(self) -> None:
        controls = self.query("#body .control, #raw")
        if controls:
            controls.first().focus(scroll_visible=False)

    def complain(self, words: str) -> None:
        """Say what is wrong with all of it; what was typed stays."""
        self._say(line(("! ", "bold red"), (plain(words), "red")))

    def _say(self, text: Text) -> None:
        for widget in self.query("#wrong").results(Static):
            widget.update(text)

    def _draft_now(self) -> Draft:
        form = self.form
        if form is not None:
            self.draft = form.gather()
        else:
            self.draft.raw = self._editor.held
        self._keep(self.draft.copy())
        return self.draft

    def _args(self) -> str | None:
        """Return the JSON of the form; None when it is no JSON, after saying so."""
        draft, form = self._draft_now(), self.form
        if form is None:
            problem = json_problem(draft.raw or "")
            if problem is not None:
                self.complain(problem)
                return None
            return draft.raw
        reading = reading_of(form.form, draft)
        form.complain(reading.errors)
        if reading.args is None:
            self.complain(NOT_SENT)
        return reading.args

    async def action_turn(self) -> None:
        """Turn from the fields to the whole JSON, or back, and take its content along."""
        if self._spec.raw is None or not self._has_fields or self._is_sending:
            return
        args = self._args()
        if args is None:
            return
        if self.form is not None:
            self.draft.raw = editable(args)
        elif self._spec.draw(args) is None:
            self.complain("This JSON fits no form of fields; it can be sent as it is.")
            return
        else:
            self.draft = Draft(source=args)
        self._say(Text())
        self._keep(self.draft.copy())
        await self._show_body()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Move to the next field; a form of one line is sent."""
        event.stop()
        if len(self.query("#body .control")) == 1:
            self.action_send()
        else:
            self.app.action_focus_next()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Put a suggested answer into its field, where it can be changed before it is sent."""
        form = self.form
        if event.option_list.id != "suggested" or form is None:
            return
        event.stop()
        own = text_field(form.form)
        if own is not None:
            text = plain(self._spec.suggested[event.option_index])
            for each in form.query(".control"):
                if isinstance(each, SafeArea | SafeInput) and each.control_name == own.name:
                    each.put(text)
                    each.focus()

    def action_send(self) -> None:
        """Send the form's content, if it can be sent."""
        if self._is_sending:
            return
        args = self._args()
        if args is None:
            return
        fault = self._spec.fault(args)
        if fault is not None:
            self.complain(fault)
            return
        self._is_sending = True
        self._say(line("Sending…"))
        self.run_worker(self._sent(args))

    async def _sent(self, args: str) -> None:
        try:
            sent = await self._spec.send(args)
        finally:
            self._is_sending = False
        if sent.taken:
            self.dismiss(sent)
        else:
            self._refused(sent)

    def _refused(self, sent: Sent) -> None:
        """Put each complaint of the API beside its field, and say the rest."""
        form, about = self.form, self._about_fields(sent.problems)
        # What is about something else than the fields is in the words, which then say all of it.
        if form is None or not about or len(about) < len(sent.problems):
            self.complain(sent.words)
            return
        texts = typed_into(form.form, self.draft.typed)
        beside, rest = place_errors(form.form, about, texts)
        form.complain(beside)
        self.complain("; ".join(rest) if rest else NOT_SENT)

    def _about_fields(self, problems: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
        root = self._spec.pointer
        return [
            {"pointer": each.get("pointer", "").removeprefix(root), "message": each.get("message", "")}
            for each in problems
            if each.get("pointer", "").startswith(root)
        ]

    def action_leave(self) -> None:
        """Close a list that is open, or else this dialog; what was typed is kept."""
        for each in self.query(Select):
            if each.expanded:
                each.expanded = False
                each.focus()
                return
        self._draft_now()
        self.dismiss(None)
