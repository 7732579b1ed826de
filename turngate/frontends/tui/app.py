"""The program: one stream of events for all screens, and what holds them together."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType
from textual.widgets import Input, TextArea

from turngate.client import TurngateClient
from turngate.client.requests import Where
from turngate.domain.errors import TurngateError, UnavailableError
from turngate.domain.runs.groups import Grouping
from turngate.frontends.tui.grants_screen import GrantsScreen
from turngate.frontends.tui.inbox_screen import InboxScreen
from turngate.frontends.tui.problems import problem_words
from turngate.frontends.tui.request_screen import RequestScreen
from turngate.frontends.tui.run_screen import RunScreen
from turngate.frontends.tui.runs_screen import RunsScreen
from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.session import Session
from turngate.text.link_words import LinkState
from turngate.wire.events import EventView

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 5.0


_LATIN: Final = "qwertyuiopasdfghjklzxcvbnm"
_LAYOUTS: Final = (
    "йцукенгшщзфывапролдячсмить",  # Russian
    " ςερτυθιοπασδφγηξκλζχψωβνμ",  # Greek
    "  קראטוןםפשדגכעיחלךזסבהנמצ",  # Hebrew
    "ضصثقفغعهخحشسيبلاتنمئءؤر ىة",  # Arabic
)
LATIN_KEYS: Final = {
    letter: latin
    for letters in _LAYOUTS
    for other, own in zip(letters, _LATIN, strict=True)
    for letter, latin in ((other.upper(), own.upper()), (other, own))  # Hebrew and Arabic have one case
    if other != " "
}
"""Letter of another script → the key in the same place of a Latin keyboard: a terminal sends letters, and no keys."""


class TurngateTui(App[None]):
    """The terminal UI on a client, which the caller closes."""

    TITLE = "Turngate"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "tui.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("1", "inbox", "Inbox"),
        Binding("2", "runs", "Runs"),
        Binding("3", "grants", "Grants"),
    ]

    def __init__(self, client: TurngateClient) -> None:
        super().__init__()
        self.session = Session(client, self)
        self._link_state = LinkState()
        self.animation_level = "none"  # No one can read a text that still slides.

    def on_mount(self) -> None:
        """Show the inbox and follow everything."""
        self.set_class(self.no_color, "colourless")
        self.push_screen(InboxScreen(self.session))
        self.run_worker(self._follow())

    async def on_event(self, event: events.Event) -> None:
        """Take a letter of another script, where nothing is typed, for the key in its place."""
        if isinstance(event, events.Key) and not isinstance(self.focused, Input | TextArea):
            latin = LATIN_KEYS.get(event.character or "")
            event = event if latin is None else events.Key(latin, latin)
        await super().on_event(event)

    async def _follow(self) -> None:
        """Follow all runs from now on. What came before is what the screens read once the stream is open."""
        after: int | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async for event in self.session.client.follow_events(
                    after=after, with_progress=False, on_link=self._on_link
                ):
                    pause = FIRST_PAUSE_SECONDS
                    if isinstance(event, EventView):
                        after = event.seq
                        for screen in self._live_screens():
                            screen.take_event(event)
            except UnavailableError as error:
                self._link_state.change(is_open=False)
                self._away(f"{self._link_state.words} {problem_words(error)}")
            except TurngateError as error:
                self._away(problem_words(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _on_link(self, is_open: bool) -> None:
        self._link_state.change(is_open=is_open)
        self._away(self._link_state.words)
        if not is_open:
            return
        if self.session.who is None:
            self.run_worker(self._who())
        for screen in self._live_screens():  # Subscribed first, looked at second: nothing falls in between.
            screen.refresher.ask()

    async def _who(self) -> None:
        try:
            self.session.who = await self.session.client.get_me()
        except TurngateError:
            return  # the stream says what is wrong, and the next link asks again
        for screen in self._live_screens():
            screen.refresher.ask()

    def _away(self, why: str) -> None:
        self.session.away = why
        for screen in self._live_screens():
            screen.show_away(why)

    def _live_screens(self) -> list[LiveScreen]:
        return [screen for screen in self.screen_stack if isinstance(screen, LiveScreen) and screen.is_drawn]

    def action_inbox(self) -> None:
        """Go back to the inbox."""
        self._to_bottom()

    def action_runs(self) -> None:
        """Show the runs, above the inbox."""
        self._to_bottom()
        self.push_screen(RunsScreen(self.session))

    def action_grants(self) -> None:
        """Show the grants, above the inbox."""
        self._to_bottom()
        self.push_screen(GrantsScreen(self.session))

    def open_request(
        self,
        request_id: str,
        *,
        order: list[str],
        where: Where | None = None,
        group: Grouping | None = None,
        wanted: str = "",
    ) -> None:
        """Open a request above what is shown."""
        self.push_screen(RequestScreen(self.session, request_id, order=order, where=where, group=group, wanted=wanted))

    def open_run(self, run_id: str) -> None:
        """Open a run above what is shown."""
        self.push_screen(RunScreen(self.session, run_id))

    def _to_bottom(self) -> None:
        while not isinstance(self.screen, InboxScreen):
            self.pop_screen()
