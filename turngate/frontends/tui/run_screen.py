"""One run: its steps as they happen, what the model says while it says it, and the keys that steer it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.timer import Timer
from textual.widgets import Static

from turngate.domain.errors import TurngateError, UnavailableError
from turngate.frontends.tui.dialogs import AskDialog, ConfirmDialog, TextDialog
from turngate.frontends.tui.form_dialog import FormDialog, FormSpec
from turngate.frontends.tui.form_model import Draft
from turngate.frontends.tui.problems import problem_words, problems_of
from turngate.frontends.tui.run_forms import FIELD_OF, fork_form, message_form, retry_form
from turngate.frontends.tui.run_text import (
    LiveText,
    explanation_text,
    head_text,
    status_piece,
    step_text,
    tail_text,
)
from turngate.frontends.tui.screens import LiveScreen
from turngate.frontends.tui.session import Sent, Session
from turngate.frontends.tui.texts import at, folded, line, plain_line
from turngate.frontends.tui.widgets import ScrolledText
from turngate.text.fork_plan import plan_lines
from turngate.wire.events import DeltaView, EventView
from turngate.wire.orders import ForkOrder
from turngate.wire.runs import RunDetail, RunSummary

DRAW_SECONDS: Final = 0.05
"""Between two drawings of what the model says: its words may come hundreds a second."""
RETRY_SECONDS: Final = 2.0


class RunScreen(LiveScreen):
    """Follows one run from its beginning until it has ended, and steers it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "hold", "Pause, resume"),
        Binding("m", "message", "Message"),
        Binding("s", "switch_model", "Another model"),
        Binding("i", "interrupt", "Interrupt"),
        Binding("t", "retry", "Retry"),
        Binding("f", "fork", "Fork"),
        Binding("w", "why", "Why"),
        Binding("o", "open_request", "What it waits for"),
    ]

    def __init__(self, session: Session, run_id: str) -> None:
        super().__init__(session)
        self.run_id = run_id
        self.run_view: RunDetail | None = None
        self.live_text = LiveText()
        self._steps: dict[int, tuple[object, Static]] = {}
        self._drawing: Timer | None = None

    def middle(self) -> ComposeResult:
        """Draw the timeline."""
        yield ScrolledText(
            Static(Text(), id="head"), Vertical(id="steps"), Static(Text(), id="live"), Static(Text(), id="tail")
        )

    def on_mount(self) -> None:
        """Follow the run; a live one stays at its newest line until the person scrolls."""
        self.query_one(ScrolledText).focus()
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        """Follow events, words and progress. Where it broke off for good, it begins again: steps are drawn once each."""
        after: int | None = None
        while True:
            try:
                async for event in self.client.follow_events(self.run_id, after=after, with_deltas=True):
                    if isinstance(event, EventView):
                        after = event.seq
                        self.refresher.ask()
                    elif event.run_id == self.run_id:
                        if isinstance(event, DeltaView):
                            self.live_text.response.take(event)
                        else:
                            self.live_text.take_progress(event)
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
            self.live_text.forget(max((step.step for step in run.steps), default=0))
            self._draw()

    def _draw_soon(self) -> None:
        if self._drawing is None:
            self._drawing = self.set_timer(DRAW_SECONDS, self._draw)

    def _draw(self) -> None:
        self._drawing = None
        run = self.run_view
        if run is None or not self.is_drawn:
            return
        reading = self.query_one(ScrolledText)
        # Textual's own anchor leaves short content at the lower edge.
        is_at_end = reading.scroll_y >= reading.max_scroll_y - 1
        self.title_line(
            line(("Run  ", "bold"), (plain_line(run.agents, 40), "bold"), "  ", status_piece(run), f"  {run.id}")
        )
        self.keys_line(self._keys(run))
        self.query_one("#head", Static).update(head_text(run))
        for step in run.steps:
            progress = tuple(
                self.live_text.progress_of(call.tool_call_id) for call in step.calls if call.result is None
            )
            drawn, widget = self._steps[step.step]
            if drawn != (step, progress):
                widget.update(step_text(step, self.live_text))
                self._steps[step.step] = ((step, progress), widget)
        self.query_one("#live", Static).update(folded(self.live_text.lines()))
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

    def action_open_request(self) -> None:
        """Open the first request that the run waits for."""
        run = self.run_view
        calls = [] if run is None else [call for step in run.steps for call in step.calls]
        waiting = [call.request.id for call in calls if call.request is not None and call.request.status == "pending"]
        if waiting:
            self.session.navigator.open_request(waiting[0], order=waiting)
        else:
            self.say("It does not wait for a person.")

    def action_hold(self) -> None:
        """Pause the run, or resume it. Nothing is lost by either."""
        if (run := self._live()) is not None:
            self.run_worker(self._hold(run))

    async def _hold(self, run: RunDetail) -> None:
        try:
            if run.paused_at:
                await self.client.resume(run.id)
                self.say("Resumed.")
            else:
                await self.client.pause(run.id)
                self.say("Paused: what runs may finish; nothing new starts.")
        except TurngateError as error:
            self.say(problem_words(error), is_bad=True)
        self.refresher.ask()

    def action_interrupt(self) -> None:
        """Interrupt the run, after asking: what it does now is stopped."""
        if (run := self._live()) is None:
            return

        async def send(reason: str) -> Sent:
            return await self._steered(lambda: self.client.interrupt(run.id, reason=reason), "It was asked to stop.")

        lead = (
            "What runs is stopped, what waits is closed, and the run ends. Say why (it may be empty); Enter interrupts."
        )
        self.app.push_screen(AskDialog("Interrupt this run?", lead, send, pasteable=False), self._sent)

    def action_switch_model(self) -> None:
        """Let another model answer the run's next request."""
        if (run := self._live()) is not None:
            self.run_worker(self._switch_model(run))

    async def _switch_model(self, run: RunDetail) -> None:
        try:
            names = [each.name for each in await self.client.list_models()]
        except TurngateError:
            names = []  # a user who knows a name can type it

        async def send(model: str) -> Sent:
            act = partial(self.client.switch_model, run.id, model.strip())
            return await self._steered(act, "The next request goes to it.")

        known = f" There are: {', '.join(plain_line(name, 60) for name in names)}." if names else ""
        lead = f"Now {plain_line(run.model, 80)}. Give a profile's name, or provider:name.{known}"
        check = partial(_or_complaint, "Say which, or leave with Escape.")
        self.app.push_screen(AskDialog("Another model", lead, send, check=check), self._sent)

    def action_message(self) -> None:
        """Send the run a message, and say when it is read."""
        if (run := self._known()) is None:
            return

        async def send(form: dict[str, Any]) -> Sent:
            text, when = form["message"], form.get("the agent reads it")
            key = self.session.id_of("message", run.id, text, when)

            def act() -> Awaitable[RunSummary]:
                return self.client.send_message(run.id, text, while_running=when, idempotency_key=key)

            return await self._steered(act, "Sent.")

        self._ask("message", message_form(run, send))

    def action_retry(self) -> None:
        """Continue where the run ended, with no new message."""
        if (run := self._known()) is None:
            return
        if run.status not in {"failed", "interrupted"}:
            self.say("Only a run that failed or was interrupted is retried.")
            return

        async def send(form: dict[str, Any]) -> Sent:
            model = form["model"].strip() or None
            key = self.session.id_of("retry", run.id, model)
            act = partial(self.client.retry_run, run.id, model=model, idempotency_key=key)
            return await self._steered(act, "It continues in the run shown here.")

        self._ask("retry", retry_form(run, send))

    def action_fork(self) -> None:
        """Continue from a closed step in a conversation of its own."""
        if (run := self._known()) is None:
            return
        if not any(step.closed_at for step in run.steps):
            self.say("There is no closed step to continue from.")
            return
        self.run_worker(self._fork(run))

    async def _fork(self, run: RunDetail) -> None:
        try:
            agents = await self.client.list_agents()
        except TurngateError as error:
            self.say(problem_words(error), is_bad=True)
            return

        async def send(form: dict[str, Any]) -> Sent:
            order = ForkOrder(
                text=form["text"],
                step=int(form["step"]),
                agent=form.get("agent"),
                model=form["model"].strip() or None,
                summarise="past" in form,
            )
            try:
                preview = await self.client.preview_fork(run.id, order.model_copy(update={"text": ""}))
            except TurngateError as error:
                return Sent(taken=False, words=problem_words(error), problems=problems_of(error))
            plan = folded(at("", *pieces) for pieces in plan_lines(preview))
            key = self.session.id_of("fork", run.id, order.members())
            act = partial(self.client.fork_run, run.id, order, idempotency_key=key)
            start = partial(self._steered, act, "It continues in the run shown here.")
            confirmed = await self.app.push_screen_wait(ConfirmDialog("start the fork", plan, start))
            return confirmed or Sent(taken=False, words="Not started.")

        self._ask("fork", fork_form(run, agents, send))

    def _ask(self, what: str, spec: FormSpec) -> None:
        forms, key = self.session.forms, (self.run_id, what)

        def done(sent: Sent | None) -> None:
            if sent is not None:
                forms.pop(key, None)
            self._sent(sent)

        draft = forms.get(key) or Draft()
        self.app.push_screen(FormDialog(spec, draft.copy(), partial(forms.__setitem__, key)), done)

    async def _steered(self, act: Callable[[], Awaitable[RunSummary]], words: str) -> Sent:
        try:
            run = await act()
        except UnavailableError as error:
            words = "It may not have arrived. Send it again: the same counts once."
            return Sent(taken=False, words=f"{words} ({problem_words(error)})")
        except TurngateError as error:
            places = [
                {**each, "pointer": FIELD_OF.get(each["pointer"], each["pointer"])} for each in problems_of(error)
            ]
            return Sent(taken=False, words=problem_words(error), problems=places)
        return Sent(taken=True, words=words, run_id=run.id)

    def _sent(self, sent: Sent | None) -> None:
        if sent is not None and sent.run_id is not None and sent.run_id != self.run_id:
            self.session.navigator.open_run(sent.run_id)
        elif sent is not None:
            self.say(sent.words)
        self.refresher.ask()

    def _known(self) -> RunDetail | None:
        if self.run_view is None:
            self.say("One moment: this run is still being looked up.")
        return self.run_view

    def _live(self) -> RunDetail | None:
        run = self._known()
        if run is not None and run.status != "running":
            self.say("This run has ended.")
            return None
        return run

    def action_why(self) -> None:
        """Say why the run ended as it did, or what it waits for."""
        self.run_worker(self._why())

    async def _why(self) -> None:
        try:
            explanation = await self.client.explain_run(self.run_id)
        except TurngateError as error:
            self.say(problem_words(error), is_bad=True)
            return
        self.app.push_screen(TextDialog("Why", explanation_text(explanation)))


def _or_complaint(complaint: str, text: str) -> str | None:
    return None if text.strip() else complaint
