"""The list of runs, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.text import Text

from turngate.frontends.tui.run_text import summary_text
from turngate.frontends.tui.screens import ListScreen
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.texts import line
from turngate.wire.events import EventView
from turngate.wire.runs import RunSummary

MAX_RUNS: Final = 100
"""Most runs that are listed: the newest."""


class RunsScreen(ListScreen):
    """A list of runs; Enter opens one."""

    KEYS = "Enter open  1 inbox  3 grants  F5 look again  u back  ? keys  q quit"
    EMPTY = "There are no runs. Start one with `turngate run`."

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.runs: list[RunSummary] = []

    def take_event(self, event: EventView) -> None:
        """Look again when a run may have changed."""
        if event.type.startswith(("run.", "step.")):
            self.refresher.ask()

    async def look(self) -> None:
        """Read the newest runs."""
        self.runs = (await self.client.list_runs(limit=MAX_RUNS)).items
        self.looked()

    def rows(self, width: int) -> Iterable[tuple[str, Text]]:
        """Return the runs."""
        return ((run.id, summary_text(run, width)) for run in self.runs)

    def heading(self) -> Text:
        """Return how many there are."""
        live = sum(run.status == "running" for run in self.runs)
        newest = f"the newest {MAX_RUNS}, " if len(self.runs) == MAX_RUNS else f"{len(self.runs)}, "
        return line(("Runs  ", "bold"), f"{newest}{live} live")

    def open(self, row_id: str) -> None:
        """Open a run."""
        self.session.navigator.open_run(row_id)
