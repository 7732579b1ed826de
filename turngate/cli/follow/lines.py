"""A run as lines on the terminal: one function per kind of event, from what the API says about the run."""

from __future__ import annotations

import json
from typing import Any, Final

from turngate.cli import terminal
from turngate.client import SyncTurngateClient
from turngate.domain.conversation.messages import Delta
from turngate.domain.requests import RunStatus
from turngate.domain.text import json_text
from turngate.domain.tools.results import Failure
from turngate.text.plain_text import clipped, indented, plain, plain_line
from turngate.text.presentation import first_lines, on_one_line
from turngate.text.run_words import (
    context_said,
    forked_from,
    handed_off,
    in_part_said,
    judged_said,
    model_fell_back,
    model_switched,
    nudged,
    own_world,
    replay_of,
    scheduled,
    steered,
    wait_said,
)
from turngate.wire.calls import CallView
from turngate.wire.events import DeltaView, EventView, ProgressView
from turngate.wire.runs import RunDetail, RunSummary, StepView

AGENT_MARGIN: Final = "  │ "
"""Before every line that the agent wrote: no line of it can pass for one of ours."""
RESULT_MARGIN: Final = "    ┊ "
"""The same for every line of a result."""
RESULT_LINES: Final = 10
"""Most lines of one result: the page shows the rest."""
STATUS_STYLE: Final[dict[RunStatus, str]] = {"completed": "green", "failed": "red", "interrupted": "yellow"}
WAITING_FOR: Final = {
    "approval": "waits for approval",
    "question": "asks you",
    "outcome": "may or may not have happened",
}
VERB_SAID: Final = {"approve": "approved", "edit": "edited and approved", "reject": "rejected", "respond": "answered"}


class RunLines:
    """Prints one run's events. Fetches the run again only when an event speaks of something not seen yet."""

    def __init__(self, client: SyncTurngateClient, run: RunDetail) -> None:
        self._client = client
        self._run_id = run.id
        self._steps: dict[int, StepView] = {}
        self._calls: dict[str, CallView] = {}
        self._tool_of_request: dict[str, str] = {}
        self._shown_input: dict[str, str] = {}
        self.live = LiveText()
        self._answer_is_shown = False
        self._take(run)

    def show(self, event: EventView) -> None:
        """Print what this event means for a person; events that mean nothing to them print nothing."""
        said: dict[str, Any] = event.payload
        if event.type != "step.responded":
            self.live.break_line()
        match event.type:
            case "step.responded":
                self._step(int(said["step"]), calls=int(said["calls"]))
            case "request.opened":
                self._gate(str(said["request_id"]), str(said["tool_call_id"]), str(said["kind"]))
            case "request.decided":
                self._decided(said)
            case "request.expired" | "request.cancelled" | "request.superseded":
                how = event.type.removeprefix("request.")
                terminal.line(("  ✗ ", "yellow"), f"{self._tool(said)}: the request {how}")
            case "execution.started":
                self._started(said)
            case "execution.finished" | "call.closed":
                self._ended(str(said["tool_call_id"]))
            case _:
                self._about_the_run(event.type, said)

    def _about_the_run(self, kind: str, said: dict[str, Any]) -> None:
        if kind.startswith("context."):
            terminal.line(("  ⇒ ", "magenta"), context_said(kind, said))
            return
        match kind:
            case "run.started":
                self._begun(said)
            case "run.handed_off":
                terminal.line(("  ⇒ ", "magenta"), handed_off(said))
            case "run.model_switched":
                terminal.line(("  ⇒ ", "magenta"), model_switched(said))
            case "run.model_fell_back" | "run.nudged":
                terminal.line(("  ! ", "yellow"), nudged(said) if kind == "run.nudged" else model_fell_back(said))
            case "run.paused" | "run.resumed" | "message.queued" | "message.taken" | "budget.used_up":
                terminal.line(("  ⇒ ", "magenta"), steered(kind, said))
            case "run.recovered":
                terminal.line(
                    ("  ⇒ ", "magenta"), f"recovered by {plain_line(str(said['by']), 80)}: step {said['step']}"
                )
            case "model.retrying":
                self._retrying(said)
            case "run.ended":
                self._end()
            case _:
                pass

    def _begun(self, said: dict[str, Any]) -> None:
        terminal.line((f"run {self._run_id}", "bold"), f"  agent {said['agent']}, model {said['model']}")
        if said.get("schedule_id"):
            terminal.line(("  ⇒ ", "magenta"), scheduled(said))
        if fork := said.get("forked_from"):
            terminal.line(("  ⇒ ", "magenta"), forked_from(fork))
            terminal.line("    ", (f"{self._client.url}/runs/{fork['run_id']}", "underline"))
        if record := said.get("replay_of"):
            terminal.line(("  ⇒ ", "magenta"), replay_of(record))
        if own := said.get("own"):
            terminal.line(("  ⇒ ", "magenta"), own_world(own))

    def show_progress(self, said: ProgressView) -> None:
        """Print what a running tool says, in a line under its call."""
        self.live.break_line()
        call = self._call(said.tool_call_id)
        name = plain_line(call.tool_name, 64) if call else "a tool"
        if said.dropped:
            terminal.line("    ", (f"{name}: {said.dropped:,} not shown", "dim"))
        text = said.payload if isinstance(said.payload, str) else json.dumps(said.payload, ensure_ascii=False)
        terminal.line("    ", (f"{name}: ", "dim"), plain_line(text, terminal.width() - len(name) - 6))

    def _step(self, number: int, *, calls: int) -> None:
        step = self._steps.get(number)
        if step is None:
            self._refresh()
            step = self._steps.get(number)
        shown = self.live.finish(number, "" if step is None else step.text)
        self._answer_is_shown = shown and not calls
        if step is None or (not calls and step.corrective is None):  # the final answer, which is printed at the end
            return
        if not shown:
            terminal.line("")
            terminal.line((f"step {number}", "bold"))
        if step.text.strip() and not shown:
            terminal.line((indented(step.text.strip(), AGENT_MARGIN), "cyan"))
        if step.corrective is not None:
            terminal.line(("  ! ", "yellow"), "nothing could be made of this response; the model is told:")
            terminal.line((indented(step.corrective, RESULT_MARGIN), "dim"))

    def _gate(self, request_id: str, call_id: str, kind: str) -> None:
        call = self._call(call_id)
        name = call.tool_name if call else "a tool"
        self._tool_of_request[request_id] = name
        if call is not None:
            self._shown_input[call_id] = call.input
        # What was asked about; an edit that came later, and is known when an old run is watched, has a line of its own.
        asked = _input_of(call, edited=kind == "outcome")
        terminal.line(("  ⏸ ", "yellow"), (name, "bold"), f" {WAITING_FOR[kind]}: {asked}")
        terminal.line("    ", (f"{self._client.url}/requests/{request_id}", "underline"))

    def _decided(self, said: dict[str, Any]) -> None:
        verb, by = str(said["verb"]), plain_line(str(said["by"]), 100)
        mark = ("  ✗ ", "red") if verb == "reject" else ("  ✓ ", "green")
        detail = self._client.get_request(str(said["request_id"])).decision
        reason = f": {plain_line(detail.message, terminal.width())}" if detail and detail.message else ""
        outcome = f" ({str(said['outcome']).replace('_', ' ')})" if said.get("outcome") else ""
        terminal.line(mark, f"{self._tool(said)} {VERB_SAID[verb]}{outcome} by {by}{reason}")

    def _started(self, said: dict[str, Any]) -> None:
        call_id, attempt, child = str(said["tool_call_id"]), int(said["attempt"]), said.get("child_run_id")
        call = self._call(call_id)
        if call is None:
            return
        if (call.requests and call.edited_input is None) or said.get("signal"):
            self._refresh()  # An edit may have come since: what runs is what must be shown. Signals come with the start.
            call = self._calls[call_id]
        runs = call.edited_input or call.input
        shown = "" if self._shown_input.get(call_id) == runs else f" {_input_of(call)}"
        again = f" (attempt {attempt})" if attempt > 1 else ""
        terminal.line(("  → ", "dim"), call.tool_name, (f"{shown}{again}", "dim"))
        if call.verdict is not None and call.verdict.answer == "allow" and call.verdict.judged is not None:
            terminal.line(("    ⚖ ", "magenta"), "the judge ", judged_said(call.verdict.judged))
        if child:
            terminal.line(("    ↳ ", "dim"), f"answered by a run of its own: {child}")
        if (wait := wait_said(call)) is not None:
            terminal.line(("    ⏲ ", "yellow"), wait)

    def _ended(self, call_id: str) -> None:
        call = self._call(call_id, settled=True)
        if call is None or call.result is None:
            return
        name = plain_line(call.tool_name, 64)  # of a tool that nobody declared it may be anything
        if call.recorded_call_id is not None:
            name += " (recorded)"
        if isinstance(call.result, Failure):
            reason = plain_line(call.result.reason, terminal.width() - len(name) - 20)
            terminal.line(("  ✗ ", "red"), f"{name} {plain_line(call.result.kind, 64)}: ", (reason, "dim"))
        else:
            _success(name, call)
        if call.in_part is not None:
            told = in_part_said(call.in_part, self._run_id, call.tool_call_id)
            terminal.line((RESULT_MARGIN, "dim"), (told, "yellow"))

    def _retrying(self, said: dict[str, Any]) -> None:
        wait = said.get("retry_in_seconds")
        when = "again soon" if wait is None else f"again in {wait:g} s"
        message = plain_line(str(said["message"]), 300)
        void = "; what it said is void" if said.get("shown") else ""
        terminal.line(
            ("  ! ", "yellow"),
            f"the model fails ({said['error_class']}, attempt {said['attempt']}){void}, {when}: {message}",
        )

    def _end(self) -> None:
        run = self._refresh()
        terminal.line("")
        steps = f"{run.step} step{'' if run.step == 1 else 's'}"
        terminal.line(ended_piece(run, "bold "), f" after {steps}{_why(run)}")
        if run.final_text.strip() and not self._answer_is_shown:
            terminal.line((indented(run.final_text.strip(), AGENT_MARGIN), "cyan"))

    def _tool(self, said: dict[str, Any]) -> str:
        request_id = str(said["request_id"])
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
    shown = call.presentation or ()
    if (one_line := on_one_line(shown)) is not None:
        terminal.line(("  ✓ ", "green"), f"{name} ", (clipped(one_line, terminal.width() - len(name) - 6), "dim"))
        return
    terminal.line(("  ✓ ", "green"), name)
    for piece in first_lines(shown, RESULT_LINES):
        text, style = (piece, "") if isinstance(piece, str) else piece
        terminal.line((RESULT_MARGIN, "dim"), (clipped(text, terminal.width() - len(RESULT_MARGIN)), style or "dim"))


def _input_of(call: CallView | None, *, edited: bool = True) -> str:
    """Return on one line what runs: the edited arguments once there are any, if ``edited``."""
    if call is None:
        return ""
    raw = (call.edited_input if edited else None) or call.input
    parsed = json_text.parse(raw)
    text = raw if parsed is None or parsed.doubled else json_text.dump(parsed.tree)
    return plain_line(text, terminal.width() - len(call.tool_name) - 25)


def ended_piece(run: RunSummary, style: str = "") -> tuple[str, str]:
    """Return a run's status to be printed; of one that was interrupted with who did it."""
    said = run.how_it_ended if run.status == "interrupted" else run.status
    return plain_line(said or run.status, 120), f"{style}{STATUS_STYLE.get(run.status, '')}"


def _why(run: RunDetail) -> str:
    error = f" ({plain_line(run.how_it_ended or run.error_class, 120)})" if run.status == "failed" else ""
    reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
    return f"{error}{reason}"


# What the model says, on a terminal as it comes: word by word, each line behind a margin that no word can leave.


TEXT_MARGIN: Final = "  │ "
REASONING_MARGIN: Final = "  ┆ "
LONGEST_NAME: Final = 64


class LiveText:
    """What was printed of one run's response that is still being made."""

    def __init__(self) -> None:
        self._step = 0
        self._attempt = 0
        self._part: int | None = None
        self._text = ""
        self._whole = True
        self._margin, self._style = TEXT_MARGIN, "cyan"
        self._held = ""
        self._line_is_open = False
        self._printed = False

    def show(self, said: DeltaView) -> None:
        """Print what is new."""
        if said.step != self._step:
            self._begin(said)
            terminal.line("")
            terminal.line((f"step {said.step}", "bold"))
        elif said.reset is not None or said.attempt != self._attempt:
            self.break_line()
            if self._printed:
                why = plain_line(said.reset or "it is asked again", 300)
                terminal.line(("  ! ", "yellow"), f"what it said is void: {why}")
            self._begin(said)
        self._whole = self._whole and not said.dropped
        for delta in said.deltas:
            self._show(delta)

    def break_line(self) -> None:
        """End the line that was begun, because something else is printed next."""
        if self._line_is_open:
            terminal.piece("\n")
        self._line_is_open, self._part, self._held = False, None, ""

    def finish(self, step: int, text: str) -> bool:
        """Print what is missing of a step's stored text; False when nothing of the step was printed."""
        if step != self._step:
            return False
        told, whole = self._text.strip(), text.strip()
        if self._whole and told and whole.startswith(told):
            self._held = ""
            if rest := whole[len(told) :]:
                self._say(rest, TEXT_MARGIN, "cyan")
            self.break_line()
        else:
            self.break_line()
            if whole:
                self._say(whole, TEXT_MARGIN, "cyan")
                self.break_line()
        self._step = 0
        return True

    def _begin(self, said: DeltaView) -> None:
        self._step, self._attempt = said.step, said.attempt
        self._part, self._text, self._whole, self._held = None, "", said.n == 1 or said.reset is not None, ""
        self._printed = False

    def _show(self, delta: Delta) -> None:
        self._printed = True
        if delta.part != self._part:
            self.break_line()
            self._part = delta.part
        if delta.kind == "tool-call":
            if delta.tool_name:
                terminal.line(("  … ", "dim"), (f"calls {plain_line(delta.tool_name, LONGEST_NAME)}", "dim"))
        elif delta.kind == "reasoning":
            self._say(delta.text, REASONING_MARGIN, "dim")
        else:
            self._text += delta.text
            self._say(delta.text, TEXT_MARGIN, "cyan")

    def _say(self, text: str, margin: str, style: str) -> None:
        """Print a piece of a part. White space at its end is held back until something follows it."""
        text = self._held + text
        said = text.rstrip()
        self._held = text[len(said) :]
        if not self._line_is_open:
            said = said.lstrip()
        for place, line in enumerate(plain(said).split("\n") if said else []):
            if place:
                terminal.piece("\n")
                self._line_is_open = False
            if not self._line_is_open:
                terminal.piece(margin, style)
                self._line_is_open = True
            terminal.piece(line, style)
