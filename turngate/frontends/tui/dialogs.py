"""Dialogs: ask for a text, show one, confirm one. Each stays open, with what was typed, until what it sends was taken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from turngate.frontends.tui.double_press import DoublePress
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import Folded, line, plain, plain_line
from turngate.frontends.tui.widgets import SafeArea, SafeInput, ScrolledText

Send = Callable[[str], Awaitable[Sent]]
Check = Callable[[str], str | None]
_TAIL: Final = 4_000


class AskDialog(ModalScreen[Sent]):
    """Asks for a text and sends it. Its result is what was taken; None when it was left, and then ``on_leave`` has the text.

    ``lead``: shown above, made harmless by the caller. ``many``: many lines, sent with Ctrl+S; else one, sent with Enter.
    ``check``: why a text cannot be sent, or None. ``recent``: lines to choose from with the arrows.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Leave", priority=True),
        Binding("ctrl+s", "send", "Send", priority=True),
        Binding("down", "recent(1)", "A recent text"),
        Binding("up", "recent(-1)", "A recent text"),
    ]

    def __init__(
        self,
        title: str,
        lead: Text | str,
        send: Send,
        *,
        text: str = "",
        many: bool = False,
        is_json: bool = False,
        check: Check | None = None,
        pasteable: bool = True,
        recent: Sequence[str] = (),
        on_leave: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._recent, self._place = [text, *recent], 0
        self._heading, self._lead = title, line(lead) if isinstance(lead, str) else lead
        self._deliver, self._find_fault, self._keep = send, check, on_leave
        self._is_sending = False
        self.field: SafeArea | SafeInput = (
            SafeArea(text, is_json=is_json) if many else SafeInput(text, pasteable=pasteable)
        )
        self._keys = "Ctrl+S send   Escape leave, keeping the text" if many else "Enter send   Escape leave"
        if recent:
            self._keys += "   ↓ a recent one"

    def compose(self) -> ComposeResult:
        """Draw title, lead, field, what is wrong, and keys."""
        with Vertical(classes="dialog many" if isinstance(self.field, SafeArea) else "dialog"):
            yield Static(line((self._heading, "bold")))
            with VerticalScroll(classes="lead", can_focus=False):
                yield Static(self._lead)
            yield self.field
            yield Static(Text(), id="wrong")
            yield Static(line((self._keys, "dim")), classes="keys")

    def on_mount(self) -> None:
        """Put the cursor at the end of what is there."""
        self.field.focus()
        if isinstance(self.field, SafeArea):
            self.field.move_cursor(self.field.document.end)

    @property
    def typed(self) -> str:
        """What is in the field."""
        return self.field.held

    def complain(self, words: str) -> None:
        """Say what is wrong; the text stays."""
        self._show(line(("! ", "bold red"), (words[:_TAIL], "red")))

    def _show(self, text: Text) -> None:
        for widget in self.query("#wrong").results(Static):  # none before it is drawn, and while it closes
            widget.update(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send a line."""
        event.stop()
        self.action_send()

    def action_recent(self, by: int) -> None:
        """Put the next recent text into the field, or what was typed before them."""
        if len(self._recent) == 1 or not isinstance(self.field, SafeInput):
            return
        if self.typed != self._recent[self._place]:
            self._recent[0], self._place = self.typed, 0
        self._place = (self._place + by) % len(self._recent)
        self.field.put(self._recent[self._place])

    def action_send(self) -> None:
        """Send the text if it can be sent."""
        wrong = self._find_fault(self.typed) if self._find_fault is not None else None
        if wrong is not None:
            self.complain(wrong)
        elif not self._is_sending:
            self._is_sending = True
            self._show(line("Sending…"))
            self.run_worker(self._sent(self.typed))

    async def _sent(self, text: str) -> None:
        try:
            sent = await self._deliver(text)
        finally:
            self._is_sending = False
        if sent.taken:
            self.dismiss(sent)
        else:
            self.complain(sent.words)

    def action_leave(self) -> None:
        """Close without sending."""
        if self._keep is not None:
            self._keep(self.typed)
        self.dismiss(None)


class TextDialog(ModalScreen[None]):
    """Shows a text until a key closes it. ``at_end``: its end first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,u,v,question_mark,enter", "dismiss", "Close")]

    def __init__(self, title: str, text: Folded, *, at_end: bool = False) -> None:
        super().__init__()
        self._heading, self._text, self._at_end = title, text, at_end

    def compose(self) -> ComposeResult:
        """Draw the text."""
        with Vertical(classes="dialog many"):
            yield Static(line((self._heading, "bold")))
            yield ScrolledText(Static(self._text), classes="whole")
            yield Static(line(("j k scroll   Escape close", "dim")), classes="keys")

    def on_mount(self) -> None:
        """Let the keys scroll."""
        reading = self.query_one(ScrolledText)
        reading.focus()
        if self._at_end:
            self.call_after_refresh(reading.scroll_end, animate=False)


class ConfirmDialog(ModalScreen[Sent]):
    """``a a`` does it. ``does``: what, as in "approve, and allow exactly this". Its result is what was taken; None: left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "agree", "Do it"),
        Binding("escape,u", "dismiss", "Back"),
    ]

    def __init__(self, does: str, text: Folded, send: Callable[[], Awaitable[Sent]]) -> None:
        super().__init__()
        self._does, self._text, self._deliver = plain_line(does, 200), text, send
        self._double_press = DoublePress(self, self._say)
        self._is_sending = False

    def compose(self) -> ComposeResult:
        """Draw what would be done."""
        with Vertical(classes="dialog many"):
            yield ScrolledText(Static(self._text), classes="whole")
            yield Static(Text(), id="wrong")
            yield Static(line((f"a a {self._does}   j k scroll   Escape back", "dim")), classes="keys")

    def on_mount(self) -> None:
        """Let the keys scroll."""
        self.query_one(ScrolledText).focus()

    def _say(self, words: str, *, is_bad: bool = False) -> None:
        for widget in self.query("#wrong").results(Static):
            widget.update(line(("! ", "bold red"), (plain(words), "red")) if is_bad else line(words))

    def action_agree(self) -> None:
        """Do it, by two presses."""
        reading = self.query_one(ScrolledText)
        if not reading.was_read:
            self._double_press.disarm()
            reading.scroll_page_down(animate=False)
            self._say("There is more below: look at all of it, then press a.")
        elif not self._is_sending:
            self._double_press.press("a", f"Press a again to {self._does}.", self._send)

    def _send(self) -> None:
        self._is_sending = True
        self._say("Sending…")
        self.run_worker(self._sent())

    async def _sent(self) -> None:
        try:
            sent = await self._deliver()
        finally:
            self._is_sending = False
        if sent.taken:
            self.dismiss(sent)
        else:
            self._say(sent.words, is_bad=True)
