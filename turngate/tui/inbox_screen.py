"""The inbox: what waits for a person, oldest first, live."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from turngate.tui.bulk_screen import BulkScreen
from turngate.tui.request_screen import RequestScreen
from turngate.tui.request_text import item_text
from turngate.tui.screens import LiveScreen
from turngate.tui.session import Session
from turngate.tui.texts import line, plain_line
from turngate.wire.events import EventView
from turngate.wire.requests import RequestItem

SHOWN: Final = 200
"""Most requests that are listed: the oldest, which come first."""
TICK_SECONDS: Final = 10.0


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


class InboxScreen(LiveScreen):
    """The requests that wait. ``x`` chooses some of them for :class:`BulkScreen`."""

    KEYS = "j k  Enter open  a approve  r reject  e edit  x choose  2 runs  ? help  q quit"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "pick", "Choose"),
        Binding("a", "act('approve')", "Approve"),
        Binding("r", "act('reject')", "Reject"),
        Binding("e", "act('edit')", "Edit"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.items: dict[str, RequestItem] = {}
        self.picked: set[str] = set()
        self._total = 0

    def middle(self) -> ComposeResult:
        """Draw the list, and what stands in place of an empty one."""
        yield Rows(id="rows", markup=False)
        yield Static(Text(), id="empty")

    def on_mount(self) -> None:
        """Let the ages of requests go on."""
        self.set_interval(TICK_SECONDS, self._draw)
        self.query_one(Rows).focus()

    def told(self, event: EventView) -> None:
        """Look again when a request may have come or gone."""
        if event.type.startswith(("request.", "run.ended", "run.recovered", "decision.")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the oldest requests."""
        page = await self.client.list_requests(limit=SHOWN)
        self._total = len(page.items)
        if page.next_cursor is not None:
            self._total = (await self.client.count_requests()).count
        self.items = {item.id: item for item in page.items}
        self.picked &= self.items.keys()
        self._draw()

    def on_resize(self) -> None:
        """Cut lines to the new width."""
        self._draw()

    def _draw(self) -> None:
        if not self.is_drawn:
            return
        width = max(20, self.size.width - 4)
        self.query_one(Rows).fill(
            [
                Option(item_text(each, me=self.session.me, picked=each.id in self.picked, width=width), id=each.id)
                for each in self.items.values()
            ]
        )
        waits = f"{self._total:,} {'waits' if self._total == 1 else 'wait'} for a person"
        more = f", the oldest {len(self.items)} shown" if self._total > len(self.items) else ""
        picked = f", {len(self.picked)} chosen" if self.picked else ""
        who = f"  {plain_line(self.session.me, 40)}" if self.session.me else ""
        self.title_line(line(("Inbox  ", "bold"), f"{waits}{more}{picked}", (who, "dim")))
        empty = self.query_one("#empty", Static)
        empty.display = not self.items
        empty.update(line("Nothing waits. New requests appear here by themselves."))

    def action_pick(self) -> None:
        """Choose the marked request, or not."""
        marked = self.query_one(Rows).marked
        if marked is not None:
            self.picked ^= {marked}
            self._draw()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a request."""
        event.stop()
        if event.option_id is not None:
            self._open(event.option_id)

    def action_act(self, verb: str) -> None:
        """Open what is to be decided: nothing is decided from a line of a list."""
        chosen = [item for item in self.items.values() if item.id in self.picked]
        marked = self.query_one(Rows).marked
        if chosen and verb != "edit":
            self.app.push_screen(BulkScreen(self.session, chosen), lambda _: self.picked.clear())
        elif marked is not None:
            self._open(marked, wanted=verb)

    def _open(self, request_id: str, wanted: str = "") -> None:
        self.app.push_screen(RequestScreen(self.session, request_id, order=list(self.items), wanted=wanted))
