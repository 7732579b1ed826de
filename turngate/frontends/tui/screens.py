"""What every screen is made of: a title, a banner while the API is away, its own middle, a notice, and its keys."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from turngate.domain.errors import TurngateError, UnavailableError
from turngate.frontends.tui.dialogs import TextDialog
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import Folded, at, folded, line
from turngate.wire.events import EventView

_KEYS: Final = (  # what `?` shows
    ("Everywhere", ()),
    ("1 / 2 / 3", "the inbox / the runs / the grants"),
    ("j k, arrows", "move, or scroll"),
    ("Space, Page Down", "scroll on; Home and End go to the ends"),
    ("Escape, u", "back"),
    ("F5", "look again"),
    ("? / q", "this help / quit; runs continue"),
    ("Inbox", ()),
    ("Enter", "open the request"),
    ("x", "choose several; then a or r shows all of them"),
    ("a r e", "open it, to be decided there"),
    ("/", "show only some of them"),
    ("Request", ()),
    ("a a", "approve what is on screen; high risk: its name"),
    ("g", "approve it, and calls like it from now on"),
    ("r", "reject, with a reason that the agent reads"),
    ("e", "edit the arguments, then approve"),
    ("x x", "drop an edit that isn't sent"),
    ("s", "answer a question, or in place of a tool"),
    ("h / d d / t t", "it happened / did not: run it / unknown"),
    ("c", "claim it, or give it back; c c takes it over"),
    ("w", "write a comment to other people"),
    ("v", "the conversation that led to it"),
    ("n / o", "next request / its run"),
    ("Form", ()),
    ("Tab, arrows", "next field; Space and arrows pick one of several"),
    ("F2", "all of it as JSON, or as fields again"),
    ("Ctrl+S / Escape", "send / leave, and keep what was typed"),
    ("Runs", ()),
    ("/", "show only some of them, or the stalled ones"),
    ("Run", ()),
    ("p", "pause the run, or resume it"),
    ("m", "send it a message, and say when it is read"),
    ("s", "give it another model"),
    ("i", "interrupt it"),
    ("t", "retry it, once it failed or was interrupted"),
    ("f", "fork it: continue from one of its steps"),
    ("w", "why it ended so, or what it waits for"),
    ("o", "open what it waits for"),
    ("Grants", ()),
    ("r r", "revoke it"),
)


def _help() -> Folded:
    lines = []
    for keys, meaning in _KEYS:
        lines.append(at("  ", f"{keys:<18}", str(meaning)) if meaning else at("", (keys, "bold")))
    return folded(lines)


HELP: Final = _help()


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
    """A screen that takes events. Subclasses draw :meth:`middle` and look at the API in :meth:`look`."""

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
        """Whether all parts are there. Events and answers reach a screen before that, and while it goes."""
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

    def take_event(self, event: EventView) -> None:
        """Take note of an event of any run."""

    def failed(self, error: TurngateError) -> None:
        """Say that a look failed; what is shown stays."""
        if isinstance(error, UnavailableError):
            self.show_away(self.session.away or problem_words(error))
        else:
            self.say(problem_words(error), is_bad=True)

    def show_away(self, why: str) -> None:
        """Show why what is shown may be out of date, or (empty) that it is not."""
        self.show_part("#banner", line(("! ", "bold"), why), bool(why))

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
        if len(self.app.screen_stack) > 2:  # noqa: PLR2004 - Textual's own blank screen, and the app's first
            self.app.pop_screen()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(TextDialog("Keys", HELP))

    def action_refresh(self) -> None:
        """Look again now."""
        self.refresher.ask()


TICK_SECONDS: Final = 10.0
"""Between two drawings of a list without an event: ages grow."""
NARROWEST: Final = 20


class Rows(OptionList):
    """A list that is moved through by the page's keys. A paste into it does nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "Down"),
        Binding("k", "cursor_up", "Up"),
        Binding("space", "page_down", "Page down"),
    ]

    def fill(self, options: list[Option]) -> None:
        """Show these, and stay at the one that was marked, or else at its place."""
        marked, at = self.marked, self.highlighted or 0
        top = self.scroll_y
        with self.app.batch_update():
            self.clear_options()
            self.add_options(options)
            places = {option.id: place for place, option in enumerate(options)}
            self.highlighted = places.get(marked, min(at, len(options) - 1)) if options else None
            self.scroll_to(y=top, animate=False)
        self.display = bool(options)

    @property
    def marked(self) -> str | None:
        """The id of the option that is marked; None in an empty list."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id


class ListScreen(LiveScreen):
    """Draws :meth:`rows` under :meth:`heading`, again when it must, is resized, or time went by. Enter opens one.

    ``EMPTY``: the text in place of no rows.
    """

    EMPTY: ClassVar[str] = ""
    _was_looked: bool = False

    def middle(self) -> ComposeResult:
        """Draw the list, and the text in place of an empty one."""
        yield Rows(id="rows", markup=False)
        yield Static(Text(), id="empty")

    def on_mount(self) -> None:
        """Let the keys move, and ages grow."""
        self.set_interval(TICK_SECONDS, self.draw)
        self.query_one(Rows).focus()

    def on_resize(self) -> None:
        """Cut lines to the new width."""
        self.draw()

    @abstractmethod
    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return each row's id and its text, of lines of at most so many cells."""

    @abstractmethod
    def heading(self) -> Text:
        """Return the first line."""

    @abstractmethod
    def open(self, row_id: str) -> None:
        """Open a row."""

    def empty_words(self) -> str:
        """Return the text in place of no rows."""
        return self.EMPTY

    def looked(self) -> None:
        """Take note that something is known, and draw it."""
        self._was_looked = True
        self.draw()

    def draw(self) -> None:
        """Draw what is known; while nothing is, not even that there is nothing."""
        if not self.is_drawn or not self._was_looked:
            return
        width = max(NARROWEST, self.size.width - 4)
        options = [Option(text, id=row_id) for row_id, text in self.rows(width)]
        self.query_one(Rows).fill(options)
        self.title_line(self.heading())
        empty = self.query_one("#empty", Static)
        empty.update(line(self.empty_words()))
        empty.display = not options

    @property
    def marked(self) -> str | None:
        """The id of the row that is marked; None in an empty list."""
        return self.query_one(Rows).marked

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a row."""
        event.stop()
        if event.option_id is not None:
            self.open(event.option_id)
