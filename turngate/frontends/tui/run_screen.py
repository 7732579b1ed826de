"""One run: its steps as they happen, what the model says while it says it, and the keys that steer it."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static

from turngate.domain.errors import TurngateError, UnavailableError
from turngate.frontends.tui.reading import Reading
from turngate.frontends.tui.request_screen import RequestScreen
from turngate.frontends.tui.run_moves import RunMoves
from turngate.frontends.tui.run_text import head_text, status_piece, step_text, tail_text
from turngate.frontends.tui.session import Session
from turngate.frontends.tui.spoken import Spoken
from turngate.frontends.tui.texts import folded, line, plain_line
from turngate.wire.events import DeltaView, EventView
from turngate.wire.runs import RunDetail

DRAW_SECONDS: Final = 0.05
"""Between two drawings of what the model says: its words may come hundreds a second."""
RETRY_SECONDS: Final = 2.0


class RunScreen(RunMoves):
    """Follows one run, from its beginning, until it has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open_request", "What it waits for")]

    def __init__(self, session: Session, run_id: str) -> None:
        super().__init__(session, run_id)
        self.spoken = Spoken()
        self._steps: dict[int, tuple[object, Static]] = {}
        self._drawing: Timer | None = None

    def middle(self) -> ComposeResult:
        """Draw the timeline."""
        yield Reading(
            Static(Text(), id="head"), Vertical(id="steps"), Static(Text(), id="live"), Static(Text(), id="tail")
        )

    def on_mount(self) -> None:
        """Follow the run; a live one stays at its newest line until the person scrolls."""
        self.query_one(Reading).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        """Follow events, words and progress. Where it broke off for good, it begins anew: steps are drawn once each."""
        after: int | None = None
        while True:
            try:
                async for told in self.client.follow_events(self.run_id, after=after, with_deltas=True):
                    if isinstance(told, EventView):
                        after = told.seq
                        self.refresher.ask()
                    elif told.run_id == self.run_id:
                        self.spoken.take(told) if isinstance(told, DeltaView) else self.spoken.take_progress(told)
                        self._draw_soon()
            except UnavailableError:
                await asyncio.sleep(RETRY_SECONDS)
            except TurngateError as error:
                self.failed(error)
                return
            else:
                self.refresher.ask()
                return

    async def look(self) -> None:
        """Read the run and draw what is new of it."""
        run = await self.client.get_run(self.run_id)
        with self.app.batch_update():  # Said and stored words change places at once: neither twice nor gone between.
            fresh = {step.step: Static() for step in run.steps if step.step not in self._steps}
            await self.query_one("#steps", Vertical).mount_all(fresh.values())
            self._steps.update({step: (None, widget) for step, widget in fresh.items()})
            self.run_view = run
            self.spoken.forget(max((step.step for step in run.steps), default=0))
            self._draw()

    def _draw_soon(self) -> None:
        if self._drawing is None:
            self._drawing = self.set_timer(DRAW_SECONDS, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        run = self.run_view
        if run is None or not self.is_drawn:
            return
        reading = self.query_one(Reading)
        # Textual's own anchor leaves short content at the lower edge.
        is_at_end = reading.scroll_y >= reading.max_scroll_y - 1
        self.title_line(
            line(("Run  ", "bold"), (plain_line(run.agents, 40), "bold"), "  ", status_piece(run), f"  {run.id}")
        )
        self.keys_line(self._keys(run))
        self.query_one("#head", Static).update(head_text(run))
        for step in run.steps:
            progress = tuple(self.spoken.progress_of(call.tool_call_id) for call in step.calls if call.result is None)
            drawn, widget = self._steps[step.step]
            if drawn != (step, progress):
                widget.update(step_text(step, self.spoken))
                self._steps[step.step] = ((step, progress), widget)
        self.query_one("#live", Static).update(folded(self.spoken.lines()))
        self.query_one("#tail", Static).update(tail_text(run))
        if is_at_end and run.status == "running":
            self.call_after_refresh(reading.scroll_end, animate=False)

    @staticmethod
    def _keys(run: RunDetail) -> str:
        if run.status == "running":
            held = "p resume" if run.paused_at else "p pause"
            own = [held, "m message", "i interrupt", "s model", "o request", "w why"]
        else:
            again = ["t retry"] if run.status != "completed" else []
            own = ["m message", *again, "f fork", "w why"]
        return "  ".join([*own, "u back", "? keys"])

    def opened(self, run_id: str) -> None:
        """Show another run, which was started from here."""
        self.app.push_screen(RunScreen(self.session, run_id))

    def action_open_request(self) -> None:
        """Open the first request that the run waits for."""
        run = self.run_view
        calls = [] if run is None else [call for step in run.steps for call in step.calls]
        waiting = [call.request.id for call in calls if call.request is not None and call.request.status == "pending"]
        if waiting:
            self.app.push_screen(RequestScreen(self.session, waiting[0], order=waiting))
        else:
            self.say("It waits for nobody.")
