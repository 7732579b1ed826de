"""The dialog that asks by a form, or for the same value as raw JSON. It stays open, with all of it, until it was taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Select, Static
from textual.widgets.option_list import Option

from turngate.frontends.tui.controls import SafeArea, SafeInput
from turngate.frontends.tui.form_model import Draft, Draw, place_errors, reading_of, text_field, typed_into
from turngate.frontends.tui.schema_form import SchemaForm
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import Folded, editable, json_problem, line, plain, plain_line

NOT_SENT = "Something does not fit. It is marked, and what you typed is still there."


@dataclass(frozen=True, kw_only=True)
class Asking:
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
    """Asks, and sends. Its result is what was taken; None when it was left. ``keep``: is given what stands in it then."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("ctrl+s", "send", "Send", priority=True),
        Binding("f2", "turn", "Fields or JSON", priority=True),
        Binding("down", "app.focus_next", "Next field"),
        Binding("up", "app.focus_previous", "The field before"),
    ]

    def __init__(self, asking: Asking, draft: Draft, keep: Callable[[Draft], None]) -> None:
        super().__init__()
        self._asking = asking
        self._keep = keep
        self._is_sending = False
        self.draft = draft
        form = asking.draw(draft.source)
        if form is None and draft.raw is None and asking.raw is not None:
            draft.raw = asking.raw
        self._has_fields = form is not None

    def compose(self) -> ComposeResult:
        """Draw title, lead, suggestions, the fields or the editor, what is wrong, and keys."""
        with Vertical(classes="dialog many"):
            yield Static(line((plain_line(self._asking.title), "bold")))
            with VerticalScroll(classes="lead", can_focus=False):
                yield Static(self._asking.lead)
            if self._asking.suggested:
                texts = [Option(line(plain_line(each, 200))) for each in self._asking.suggested]
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
        found = self.query(SchemaForm)
        return found.first() if found else None

    @property
    def _editor(self) -> SafeArea:
        return self.query_one("#raw", SafeArea)

    async def _show_body(self) -> None:
        body = self.query_one("#body", Vertical)
        form = self._asking.draw(self.draft.source) if self.draft.raw is None else None
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
        if self._asking.raw is not None:
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

    def _kept(self) -> Draft:
        form = self.form
        if form is not None:
            self.draft = form.gather()
        else:
            self.draft.raw = self._editor.held
        self._keep(self.draft.copy())
        return self.draft

    def _args(self) -> str | None:
        """Return the JSON that stands here; None when it is none, which is said then."""
        draft, form = self._kept(), self.form
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
        """Turn from the fields to the whole JSON, or back, and take along what stands there."""
        if self._asking.raw is None or not self._has_fields or self._is_sending:
            return
        args = self._args()
        if args is None:
            return
        if self.form is not None:
            self.draft.raw = editable(args)
        elif self._asking.draw(args) is None:
            self.complain("This JSON fits no form of fields; it can be sent as it is.")
            return
        else:
            self.draft = Draft(source=args)
        self._say(Text())
        self._keep(self.draft.copy())
        await self._show_body()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the next field; a form of one line is sent."""
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
            text = plain(self._asking.suggested[event.option_index])
            for each in form.query(".control"):
                if isinstance(each, SafeArea | SafeInput) and each.control_name == own.name:
                    each.put(text)
                    each.focus()

    def action_send(self) -> None:
        """Send what stands here, if it can be sent."""
        if self._is_sending:
            return
        args = self._args()
        if args is None:
            return
        fault = self._asking.fault(args)
        if fault is not None:
            self.complain(fault)
            return
        self._is_sending = True
        self._say(line("Sending…"))
        self.run_worker(self._sent(args))

    async def _sent(self, args: str) -> None:
        try:
            sent = await self._asking.send(args)
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
        root = self._asking.pointer
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
        self._kept()
        self.dismiss(None)
