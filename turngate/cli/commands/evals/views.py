"""A report for people: a table, the reasons of each failure, the changes, and the totals."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final, assert_never

from turngate.cli import terminal
from turngate.evals import Attempt, Change, Report
from turngate.evals.report import Totals, totals
from turngate.text.plain_text import Piece, plain_line

STYLE: Final = {"passed": "green", "failed": "red", "not_run": "dim"}
WORD: Final = {"passed": "pass", "failed": "FAIL", "not_run": "not run"}
CHANGED: Final = {
    "newly_failing": ("newly failing", "bold red"),
    "newly_passing": ("newly passing", "green"),
    "still_failing": ("still failing", "red"),
    "new": ("new", ""),
    "gone": ("gone", "dim"),
}
LONGEST_REASON: Final = 600
NOT_KNOWN: Final = "-"


def progress(attempt: Attempt, ended: int, of: int) -> list[Piece]:
    """Return the line for an attempt that has ended."""
    named = f" ({plain_line(attempt.model)}{f', {attempt.attempt}' if attempt.attempt > 1 else ''})"
    return [
        (f"{ended}/{of} ", "dim"),
        (WORD[attempt.status], STYLE[attempt.status]),
        f" {plain_line(attempt.case)}",
        (f"{named}  {attempt.seconds:.1f} s", "dim"),
    ]


def show(report: Report, *, changed: Sequence[Change], app: str) -> None:
    """Print a report on stdout. ``app``: the command's argument, for the commands that open the kept store."""
    columns = _is_comparison(report)
    if columns:
        _compared(report)
    else:
        _table(report)
    for attempt in report.attempts:
        if attempt.status == "failed":
            _why(attempt, report)
    if changed:
        _changes(changed)
    terminal.line("")
    for model in report.models if columns else [None]:
        before = "" if model is None else f"{plain_line(model)}: "
        terminal.line((before, "bold"), ", ".join(_sums(totals(report.of(model=model)), repeated=report.repeat > 1)))
    if report.directory is not None:
        directory = shlex.quote(report.directory)
        terminal.line(("look at the runs: ", "dim"), f"turngate up {shlex.quote(app)} --data-dir {directory}")


def _is_comparison(report: Report) -> bool:
    """Return whether each case ran with each of several models. Cases with models of their own are no comparison."""
    several = len(report.models) > 1
    return several and all(report.of(case=case, model=model) for case in report.cases for model in report.models)


def _table(report: Report) -> None:
    several = len(report.models) > 1  # of the cases' own
    headers = ["case", *(["model"] if several else []), "", "outcome", "steps", "asks", "decisions", "tokens", "cost"]
    headers.append("seconds")
    rows: list[list[Piece]] = []
    for case in report.cases:
        attempts = report.of(case=case)
        sums, worst = totals(attempts), _worst(attempts)
        rows.append(
            [
                plain_line(case),
                *([", ".join(dict.fromkeys(plain_line(each.model) for each in attempts))] if several else []),
                _passed(attempts),
                ", ".join(dict.fromkeys(each.outcome or NOT_KNOWN for each in attempts)),
                str(sums.steps),
                str(sums.asks),
                _decisions(worst) if len(attempts) == 1 else str(sums.decisions),
                f"{sums.tokens:,}",
                money(sums.cost),
                f"{sums.seconds:.1f}",
            ]
        )
    terminal.table(headers, rows)


def _compared(report: Report) -> None:
    """Print a column for each model."""
    rows: list[list[Piece]] = []
    for case in report.cases:
        row: list[Piece] = [plain_line(case)]
        for model in report.models:
            attempts = report.of(case=case, model=model)
            sums = totals(attempts)
            word, style = _passed(attempts)
            facts = [word, f"{sums.asks} asked", f"{sums.tokens:,} tok", money(sums.cost)]
            row.append((" · ".join(each for each in facts if each != NOT_KNOWN), style))
        rows.append(row)
    terminal.table(["case", *(plain_line(model) for model in report.models)], rows)


def _why(attempt: Attempt, report: Report) -> None:
    several = f", {plain_line(attempt.model)}" if len(report.models) > 1 else ""
    which = f", attempt {attempt.attempt}" if report.repeat > 1 else ""
    terminal.line("")
    terminal.line(("FAIL ", "bold red"), (plain_line(attempt.case), "bold"), f"{several}{which}")
    for reason in attempt.reasons:
        terminal.line(f"  {plain_line(reason, LONGEST_REASON)}")
    if report.directory is not None:
        for run_id in attempt.run_ids:
            directory = shlex.quote(report.directory)
            terminal.line(("  while it is up: ", "dim"), f"turngate explain {run_id} --data-dir {directory}")
    elif attempt.run_ids:
        terminal.line(("  to look at its run, repeat the command with --keep DIR", "dim"))


def _changes(changed: Sequence[Change]) -> None:
    terminal.line("")
    terminal.line(("compared with the baseline", "bold"))
    for each in changed:
        word, style = CHANGED[each.kind]
        was, now = (NOT_KNOWN if rate is None else f"{rate:.0%}" for rate in (each.before, each.now))
        terminal.line(
            (f"  {word:<14}", style), plain_line(each.case), (f"  {was} → {now}  {plain_line(each.model)}", "dim")
        )


def _sums(sums: Totals, *, repeated: bool) -> Iterator[str]:
    rate = "" if sums.pass_rate is None else f" ({sums.pass_rate:.0%})"
    if repeated and sums.interval is not None:
        low, high = sums.interval
        rate = f" ({sums.pass_rate:.0%}; 95 % interval {low:.0%} to {high:.0%})"
    yield f"{sums.passed} of {sums.passed + sums.failed} passed{rate}"
    if sums.not_run:
        yield f"{sums.not_run} not run"
    if sums.asks_per_run is not None:
        yield f"{sums.asks_per_run:.2f} asks per run"
    yield f"{sums.tokens:,} tokens"
    yield "cost unknown" if sums.cost is None else f"cost {money(sums.cost)}"


def money(cost: Decimal | None) -> str:
    """Return an amount without needless zeros, in the currency of the prices."""
    if cost is None:
        return NOT_KNOWN
    text = f"{cost:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _passed(attempts: Sequence[Attempt]) -> tuple[str, str]:
    worst = _worst(attempts)
    if len(attempts) == 1:
        return WORD[worst.status], STYLE[worst.status]
    return f"{sum(each.status == 'passed' for each in attempts)}/{len(attempts)}", STYLE[worst.status]


def _worst(attempts: Sequence[Attempt]) -> Attempt:
    def badness(attempt: Attempt) -> int:
        match attempt.status:
            case "passed":
                return 0
            case "not_run":
                return 1
            case "failed":
                return 2
            case _:
                assert_never(attempt.status)

    return max(attempts, key=badness)


def _decisions(attempt: Attempt) -> str:
    return ", ".join(f"{each.verb} {plain_line(each.tool)}" for each in attempt.decisions) or NOT_KNOWN
