"""What every screen is made of: a title, a banner while the API is away, its own middle, a notice, and its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from turngate.domain.errors import TurngateError, UnavailableError
from turngate.frontends.tui.dialogs import TextDialog
from turngate.frontends.tui.help import HELP
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import Folded, line
from turngate.wire.events import EventView

REFRESH_PAUSE_SECONDS: Final = 0.15
"""Between two looks at the API: a busy run tells many events a second."""


class Refresher:
    """Looks when it is asked to, never twice at once, and once more when it was asked meanwhile."""

    def __init__(
        self,
        owner: Widget,
        look: Callable[[], Awaitable[None]],
        failed: Callable[[TurngateError], None],
        is_drawn: Callable[[], bool],
    ) -> None:
        self._owner, self._look, self._failed, self._is_drawn = owner, look, failed, is_drawn
        self._is_wanted = self._is_running = False

    def ask(self) -> None:
        """Look soon."""
        self._is_wanted = True
        if not self._is_running and self._is_drawn():
            self._is_running = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                try:
                    await self._look()
                except TurngateError as error:
                    self._failed(error)
                except NoMatches:
                    return  # the screen is being taken down: its parts go before the worker that asks for them
                await asyncio.sleep(REFRESH_PAUSE_SECONDS)
        finally:
            self._is_running = False


class LiveScreen(Screen[None]):
    """A screen that is told events. Subclasses draw :meth:`middle` and look at the API in :meth:`look`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,u", "up", "Back"),
        Binding("question_mark", "help", "Help"),
        Binding("f5", "refresh", "Look again"),
    ]
    KEYS: ClassVar[str] = ""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.client = session.client
        self.refresher = Refresher(self, self.look, self.failed, lambda: self.is_drawn)

    def compose(self) -> ComposeResult:
        """Draw the frame around the middle."""
        yield Static(Text(), id="title")
        yield Static(Text(), id="banner")
        yield from self.middle()
        yield Static(Text(), id="notice")
        yield Static(line((self.KEYS, "dim")), id="keys")

    @property
    def is_drawn(self) -> bool:
        """Whether all parts are there. A screen is told of things, and answered, before that and while it goes."""
        return self.is_attached and bool(self.query("#keys"))

    def middle(self) -> ComposeResult:
        """Draw what is the screen's own."""
        yield from ()

    def on_mount(self) -> None:
        """Look for the first time."""
        self.show_away(self.session.away)
        self.refresher.ask()

    def on_screen_resume(self) -> None:
        """Look again when what lay above is gone."""
        self.refresher.ask()

    async def look(self) -> None:
        """Ask the API and draw what it says."""

    def told(self, event: EventView) -> None:
        """Take note of an event of any run."""

    def failed(self, error: TurngateError) -> None:
        """Say that a look failed; what is shown stays."""
        if isinstance(error, UnavailableError):
            self.show_away(self.session.away or problem_words(error))
        else:
            self.say(problem_words(error), is_bad=True)

    def show_away(self, why: str) -> None:
        """Show that the API is away, or (empty) that it is not."""
        self.show_part(
            "#banner", line(("API AWAY ", "bold"), f"what is shown may be old; trying again. {why}"), bool(why)
        )

    def say(self, words: str, *, is_bad: bool = False) -> None:
        """Show a notice until the next one; empty: none."""
        mark, style = (("! ", "bold red"), "red") if is_bad else (("> ", "bold"), "")
        self.show_part("#notice", line(mark, (words, style)), bool(words))

    def title_line(self, text: Text) -> None:
        """Show the first line."""
        self.show_part("#title", text)

    def keys_line(self, text: str) -> None:
        """Show the keys."""
        self.show_part("#keys", line((text, "dim")))

    def show_part(self, part: str, text: Text | Folded, is_shown: bool = True) -> None:
        """Show a text in a part, if the part is there."""
        for widget in self.query(part).results(Static):
            widget.display = is_shown
            widget.update(text)

    def action_up(self) -> None:
        """Go back to the screen below."""
        if len(self.app.screen_stack) > 2:  # noqa: PLR2004 - Textual's own blank screen, and the first of ours
            self.app.pop_screen()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(TextDialog("Keys", HELP))

    def action_refresh(self) -> None:
        """Look again now."""
        self.refresher.ask()
