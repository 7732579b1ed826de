"""The runs, newest first, live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from turngate.frontends.tui.list_screen import ListScreen
from turngate.frontends.tui.run_screen import RunScreen
from turngate.frontends.tui.run_text import summary_text
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import line
from turngate.wire.events import EventView
from turngate.wire.runs import RunSummary

SHOWN: Final = 100


class RunsScreen(ListScreen):
    """A list of runs; Enter opens one."""

    KEYS = "Enter open  1 inbox  3 grants  F5 look again  u back  ? keys  q quit"
    EMPTY = "There are no runs. Start one with `turngate run`."

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.runs: list[RunSummary] = []

    def told(self, event: EventView) -> None:
        """Look again when a run may stand otherwise."""
        if event.type.startswith(("run.", "step.")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the newest runs."""
        self.runs = (await self.client.list_runs(limit=SHOWN)).items
        self.looked()

    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return the runs."""
        return ((run.id, summary_text(run, width)) for run in self.runs)

    def heading(self) -> Text:
        """Return how many there are."""
        live = sum(run.status == "running" for run in self.runs)
        newest = f"the newest {SHOWN}, " if len(self.runs) == SHOWN else f"{len(self.runs)}, "
        return line(("Runs  ", "bold"), f"{newest}{live} live")

    def open(self, row_id: str) -> None:
        """Open a run."""
        self.app.push_screen(RunScreen(self.session, row_id))
