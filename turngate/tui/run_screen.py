"""One run: its steps as they happen, what the model says while it says it, and the keys that steer it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static

from turngate.domain.errors import TurngateError, UnavailableError
from turngate.tui.dialogs import AskDialog
from turngate.tui.reading import Reading
from turngate.tui.request_screen import RequestScreen
from turngate.tui.run_text import head_text, status_piece, step_text, tail_text
from turngate.tui.screens import LiveScreen
from turngate.tui.session import Sent, Session, problem_words
from turngate.tui.spoken import Spoken
from turngate.tui.texts import folded, line, plain_line
from turngate.wire.events import DeltaView, EventView
from turngate.wire.runs import RunDetail

DRAW_SECONDS: Final = 0.05
"""Between two drawings of what the model says: its words may come hundreds a second."""
RETRY_SECONDS: Final = 2.0


class RunScreen(LiveScreen):
    """Follows one run, from its beginning, until it has ended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "hold", "Pause, resume"),
        Binding("m", "message", "Message"),
        Binding("i", "interrupt", "Interrupt"),
        Binding("o", "open_request", "What it waits for"),
    ]

    def __init__(self, session: Session, run_id: str) -> None:
        super().__init__(session)
        self.run_id = run_id
        self.run_view: RunDetail | None = None
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
        live = ["p resume" if run.paused_at else "p pause", "m message", "i interrupt", "o request"]
        return "  ".join(
            ["j k scroll", *(live if run.status == "running" else ["m message"]), "u back", "? help", "q quit"]
        )

    def action_hold(self) -> None:
        """Hold the run, or let it go on. Nothing is lost by either."""
        if self._live() is not None:
            self.run_worker(self._hold())

    async def _hold(self) -> None:
        run = self.run_view
        if run is None:
            return
        try:
            if run.paused_at:
                await self.client.resume(run.id)
                self.say("It goes on.")
            else:
                await self.client.pause(run.id)
                self.say("It is held: what runs goes on to its end, nothing new starts.")
        except TurngateError as error:
            self.say(problem_words(error), is_bad=True)
        self.refresher.ask()

    def action_interrupt(self) -> None:
        """Interrupt the run, after asking: what it does now is stopped."""
        if (run := self._live()) is None:
            return

        async def send(reason: str) -> Sent:
            return await _steered(lambda: self.client.interrupt(run.id, reason=reason), "It is told to stop.")

        self.app.push_screen(
            AskDialog(
                "Interrupt this run?",
                "What runs is stopped, what waits is closed, and the run ends. Say why (it may be empty); Enter interrupts.",
                send,
                pasteable=False,
            ),
            self._sent,
        )

    def action_message(self) -> None:
        """Send the run a message, as its agent declares what becomes of one."""
        run = self.run_view
        if run is None:
            return
        key = (run.id, "message")

        def keep(text: str) -> None:
            self.session.drafts[key] = text

        async def send(text: str) -> Sent:
            keep(text)
            sent = await _steered(lambda: self.client.send_message(run.id, text), "Sent.")
            if sent.taken:
                self.session.drafts.pop(key, None)
            return sent

        lead = "Its agent says what becomes of it: read before the next step, or in a run of its own."
        self.app.push_screen(
            AskDialog(
                "Message to the run",
                lead if run.status == "running" else "It starts the next run of this conversation.",
                send,
                text=self.session.drafts.get(key, ""),
                many=True,
                check=lambda text: None if text.strip() else "Say something, or leave with Escape.",
                on_leave=keep,
            ),
            self._sent,
        )

    def _sent(self, sent: Sent | None) -> None:
        if sent is not None:
            self.say(sent.words)
        self.refresher.ask()

    def _live(self) -> RunDetail | None:
        if self.run_view is not None and self.run_view.status != "running":
            self.say("This run has ended.")
            return None
        return self.run_view

    def action_open_request(self) -> None:
        """Open the first request that the run waits for."""
        run = self.run_view
        calls = [] if run is None else [call for step in run.steps for call in step.calls]
        waiting = [call.request.id for call in calls if call.request is not None and call.request.status == "pending"]
        if waiting:
            self.app.push_screen(RequestScreen(self.session, waiting[0], order=waiting))
        else:
            self.say("It waits for nobody.")


async def _steered(send: Callable[[], object], words: str) -> Sent:
    try:
        await send()  # type: ignore[misc]
    except TurngateError as error:
        return Sent(taken=False, words=problem_words(error))
    return Sent(taken=True, words=words)
