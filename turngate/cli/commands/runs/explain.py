"""``turngate explain``: why a run failed, or what a live run waits for, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer

from turngate.cli import terminal
from turngate.cli.api_link import ApiLink, find_api
from turngate.cli.follow.lines import AGENT_MARGIN, STATUS_STYLE, VERB_WORDS
from turngate.cli.led_commands import led, led_text
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.domain.tools.results import Failure
from turngate.store.clock import from_text
from turngate.text.instants import second
from turngate.text.plain_text import Piece, indented, plain_line
from turngate.text.run_words import execution_piece
from turngate.wire.calls import CallRequest, CallView
from turngate.wire.explanation import ErrorView, Explanation, FamilyMember, NextAction, WaitReason
from turngate.wire.runs import RunSummary, StepView

COMMAND_MARGIN: Final = "      "


def explain(
    context: typer.Context, run_id: RunId, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None
) -> None:
    """Say why a run failed or what it waits for, and what to do next.

    Prints the cause, the step with its calls, decisions and attempts, and commands that help.
    """
    link = find_api(data_dir, url)
    with link.client() as client:
        explanation = client.explain_run(run_id)
    if as_json:
        terminal.document(explanation.model_dump_json())
    else:
        _show(explanation, link, context.find_root().command)


def _show(explanation: Explanation, link: ApiLink, commands: Any) -> None:  # typer's groups have no public class
    run = explanation.run
    at = "" if explanation.step is None else f" at step {explanation.step}"
    terminal.line(
        (run.status, f"bold {STATUS_STYLE.get(run.status, '')}"), f"{at}  {_kind(explanation)}agent {run.agents}"
    )
    terminal.line("  ", (plain_line(explanation.cause, 1_000), "bold"))
    if run.reason:
        terminal.line(indented(run.reason.strip(), AGENT_MARGIN))
    for each in explanation.waits_for[1:]:
        terminal.line("  also: ", plain_line(each.says, 1_000))
    terminal.line("")
    for label, text in _timings(run, explanation.waits_for):
        terminal.line((f"  {label} ", "dim"), text)
    for attempt in explanation.model_attempts:
        message = plain_line(attempt.message, 300)
        terminal.line(
            ("  model ", "dim"), f"attempt {attempt.attempt} at {second(attempt.at)} {attempt.error_class}: {message}"
        )
    for broken in explanation.unfinished:
        when = f"attempt {broken.attempt} broke off at {second(broken.at)}, and nothing of it ran: "
        terminal.line(("  model ", "dim"), when, (plain_line(broken.text, 300), "dim"))
    for fallback in explanation.model_fallbacks:
        text = (
            f"{fallback.model} instead of {fallback.instead_of} since {second(fallback.at)}, {fallback.error_class}: "
        )
        terminal.line(("  model ", "dim"), plain_line(f"{text}{fallback.message}", 500))
    for step in explanation.steps:
        _show_step(step, explanation.errors)
    show_errors(explanation.errors, link)
    show_family(explanation.family)
    _show_links(explanation, link)
    if explanation.actions:
        terminal.line("")
        terminal.line(("what to do", "bold"))
    for number, action in enumerate(explanation.actions, 1):
        _show_action(number, action, link, commands)


def _kind(explanation: Explanation) -> str:
    if explanation.failure is None:
        return ""
    code = plain_line(explanation.run.error_class, 64)
    name = explanation.failure.replace("_", " ")
    return f"{name}, " if code in {"", explanation.failure} else f"{name} ({code}), "


def _timings(run: RunSummary, waits_for: list[WaitReason]) -> Iterator[tuple[str, str]]:
    if run.ended_at is None:
        yield "started", second(run.created_at)
    else:
        yield "outcome", plain_line(run.how_it_ended or run.status, 200)
        yield "ran", f"{second(run.created_at)} to {second(run.ended_at)} ({_took(run.created_at, run.ended_at)})"
    for each in waits_for[:1]:
        if each.since is not None:
            yield "since", second(each.since)
        if each.until is not None:
            yield "until", second(each.until)


def show_errors(errors: Sequence[ErrorView], link: ApiLink) -> None:
    """Print errors with their whole text, and how to see their tracebacks."""
    for error in errors:
        terminal.line("")
        terminal.line((error.id, "bold"), f"  {error_line(error)}", (f"  {second(error.created_at)}", "dim"))
        if error.message is None:
            terminal.line("  only people who may decide requests see its text")
            continue
        terminal.line(indented(error.message, AGENT_MARGIN))
        if error.traceback:
            terminal.line(("  traceback ", "dim"), (f"turngate logs{link.options} {error.id}", "cyan"))


def error_line(error: ErrorView) -> str:
    """Return on one line what failed, and where."""
    about = f" {plain_line(error.about, 100)}" if error.about else ""
    step = f", step {error.step}" if error.step else ""
    attempt = f", attempt {error.attempt}" if error.attempt > 1 else ""
    return f"{plain_line(error.says, 100)}{about}{step}{attempt}"


def show_family(family: Sequence[FamilyMember]) -> None:
    """Print which run came from which, as a tree."""
    if not family:
        return
    terminal.line("")
    terminal.line(("its forks, retries and dry runs", "bold"))
    for each in family:
        mark, style = ("▸ ", "bold") if each.here else ("  ", "cyan")
        where = "  " * each.level
        state = plain_line(f"{each.agents}: {each.how_it_ended}", 100)
        terminal.line(
            f"  {where}{mark}", (each.run_id, style or "cyan"), f"  {state}", (f"  {plain_line(each.came, 100)}", "dim")
        )
        if each.left_out:
            terminal.line((f"  {where}      and {each.left_out:,} more forks of it", "dim"))


def _show_step(step: StepView, errors: Sequence[ErrorView]) -> None:
    closed = "open" if step.closed_at is None else f"closed after {_took(step.created_at, step.closed_at)}"
    terminal.line("")
    terminal.line((f"step {step.step}", "bold"), (f"  answered {second(step.created_at)}, {closed}", "dim"))
    if step.corrective is not None:
        terminal.line(("  ! ", "yellow"), "this response could not be used")
    for call in step.calls:
        terminal.line("  ", (plain_line(call.tool_name, 64), "bold"), (f"  {call.tool_call_id}", "dim"))
        for label, text in _of_call(call):
            terminal.line((f"    {label} ", "dim"), text)
        for error in errors:
            if error.tool_call_id == call.tool_call_id:
                terminal.line(("    error ", "dim"), error.id)


def _of_call(call: CallView) -> Iterator[tuple[str, Piece]]:
    if call.verdict is not None:
        yield "verdict", f"{call.verdict.answer} by rule {plain_line(call.verdict.rule, 100)}"
    for request in call.requests:
        yield request.kind, _decision(request)
    attempts = f", attempt {call.attempts}" if call.attempts > 1 else ""
    took = f" in {_took(call.started_at, call.ended_at)}" if call.started_at and call.ended_at else ""
    begun = f" since {second(call.started_at)}" if call.started_at and not call.ended_at else ""
    piece = execution_piece(call)
    words, style = piece if isinstance(piece, tuple) else (piece, "")
    yield "execution", (f"{words}{attempts}{took or begun}", style)
    if call.child_run_id is not None:
        yield "sub-agent", f"run {call.child_run_id}"
    if isinstance(call.result, Failure):
        yield "result", (f"{plain_line(call.result.kind, 64)}: {plain_line(call.result.reason, 300)}", "red")


def _decision(request: CallRequest) -> str:
    if request.verb is None or request.decided_by is None or request.decided_at is None:
        return f"{request.status} since {second(request.created_at)}  {request.id}"
    return f"{VERB_WORDS[request.verb]} by {plain_line(request.decided_by, 100)} at {second(request.decided_at)}"


def _show_links(explanation: Explanation, link: ApiLink) -> None:
    terminal.line("")
    terminal.line(("  page ", "dim"), (f"{link.pages}/runs/{explanation.run.id}", "underline"))
    if explanation.temporal_url is not None:
        terminal.line(("  Temporal ", "dim"), (explanation.temporal_url, "underline"))


def _show_action(number: int, action: NextAction, link: ApiLink, commands: Any) -> None:
    terminal.line(f"  {number}. {plain_line(led_text(action.text, link, commands), 1_000)}")
    if action.command is not None:
        terminal.line(COMMAND_MARGIN, (plain_line(led(action.command, link, commands), 1_000), "cyan"))


def _took(start: str, end: str) -> str:
    seconds = (from_text(end) - from_text(start)).total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{rest} s" if not minutes else f"{minutes} min {rest} s"
