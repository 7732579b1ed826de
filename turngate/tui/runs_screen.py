"""The runs, newest first, live."""

from __future__ import annotations

from typing import Final

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from turngate.tui.inbox_screen import Rows
from turngate.tui.run_screen import RunScreen
from turngate.tui.run_text import summary_text
from turngate.tui.screens import LiveScreen
from turngate.tui.session import Session
from turngate.tui.texts import line
from turngate.wire.events import EventView
from turngate.wire.runs import RunSummary

SHOWN: Final = 100


class RunsScreen(LiveScreen):
    """A list of runs; Enter opens one."""

    KEYS = "j k move  Enter open  1 inbox  F5 look again  u back  ? help  q quit"

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.runs: list[RunSummary] = []

    def middle(self) -> ComposeResult:
        """Draw the list, and what stands in place of an empty one."""
        yield Rows(id="rows", markup=False)
        yield Static(Text(), id="empty")

    def on_mount(self) -> None:
        """Let the keys move."""
        self.query_one(Rows).focus()

    def told(self, event: EventView) -> None:
        """Look again when a run may stand otherwise."""
        if event.type.startswith(("run.", "step.")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the newest runs."""
        self.runs = (await self.client.list_runs(limit=SHOWN)).items
        self._draw()

    def on_resize(self) -> None:
        """Cut lines to the new width."""
        self._draw()

    def _draw(self) -> None:
        if not self.is_drawn:
            return
        width = max(20, self.size.width - 4)
        self.query_one(Rows).fill([Option(summary_text(run, width), id=run.id) for run in self.runs])
        live = sum(run.status == "running" for run in self.runs)
        newest = f"the newest {SHOWN}, " if len(self.runs) == SHOWN else f"{len(self.runs)}, "
        self.title_line(line(("Runs  ", "bold"), f"{newest}{live} live"))
        empty = self.query_one("#empty", Static)
        empty.display = not self.runs
        empty.update(line("There are no runs. Start one with `turngate run`."))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a run."""
        event.stop()
        if event.option_id is not None:
            self.app.push_screen(RunScreen(self.session, event.option_id))
