"""A run as lines of a terminal: one function per kind of event, and the model's words while it says them."""

from __future__ import annotations

import json
from typing import Any, Final

from turngate.cli import terminal
from turngate.client import SyncTurngateClient
from turngate.domain.conversation.messages import Delta
from turngate.domain.requests import RunStatus
from turngate.domain.text import json_text
from turngate.domain.text.folds import cut_line
from turngate.domain.text.sentences import counted
from turngate.domain.tools.defaults import in_one_line
from turngate.domain.tools.results import Failure
from turngate.text.plain_text import indented, plain, plain_line
from turngate.text.presentation import first_lines, on_one_line
from turngate.text.run_words import (
    STEERING,
    approval_words,
    context_words,
    dry_run_of,
    forked_from,
    handed_off,
    judgement_words,
    model_fell_back,
    model_switched,
    nudged,
    overrides,
    part_words,
    scheduled,
    steered,
    wait_words,
)
from turngate.wire.calls import CallView
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.runs import RunDetail, RunSummary, StepView
from turngate.wire.streamed import Streamed, as_deltas

AGENT_MARGIN: Final = "  │ "
"""Before every line that the agent wrote, so that none can pass for a line of Turngate's."""
RESULT_MARGIN: Final = "    ┊ "
"""The same for every line of a result."""
RESULT_LINES: Final = 10
"""How many lines of a result are printed at most. The page shows the rest."""
STATUS_STYLE: Final[dict[RunStatus, str]] = {"completed": "green", "failed": "red", "interrupted": "yellow"}
WAITING_FOR: Final = {
    "approval": "waits for approval",
    "question": "asks you",
    "outcome": "may or may not have happened",
}
VERB_WORDS: Final = {"approve": "approved", "edit": "edited and approved", "reject": "rejected", "respond": "answered"}


class RunLines:
    """Prints one run's events. Fetches the run again only when an event names something not seen yet.

    ``pages``: the address that links begin with.
    """

    def __init__(self, client: SyncTurngateClient, run: RunDetail, pages: str) -> None:
        self._client = client
        self._pages = pages
        self._run_id = run.id
        self._steps: dict[int, StepView] = {}
        self._calls: dict[str, CallView] = {}
        self._tool_of_request: dict[str, str] = {}
        self._shown_input: dict[str, str] = {}
        self.live = LiveText()
        self._answer_is_shown = False
        self._take(run)

    def show(self, event: EventView) -> None:
        """Print what this event means for a person. Some events mean nothing to a person and print nothing."""
        payload: dict[str, Any] = event.named_payload
        if event.type != "step.responded":
            self.live.break_line()
        match event.type:
            case "step.responded":
                self._show_step(int(payload["step"]), calls=int(payload["calls"]))
            case "request.opened":
                self._show_gate(str(payload["request_id"]), str(payload["tool_call_id"]), str(payload["kind"]))
            case "request.decided":
                self._show_decision(payload)
            case "request.expired" | "request.cancelled" | "request.superseded":
                how = event.type.removeprefix("request.")
                terminal.line(("  ✗ ", "yellow"), f"{self._tool(payload)}: the request {how}")
            case "request.approved_once" | "request.approval_withdrawn":
                terminal.line(("  ⇒ ", "magenta"), f"{self._tool(payload)}: {approval_words(event.type, payload)}")
            case "execution.started":
                self._show_call_start(payload)
            case "execution.finished" | "call.closed":
                self._show_call_end(str(payload["tool_call_id"]))
            case _:
                self._show_run_event(event.type, payload)

    def _show_run_event(self, kind: str, payload: dict[str, Any]) -> None:
        if kind.startswith("context."):
            terminal.line(("  ⇒ ", "magenta"), context_words(kind, payload))
            return
        match kind:
            case "run.started":
                self._show_start(payload)
            case "run.handed_off":
                terminal.line(("  ⇒ ", "magenta"), handed_off(payload))
            case "run.model_switched":
                terminal.line(("  ⇒ ", "magenta"), model_switched(payload))
            case "run.model_fell_back" | "run.nudged":
                terminal.line(("  ! ", "yellow"), nudged(payload) if kind == "run.nudged" else model_fell_back(payload))
            case _ if kind in STEERING:
                terminal.line(("  ⇒ ", "magenta"), steered(kind, payload))
            case "run.recovered":
                terminal.line(
                    ("  ⇒ ", "magenta"), f"recovered by {plain_line(str(payload['by']), 80)}: step {payload['step']}"
                )
            case "model.retrying" | "model.broke_off":
                self._show_model_failure(kind, payload)
            case "run.ended":
                self._show_end()
            case _:
                pass

    def _show_start(self, payload: dict[str, Any]) -> None:
        terminal.line((f"run {self._run_id}", "bold"), f"  agent {payload['agent']}, model {payload['model']}")
        if payload.get("schedule_id"):
            terminal.line(("  ⇒ ", "magenta"), scheduled(payload))
        if fork := payload.get("forked_from"):
            terminal.line(("  ⇒ ", "magenta"), forked_from(fork))
            terminal.line("    ", (f"{self._pages}/runs/{fork['run_id']}", "underline"))
        if record := payload.get("replay_of"):
            terminal.line(("  ⇒ ", "magenta"), dry_run_of(record))
        if own := payload.get("own"):
            terminal.line(("  ⇒ ", "magenta"), overrides(own))

    def show_progress(self, progress: ProgressView) -> None:
        """Print what a running tool says, in a line under its call."""
        self.live.break_line()
        call = self._call(progress.tool_call_id)
        name = plain_line(call.tool_name, 64) if call else "a tool"
        if progress.dropped:
            terminal.line("    ", (f"{name}: {progress.dropped:,} not shown", "dim"))
        text = (
            progress.payload if isinstance(progress.payload, str) else json.dumps(progress.payload, ensure_ascii=False)
        )
        terminal.line("    ", (f"{name}: ", "dim"), plain_line(text, terminal.width() - len(name) - 6))

    def _show_step(self, number: int, *, calls: int) -> None:
        step = self._steps.get(number)
        if step is None:
            self._refresh()
            step = self._steps.get(number)
        was_shown = self.live.finish(number, "" if step is None else step.text)
        self._answer_is_shown = was_shown and not calls
        if step is None or (not calls and step.corrective is None):  # the final answer, which is printed at the end
            return
        if not was_shown:
            terminal.line("")
            terminal.line((f"step {number}", "bold"))
        if step.text.strip() and not was_shown:
            terminal.line((indented(step.text.strip(), AGENT_MARGIN), "cyan"))
        if step.corrective is not None:
            terminal.line(("  ! ", "yellow"), "this response could not be used; the model gets this answer:")
            terminal.line((indented(step.corrective, RESULT_MARGIN), "dim"))

    def _show_gate(self, request_id: str, call_id: str, kind: str) -> None:
        call = self._call(call_id)
        name = call.tool_name if call else "a tool"
        self._tool_of_request[request_id] = name
        if call is not None:
            self._shown_input[call_id] = call.input
        # The arguments the request was opened with. A later edit has a line of its own, also in the watch of an old run.
        arguments = _input_of(call, edited=kind == "outcome")
        terminal.line(("  ⏸ ", "yellow"), (name, "bold"), f" {WAITING_FOR[kind]}: {arguments}")
        terminal.line("    ", (f"{self._pages}/requests/{request_id}", "underline"))

    def _show_decision(self, payload: dict[str, Any]) -> None:
        verb, by = str(payload["verb"]), plain_line(str(payload["by"]), 100)
        mark = ("  ✗ ", "red") if verb == "reject" else ("  ✓ ", "green")
        detail = self._client.get_request(str(payload["request_id"])).decision
        reason = f": {plain_line(detail.message, terminal.width())}" if detail and detail.message else ""
        outcome = f" ({str(payload['outcome']).replace('_', ' ')})" if payload.get("outcome") else ""
        terminal.line(mark, f"{self._tool(payload)} {VERB_WORDS[verb]}{outcome} by {by}{reason}")

    def _show_call_start(self, payload: dict[str, Any]) -> None:
        call_id, attempt, child = str(payload["tool_call_id"]), int(payload["attempt"]), payload.get("child_run_id")
        call = self._call(call_id)
        if call is None:
            return
        if (call.requests and call.edited_input is None) or payload.get("signal"):
            self._refresh()  # An edit may have come since, and what runs must be shown. Control calls come with the start.
            call = self._calls[call_id]
        runs = call.edited_input or call.input
        arguments = "" if self._shown_input.get(call_id) == runs else f" {_input_of(call)}"
        besides = in_one_line(call.defaults)
        again = f" (attempt {attempt})" if attempt > 1 else ""
        terminal.line(("  → ", "dim"), call.tool_name, (f"{arguments}{again}", "dim"))
        if besides:
            terminal.line("    ", (plain_line(besides), "yellow"))
        if call.verdict is not None and call.verdict.answer == "allow" and call.verdict.judged is not None:
            terminal.line(("    ⚖ ", "magenta"), "the judge ", judgement_words(call.verdict.judged))
        if child:
            terminal.line(("    ↳ ", "dim"), f"answered by its own run: {child}")
        if (wait := wait_words(call)) is not None:
            terminal.line(("    ⏲ ", "yellow"), wait)

    def _show_call_end(self, call_id: str) -> None:
        call = self._call(call_id, settled=True)
        if call is None or call.result is None:
            return
        name = plain_line(call.tool_name, 64)  # a model may call a tool that is not declared, by any name
        if call.recorded_call_id is not None:
            name += " (recorded)"
        if isinstance(call.result, Failure):
            reason = plain_line(call.result.reason, terminal.width() - len(name) - 20)
            terminal.line(("  ✗ ", "red"), f"{name} {plain_line(call.result.kind, 64)}: ", (reason, "dim"))
        else:
            _success(name, call)
        if call.in_part is not None:
            part = part_words(call.in_part, self._run_id, call.tool_call_id)
            terminal.line((RESULT_MARGIN, "dim"), (part, "yellow"))

    def _show_model_failure(self, kind: str, payload: dict[str, Any]) -> None:
        if kind == "model.broke_off":
            text = plain_line(str(payload["text"]), 300)
            terminal.line(("  ! ", "yellow"), "an unfinished answer, of which nothing ran: ", (text, "dim"))
            return
        wait = payload.get("retry_in_seconds")
        when = "again soon" if wait is None else f"again in {wait:g} s"
        message = plain_line(str(payload["message"]), 300)
        void = "; its words so far are void" if payload.get("shown") else ""
        terminal.line(
            ("  ! ", "yellow"),
            f"the model failed ({payload['error_class']}, attempt {payload['attempt']}){void}, {when}: {message}",
        )

    def _show_end(self) -> None:
        run = self._refresh()
        terminal.line("")
        terminal.line(ended_piece(run, "bold "), f" after {counted(run.step, 'step')}{_why(run)}")
        if run.final_text.strip() and not self._answer_is_shown:
            terminal.line((indented(run.final_text.strip(), AGENT_MARGIN), "cyan"))

    def _tool(self, payload: dict[str, Any]) -> str:
        request_id = str(payload["request_id"])
        if request_id not in self._tool_of_request:
            self._tool_of_request[request_id] = self._client.get_request(request_id).tool_name
        return self._tool_of_request[request_id]

    def _call(self, call_id: str, *, settled: bool = False) -> CallView | None:
        call = self._calls.get(call_id)
        if call is None or (settled and call.result is None):
            self._refresh()
        return self._calls.get(call_id)

    def _refresh(self) -> RunDetail:
        run = self._client.get_run(self._run_id)
        self._take(run)
        return run

    def _take(self, run: RunDetail) -> None:
        for step in run.steps:
            self._steps[step.step] = step
            for call in step.calls:
                self._calls[call.tool_call_id] = call


def _success(name: str, call: CallView) -> None:
    presentation = call.presentation or ()
    mark = ("  ! ", "yellow") if call.warning else ("  ✓ ", "green")
    if (one_line := on_one_line(presentation)) is not None:
        terminal.line(mark, f"{name} ", (cut_line(one_line, terminal.width() - len(name) - 6), "dim"))
        return
    terminal.line(mark, name)
    for piece in first_lines(presentation, RESULT_LINES):
        text, style = (piece, "") if isinstance(piece, str) else piece
        terminal.line((RESULT_MARGIN, "dim"), (cut_line(text, terminal.width() - len(RESULT_MARGIN)), style or "dim"))


def _input_of(call: CallView | None, *, edited: bool = True) -> str:
    """Return the arguments on one line. ``edited``: the edited ones, once there are any."""
    if call is None:
        return ""
    raw = (call.edited_input if edited else None) or call.input
    parsed = json_text.parse(raw)
    text = raw if parsed is None or parsed.doubled else json_text.dump(parsed.tree)
    return plain_line(text, terminal.width() - len(call.tool_name) - 25)


def ended_piece(run: RunSummary, style: str = "") -> tuple[str, str]:
    """Return a run's status to be printed. Of an interrupted run it names who interrupted it."""
    status = run.how_it_ended if run.status == "interrupted" else run.status
    return plain_line(status or run.status, 120), f"{style}{STATUS_STYLE.get(run.status, '')}"


def _why(run: RunDetail) -> str:
    error = f" ({plain_line(run.how_it_ended or run.error_class, 120)})" if run.status == "failed" else ""
    reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
    return f"{error}{reason}"


TEXT_MARGIN: Final = "  │ "
REASONING_MARGIN: Final = "  ┆ "
LONGEST_NAME: Final = 64


class LiveText:
    """Prints a response of one run while the model writes it, each line after a margin that no word can leave."""

    def __init__(self) -> None:
        self._response = Streamed()
        self._printed_step = 0
        self._part: int | None = None
        self._held = ""
        self._line_is_open = False

    def show(self, news: DeltaView) -> None:
        """Print what is new."""
        had_words = self._printed_step == news.step and bool(self._response.parts)
        attempt = self._response.attempt
        if not self._response.take(news):
            return
        if self._printed_step != news.step:
            self.break_line()
            terminal.line("")
            terminal.line((f"step {news.step}", "bold"))
        elif news.reset is not None or news.attempt != attempt:
            self.break_line()
            if had_words:
                terminal.line(("  ! ", "yellow"), f"the words so far are void: {plain_line(self._response.void, 300)}")
        self._printed_step = news.step
        for delta in news.deltas:
            self._show(delta)

    def break_line(self) -> None:
        """End the line that was begun, because something else is printed next."""
        if self._line_is_open:
            terminal.piece("\n")
        self._line_is_open, self._part, self._held = False, None, ""

    def finish(self, step: int, text: str) -> bool:
        """Print what is missing of a step's stored text; False when nothing of the step was printed."""
        if step != self._printed_step:
            return False
        whole = as_deltas(reasoning="", text=text)
        missing = self._response.missing(whole)
        if missing is None:
            self.break_line()
        for delta in whole if missing is None else missing:
            self._show(delta)
        self.break_line()
        self._response.forget()
        self._printed_step = 0
        return True

    def _show(self, delta: Delta) -> None:
        if delta.part != self._part:
            self.break_line()
            self._part = delta.part
        if delta.kind == "tool-call":
            if delta.tool_name:
                terminal.line(("  … ", "dim"), (f"calls {plain_line(delta.tool_name, LONGEST_NAME)}", "dim"))
        elif delta.kind == "reasoning":
            self._print_words(delta.text, REASONING_MARGIN, "dim")
        else:
            self._print_words(delta.text, TEXT_MARGIN, "cyan")

    def _print_words(self, text: str, margin: str, style: str) -> None:
        """Print a piece of a part. White space at its end is held back until something follows it."""
        text = self._held + text
        words = text.rstrip()
        self._held = text[len(words) :]
        if not self._line_is_open:
            words = words.lstrip()
        for place, line in enumerate(plain(words).split("\n") if words else []):
            if place:
                terminal.piece("\n")
                self._line_is_open = False
            if not self._line_is_open:
                terminal.piece(margin, style)
                self._line_is_open = True
            terminal.piece(line, style)
