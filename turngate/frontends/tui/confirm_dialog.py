"""The dialog that shows exactly what would be done, and does it once all of it was on screen and a person says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from turngate.frontends.tui.arming import Arming
from turngate.frontends.tui.reading import Reading
from turngate.frontends.tui.session import Sent
from turngate.frontends.tui.texts import Folded, line, plain, plain_line


class ConfirmDialog(ModalScreen[Sent]):
    """``a a`` does it. ``does``: what, as in "approve, and allow exactly this". Its result is what was taken; None: left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "agree", "Do it"),
        Binding("escape,u", "dismiss", "Back"),
    ]

    def __init__(self, does: str, shown: Folded, send: Callable[[], Awaitable[Sent]]) -> None:
        super().__init__()
        self._does, self._shown, self._deliver = plain_line(does, 200), shown, send
        self._arming = Arming(self, self._say)
        self._is_sending = False

    def compose(self) -> ComposeResult:
        """Draw what would be done."""
        with Vertical(classes="dialog many"):
            yield Reading(Static(self._shown), classes="whole")
            yield Static(Text(), id="wrong")
            yield Static(line((f"a a {self._does}   j k scroll   Escape back", "dim")), classes="keys")

    def on_mount(self) -> None:
        """Let the keys scroll."""
        self.query_one(Reading).focus()

    def _say(self, words: str, *, is_bad: bool = False) -> None:
        for widget in self.query("#wrong").results(Static):
            widget.update(line(("! ", "bold red"), (plain(words), "red")) if is_bad else line(words))

    def action_agree(self) -> None:
        """Do it, by two presses."""
        reading = self.query_one(Reading)
        if not reading.was_read:
            self._arming.disarm()
            reading.scroll_page_down(animate=False)
            self._say("It goes on below: look at all of it, then press a.")
        elif not self._is_sending:
            self._arming.press("a", f"Press a again to {self._does}.", self._send)

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
