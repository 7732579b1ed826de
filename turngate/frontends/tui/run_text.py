"""A run as text: its head, and each step with what the model said, its calls, who decided, and the results.

:class:`LiveText` is what the model and the tools say before a step is stored.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from turngate.domain.conversation.messages import DeltaKind
from turngate.domain.requests import RunStatus
from turngate.domain.text.sentences import counted
from turngate.domain.tools.defaults import in_short
from turngate.domain.tools.results import Failure
from turngate.frontends.tui.texts import (
    Folded,
    Line,
    Piece,
    ago,
    arguments_on_one_line,
    at,
    block,
    first_lines,
    folded,
    joined,
    line,
    lines_of,
    plain_line,
    until,
)
from turngate.wire.calls import CallRequest, CallView
from turngate.wire.events import ProgressView
from turngate.wire.explanation import Explanation, FamilyMember
from turngate.wire.runs import RunDetail, RunSummary, StepView
from turngate.wire.streamed import Streamed

MAX_CHARS: Final = 20_000
"""Most characters of one part that are shown: the newest."""
MAX_LINES: Final = 8
"""Most lines of one call's progress."""
STYLES: Final[dict[DeltaKind, str]] = {"text": "cyan", "reasoning": "dim", "tool-call": "dim"}


class LiveText:
    """The response that is being made, and what tools report."""

    def __init__(self) -> None:
        self.response = Streamed(most=MAX_CHARS)
        self._progress: dict[str, deque[str]] = {}
        self._progress_seen: dict[str, int] = {}

    def forget(self, stored_step: int) -> None:
        """Forget what the stored steps say themselves."""
        if stored_step >= self.response.step:
            self.response.forget()

    def take_progress(self, progress: ProgressView) -> None:
        """Take what a running tool says, once: all of it comes again on every connection."""
        before = self._progress_seen.get(progress.tool_call_id, 0)
        if progress.n <= before:
            return
        self._progress_seen[progress.tool_call_id] = progress.n
        text = (
            progress.payload if isinstance(progress.payload, str) else json.dumps(progress.payload, ensure_ascii=False)
        )
        lines = self._progress.setdefault(progress.tool_call_id, deque(maxlen=MAX_LINES))
        if progress.dropped:
            lines.append(f"… {progress.dropped:,} not shown")
        lines.append(plain_line(text, 500))

    def progress_of(self, tool_call_id: str) -> tuple[str, ...]:
        """Return the newest lines of a call, made harmless."""
        return tuple(self._progress.get(tool_call_id, ()))

    def lines(self) -> Iterator[Line]:
        """Yield what is shown of it; nothing when nothing is being said."""
        response = self.response
        if not response.parts and not response.void:
            return
        yield at("", (f"STEP {response.step}", "bold"), (" is being said", "dim"))
        if response.void:
            yield at("", ("! ", "yellow"), f"what it said before is void: {plain_line(response.void, 300)}")
        for part in response.parts.values():
            if part.kind == "tool-call":
                yield at("", ("… calls ", "dim"), plain_line(part.tool_name or "a tool", 64))
            margin = "┆ " if part.kind == "reasoning" else "│ "
            if part.text:
                yield from lines_of(part.text, margin, STYLES[part.kind])


AGENT_MARGIN: Final = "│ "
RESULT_MARGIN: Final = "      ┊ "
RESULT_LINES: Final = 8
"""Most lines of one result: `turngate result` and the page show the rest."""
STATUS_STYLE: Final[dict[RunStatus, str]] = {"completed": "green", "failed": "red", "interrupted": "yellow"}


def status_piece(run: RunSummary) -> Piece:
    """Return a run's status, or how it ended."""
    if run.status == "running":
        return ("PAUSED", "bold yellow") if run.paused_at else ("running", "bold")
    return (plain_line(run.how_it_ended or run.status, 80), STATUS_STYLE.get(run.status, ""))


def summary_text(run: RunSummary, width: int) -> Text:
    """Return a run in the list, on two lines."""
    name = plain_line(run.agents, 40)
    steps = counted(run.step, "step")
    return joined(
        [
            line("  ", (name, "bold"), "  ", status_piece(run), f"  {steps}", (f"  {ago(run.created_at)} ago", "dim")),
            line("      ", (plain_line(run.task, max(8, width - 8)), "dim")),
        ]
    )


def head_text(run: RunDetail) -> Folded:
    """Return what a run is about."""
    facts = [
        f"model {plain_line(run.model, 80)}",
        f"started by {plain_line(run.started_by, 60)} {ago(run.created_at)} ago",
    ]
    if run.tokens_used:
        facts.append(f"{run.tokens_used:,} tokens")
    if run.cost:
        facts.append(f"cost {run.cost}")
    lines = [at("", (", ".join(facts), "dim"))]
    if run.paused_at:
        why = f": {plain_line(run.pause_reason, 200)}" if run.pause_reason else ""
        lines.append(at("", ("held ", "yellow"), f"by {plain_line(run.paused_by or 'someone', 60)}{why}"))
    lines.extend(lines_of(run.task, "you │ "))
    return folded(lines)


def tail_text(run: RunDetail) -> Folded:
    """Return how a run ended, and what waits to be read; empty for a live one of which nothing waits."""
    lines = [
        at("", ("to be read ", "dim"), f"from {plain_line(each.sent_by, 60)}: {plain_line(each.text, 300)}")
        for each in run.waiting_messages
    ]
    if run.status != "running":
        reason = f": {plain_line(run.reason, 1_000)}" if run.reason else ""
        lines.append(at("", ("OUTCOME ", "bold"), status_piece(run), reason))
    return folded(lines)


def step_text(step: StepView, live_text: LiveText) -> Folded:
    """Return one step."""
    tokens = f"  {step.tokens:,} tokens" if step.tokens else ""
    lines = [at("", (f"STEP {step.step}", "bold"), (f"  {plain_line(step.model, 60)}{tokens}", "dim"))]
    if step.cut is not None:
        done = (
            "the oldest messages were summarised" if step.cut.kind == "summary" else "the oldest messages were left out"
        )
        lines.append(at("", ("⇒ ", "magenta"), done))
    for message in step.told:
        lines.extend(lines_of(message.text, f"{plain_line(message.sent_by, 30)} │ "))
    if step.reasoning.strip():
        lines.extend(lines_of(step.reasoning.strip(), "┆ ", "dim"))
    if step.text.strip():
        lines.extend(lines_of(step.text.strip(), AGENT_MARGIN, "cyan"))
    for call in step.calls:
        lines.extend(_call(call, live_text))
    if step.corrective is not None:
        lines.append(at("", ("! ", "yellow"), "this response could not be read; the model sees that"))
    if step.nudge is not None:
        lines.append(at("", ("! ", "yellow"), "no progress: the same calls, the same results; the model sees that"))
    return folded([*lines, at("")])


def _call(call: CallView, live_text: LiveText) -> Iterator[Line]:
    name = plain_line(call.tool_name, 64)
    recorded = " (recorded)" if call.recorded_call_id else ""
    yield at("  ", (_mark(call), ""), (name, "bold"), "  ", arguments_on_one_line(call.input, 400), (recorded, "dim"))
    for request in call.requests:
        yield at("      ", (_request_words(request), "yellow" if request.status == "pending" else "dim"))
    if call.edited_input is not None:
        yield at("      ", ("ran with ", "dim"), arguments_on_one_line(call.edited_input, 400))
    for label, words in in_short(call.defaults).items():
        yield at("      ", (f"{label} ", "dim"), plain_line(words))
    if call.child_run_id:
        yield at("      ", (f"answered by run {call.child_run_id}", "dim"))
    if call.waits_until is not None and call.result is None:
        yield at("      ", (f"waits, ends {until(call.waits_until)}", "yellow"))
    if call.result is None:
        for progress in live_text.progress_of(call.tool_call_id):
            yield at(RESULT_MARGIN, progress)
        return
    if isinstance(call.result, Failure):
        yield at("      ", (plain_line(call.result.kind, 64), "red"), f": {plain_line(call.result.reason, 500)}")
    else:
        yield from block(first_lines(call.presentation or (), RESULT_LINES), RESULT_MARGIN)
    if call.in_part is not None:
        yield at(RESULT_MARGIN, (f"… {call.in_part.total_chars:,} characters in all", "yellow"))


def _mark(call: CallView) -> str:
    """Return a mark and a word that need no colour."""
    if call.result is not None:
        if isinstance(call.result, Failure):
            return "✗ "
        return "! " if call.warning else "✓ "
    if call.request is not None and call.request.status == "pending":
        return "… "
    return {"executing": "→ ", "unknown": "? "}.get(call.execution, "· ")


def _request_words(request: CallRequest) -> str:
    if request.status == "pending":
        return {"question": "asks you", "outcome": "may or may not have happened"}.get(
            request.kind, "waits for approval"
        )
    by = f" by {plain_line(request.decided_by, 60)}" if request.decided_by else ""
    edited = " as edited" if request.verb == "edit" else ""
    return f"{request.status}{edited}{by}"


def family_lines(family: Sequence[FamilyMember]) -> Iterator[Line]:
    """Return which run came from which, as a tree."""
    if family:
        yield at("")
        yield at("", ("FORKS, RETRIES, DRY RUNS", "bold"))
    for each in family:
        mark = "▸ " if each.here else "  "
        state = plain_line(f"{each.agents}: {each.how_it_ended}", 100)
        more = f", {each.left_out:,} more forks" if each.left_out else ""
        came = f"  {plain_line(each.came, 100)}{more}"
        yield at("  " * (each.level + 1), mark, f"{each.run_id}  {state}", (came, "dim"))


def explanation_text(explanation: Explanation) -> Folded:
    """Return why a run ended, or what it waits for, and what a person can do."""
    lines = [at("", (plain_line(explanation.cause, 2_000), "bold"))]
    if explanation.run.reason:
        lines.extend(lines_of(explanation.run.reason, "  │ "))
    for waits in explanation.waits_for:
        since = f", since {ago(waits.since)}" if waits.since else ""
        lines.append(at("  ", ("waits ", "dim"), f"{plain_line(waits.says, 500)}{since}"))
    lines.extend(
        at("  ", (f"step {tried.step}, attempt {tried.attempt} ", "dim"), plain_line(tried.message, 500))
        for tried in explanation.model_attempts
    )
    for broken in explanation.unfinished:
        label = (f"step {broken.step}, attempt {broken.attempt} ", "dim")
        lines.append(at("  ", label, ("broke off ", "yellow"), plain_line(broken.text, 500)))
    for each in explanation.model_fallbacks:
        took = f"{plain_line(each.model, 80)} took over from {plain_line(each.instead_of, 80)}"
        lines.append(at("  ", (f"step {each.step} ", "dim"), f"{took}: {plain_line(each.message, 300)}"))
    for error in explanation.errors:
        lines.append(at("  ", (f"{error.id} ", "bold"), plain_line(f"{error.says} {error.about}", 200)))
        if error.message is not None:
            lines.extend(lines_of(error.message, "  │ "))
    lines.extend(family_lines(explanation.family))
    if explanation.actions:
        lines.extend([at(""), at("", ("WHAT TO DO", "bold"))])
    for action in explanation.actions:
        command = f"  {plain_line(action.command, 200)}" if action.command else ""
        lines.append(at("  ", plain_line(action.text, 500), (command, "dim")))
    return folded(lines)
