"""``turngate compare``: two runs side by side, and their differences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Final

import typer
from rich.cells import cell_len, set_cell_size

from turngate.cli import terminal
from turngate.cli.api_link import find_api
from turngate.cli.commands.runs.dry_run import show_report
from turngate.cli.follow.lines import STATUS_STYLE
from turngate.cli.options import AsJson, DataDir, RunId, Url
from turngate.domain.runs.comparison import Aspect
from turngate.domain.tools.results import Failure
from turngate.text.plain_text import ELLIPSIS, plain_line
from turngate.wire.calls import CallView
from turngate.wire.comparison import CallPair, ComparedRun, ComparedStep, Comparison, StepPair

OtherId = Annotated[str, typer.Argument(metavar="OTHER", help="The other run's id, such as its fork or retry.")]
LABEL_CELLS: Final = 17
DIFFERS: Final = " ≠ "
NOTHING: Final = "(none)"
READ_CHARS: Final = 20_000
"""How many characters of two values are compared to find where they part."""


def compare(
    run_id: RunId, other_id: OtherId, as_json: AsJson = False, data_dir: DataDir = None, url: Url = None
) -> None:
    """Compare two runs, such as a run and its fork: what they share and where they differ."""
    link = find_api(data_dir, url)
    with link.client() as client:
        comparison = client.compare_runs(run_id, other_id)
    if as_json:
        terminal.document(comparison.model_dump_json())
        return
    _show_runs(comparison)
    if comparison.replay is not None:
        show_report(comparison.replay)
    for place, pair in enumerate(comparison.steps, 1):
        _show_step(pair, parts_here=place == comparison.parts_at)
    terminal.line("")
    if comparison.parts_at is None:
        terminal.line(("no step differs" if comparison.steps else "neither run has a step of its own", "bold"))
    page = f"{link.pages}/runs/{comparison.run.id}/compare/{comparison.other.id}"
    terminal.line(("page ", "dim"), (page, "underline"))


def _show_runs(comparison: Comparison) -> None:
    for letter, run in (("A", comparison.run), ("B", comparison.other)):
        status = (plain_line(run.how_it_ended or run.status, 100), f"bold {STATUS_STYLE.get(run.status, '')}")
        terminal.line((f"{letter} ", "bold"), f"{run.id}  ", status, f"  agent {plain_line(run.agents, 100)}")
    for aspect in comparison.differs:
        _show_row(aspect.replace("_", " "), *(_of_run(run, aspect) for run in (comparison.run, comparison.other)))
    if comparison.shared is not None:
        through = comparison.shared.through_step
        steps = "step 1" if through == 1 else f"steps 1 to {through}"
        names = {comparison.run.id: "A", comparison.other.id: "B"}
        whose = names.get(comparison.shared.run_id, f"run {comparison.shared.run_id}")
        terminal.line(f"both continue from {steps} of {whose}")


def _show_step(pair: StepPair, *, parts_here: bool) -> None:
    both = pair.run is not None and pair.other is not None
    if both:
        verdict = "same" if pair.same else "differs"
    else:
        verdict = _only_in("B" if pair.run is None else "A")
    here = ", here they part" if parts_here else ""
    names = ", ".join(_names(pair))
    terminal.line("")
    terminal.line((names, "bold"), "  ", (f"{verdict}{here}", "dim" if pair.same else "yellow"))
    if not both or pair.text_differs:
        texts = (_text_of(pair.run), _text_of(pair.other))
        if any(texts):
            _show_row("  text", *texts)
    for each in pair.calls:
        _show_call(each)


def _names(pair: StepPair) -> Iterator[str]:
    for letter, step in (("A", pair.run), ("B", pair.other)):
        if step is not None:
            yield f"{letter} step {step.step}"


def _show_call(pair: CallPair) -> None:
    call = pair.run or pair.other
    if call is None:
        return
    name = (plain_line(call.tool_name, 64), "bold")
    if pair.run is None or pair.other is None:
        terminal.line("  ", name, "  ", (_only_in("B" if pair.run is None else "A"), "yellow"))
        for aspect in ("arguments", "decision", "execution", "result"):
            sides = [NOTHING if each is None else _of_call(each, aspect) for each in (pair.run, pair.other)]
            _show_row(f"    {aspect}", *sides)
    elif pair.same:
        known = terminal.width() - cell_len(name[0]) - 10
        terminal.line("  ", name, ("  same  ", "dim"), plain_line(call.input, max(known, 20)))
    else:
        terminal.line("  ", name, "  ", (f"differs in {', '.join(pair.differs)}", "yellow"))
        for aspect in pair.differs:
            _show_row(f"    {aspect}", _of_call(pair.run, aspect), _of_call(pair.other, aspect))


def _only_in(letter: str) -> str:
    return f"only in {letter}"


def _show_row(label: str, run: str, other: str) -> None:
    """Print two values side by side, each cut to its half of the line."""
    half = (terminal.width() - LABEL_CELLS - cell_len(DIFFERS)) // 2
    left, right = _where_they_part(plain_line(run[:READ_CHARS]), plain_line(other[:READ_CHARS]), half)
    terminal.line(
        (set_cell_size(label, LABEL_CELLS), "dim"),
        set_cell_size(_cut(left, half), half),
        (DIFFERS, "bold yellow"),
        _cut(right, half),
    )


def _where_they_part(run: str, other: str, half: int) -> tuple[str, str]:
    """Return both without a long beginning that they share: if only their ends were cut, they would look the same."""
    alike = 0
    for one, two in zip(run, other, strict=False):
        if one != two:
            break
        alike += 1
    skipped = alike - half // 3
    if alike < half * 2 // 3 or skipped <= 0:
        return run, other
    return ELLIPSIS + run[skipped:], ELLIPSIS + other[skipped:]


def _cut(line: str, cells: int) -> str:
    # In cells, not characters: a wide character takes two and would shift the second column.
    return line if cell_len(line) <= cells else set_cell_size(line, cells - 1) + ELLIPSIS


def _of_run(run: ComparedRun, aspect: str) -> str:
    names = {"failure": "error_class", "answer": "final_text"}
    match aspect:
        case "instructions" | "tools":
            own = run.override(aspect)
            return "the agent's" if own is None else own or NOTHING
        case "policy":
            own = run.override(aspect)
            return "the app's" if own is None else own or NOTHING
        case _:
            return getattr(run, names.get(aspect, aspect)) or NOTHING


def _text_of(step: ComparedStep | None) -> str:
    if step is None:
        return ""
    return step.text if step.corrective is None else f"{step.text} (not usable: {step.corrective})".strip()


def _of_call(call: CallView, aspect: Aspect) -> str:
    match aspect:
        case "arguments":
            return call.input
        case "verdict":
            return NOTHING if call.verdict is None else f"{call.verdict.answer} by rule {call.verdict.rule}"
        case "decision":
            requests = ", ".join(f"{each.kind} {each.status}" for each in call.requests) or "no one was asked"
            return requests if call.edited_input is None else f"{requests}, edited to {call.edited_input}"
        case "execution":
            return call.warning or call.execution.replace("_", " ")
        case "result":
            return _result(call)


def _result(call: CallView) -> str:
    if call.result is None:
        return "(open)"
    if isinstance(call.result, Failure):
        return f"{call.result.kind}: {call.result.reason}"
    part = call.in_part
    known = "" if part is None else f"({part.total_chars:,} characters) "
    return known + json.dumps(call.result.value, ensure_ascii=False, separators=(",", ":"))
