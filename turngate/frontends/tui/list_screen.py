"""A screen that is a list: rows of two lines each, and what stands in place of an empty one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.texts import line

TICK_SECONDS: Final = 10.0
"""Between two drawings of a list of which nothing is told: ages go on."""
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
    """Draws :meth:`rows` under :meth:`heading`, again when it is told to, resized, or time went by. Enter opens one.

    ``EMPTY``: what stands in place of no rows.
    """

    EMPTY: ClassVar[str] = ""
    _was_looked: bool = False

    def middle(self) -> ComposeResult:
        """Draw the list, and what stands in place of an empty one."""
        yield Rows(id="rows", markup=False)
        yield Static(Text(), id="empty")

    def on_mount(self) -> None:
        """Let the keys move, and ages go on."""
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
        """Return what stands in place of no rows."""
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
