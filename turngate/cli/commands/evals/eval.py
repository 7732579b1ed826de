"""``turngate eval``: an app against a file of cases (docs/howto/evaluate-an-agent.md)."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, assert_never

import typer

from turngate.cli import terminal
from turngate.cli.errors import EXIT_CTRL_C, EXIT_WENT_WRONG
from turngate.cli.parts.confinement import load_confined
from turngate.cli.posix_signals import stop_on_posix_signals
from turngate.domain.errors import ConfigurationError
from turngate.evals import (
    Attempt,
    Case,
    Change,
    EvalOptions,
    Report,
    changes,
    junit_xml,
    load_cases,
    load_report,
    run_cases,
)
from turngate.evals.report import Totals, totals
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging
from turngate.text.plain_text import Piece, plain_line

STDOUT: Final = Path("-")


@dataclass(frozen=True, kw_only=True)
class EvalOrder:
    """The command's options."""

    app: str
    cases: Path
    models: list[str]
    only: list[str]
    parallel: int
    repeat: int
    fail_under: float | None
    json_file: Path | None
    junit_file: Path | None
    baseline: Path | None
    keep: Path | None


def evaluate(settings: Settings, order: EvalOrder) -> None:
    """Run the cases, report, and raise typer.Exit with the exit code unless it is 0. Raises ConfigurationError."""
    cases = _chosen(load_cases(order.cases), order.only)
    before = None if order.baseline is None else load_report(order.baseline)
    for file in (order.json_file, order.junit_file):
        _require_place(file)
    # The engine's log of each run is for servers. Here it would bury the progress.
    configure_logging("debug" if settings.log_level == "debug" else "error", settings.log_format)
    app = load_confined(settings, order.app)
    report = asyncio.run(_run(settings, order, app, cases))
    if order.json_file == STDOUT:
        terminal.raw(report.as_json().removesuffix("\n"))
    else:
        show_eval(report, changed=[] if before is None else changes(before, report), app=order.app)
    _write(order.json_file, report.as_json)
    _write(order.junit_file, lambda: junit_xml(report))
    if report.interrupted:
        raise typer.Exit(EXIT_CTRL_C)
    enough = report.all_passed if order.fail_under is None else (report.totals.pass_rate or 0) >= order.fail_under
    if not enough:
        raise typer.Exit(EXIT_WENT_WRONG)


async def _run(settings: Settings, order: EvalOrder, app: LoadedApp, cases: list[Case]) -> Report:
    options = EvalOptions(
        models=order.models,
        parallel=order.parallel,
        repeat=order.repeat,
        keep=order.keep,
        import_dir=order.cases.resolve().parent,
        settings=settings,
    )
    runs = len(cases) * max(len(order.models), 1) * order.repeat
    ended = 0

    def on_attempt(attempt: Attempt) -> None:
        nonlocal ended
        ended += 1
        terminal.note(*progress_pieces(attempt, ended, runs))

    with stop_on_posix_signals() as stop:
        stop.running()
        return await run_cases(app, cases, options, on_attempt=on_attempt, stop=stop.requested)


def _chosen(cases: list[Case], only: list[str]) -> list[Case]:
    """Return the cases whose names match one of the patterns; all cases without a pattern."""
    for pattern in only:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            raise ConfigurationError(f"--only {pattern}: no case has such a name. The cases are: {_names(cases)}")
    return [case for case in cases if not only or any(fnmatchcase(case.name, pattern) for pattern in only)]


def _names(cases: list[Case]) -> str:
    return ", ".join(case.name for case in cases)


def _require_place(file: Path | None) -> None:
    """Refuse a file whose directory does not exist, before anything costs money."""
    if file is not None and file != STDOUT and (file.is_dir() or not file.resolve().parent.is_dir()):
        raise ConfigurationError(f"{file} cannot be written: it is a directory, or its directory does not exist")


def _write(file: Path | None, text: Callable[[], str]) -> None:
    if file is None or file == STDOUT:
        return
    try:
        file.write_text(text(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"the file {file} cannot be written: {error.strerror}") from None


def eval_app(
    app: Annotated[
        str, typer.Argument(metavar="APP", show_default=False, help="Your app as MODULE:NAME, such as my_app:app.")
    ],
    cases: Annotated[
        Path, typer.Argument(metavar="CASES", show_default=False, help="The file of cases: YAML or JSON.")
    ],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL|AGENT=MODEL,…",
            show_default=False,
            help="Run every case with this model. Several models are compared, a column each. Agents and sub-agents can have "
            "models of their own: `support=fast,reader=openai:gpt-5`; `*=fast` is for all.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME",
            show_default=False,
            help="Run only cases whose name matches; `*` matches anything.",
        ),
    ] = None,
    parallel: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="How many attempts run at the same time.")
    ] = 4,
    repeat: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="How many attempts each case gets.")] = 1,
    fail_under: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="RATE",
            show_default="1: all must pass",
            help="The lowest pass rate for exit code 0.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", show_default=False, help="Write the report as JSON to this file; `-` prints it."
        ),
    ] = None,
    junit_file: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", show_default=False, help="Write the report as JUnit XML to this file."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="An earlier `--json` report to compare with."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="Keep the store in this new directory, to look at the runs later."
        ),
    ] = None,
) -> None:
    """Run your app against a file of cases, and report how it did.

    Handlers can be replaced, and approvers are scripted. Each case runs on the real engine, on a server of its own that is
    deleted afterwards. Providers' keys come from the environment, as for `turngate up`.

    Exit code: 0 all passed (or as many as --fail-under wants) · 1 some failed · 2 a case or an option is wrong, and nothing
    has run · 130 stopped by Ctrl-C, after a report of the attempts so far.
    """
    evaluate(
        load_settings(),
        EvalOrder(
            app=app,
            cases=cases,
            models=models or [],
            only=only or [],
            parallel=parallel,
            repeat=repeat,
            fail_under=fail_under,
            json_file=json_file,
            junit_file=junit_file,
            baseline=baseline,
            keep=keep,
        ),
    )


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


def progress_pieces(attempt: Attempt, ended: int, of: int) -> list[Piece]:
    """Return the line for an attempt that has ended."""
    named = f" ({plain_line(attempt.model)}{f', {attempt.attempt}' if attempt.attempt > 1 else ''})"
    return [
        (f"{ended}/{of} ", "dim"),
        (WORD[attempt.status], STYLE[attempt.status]),
        f" {plain_line(attempt.case)}",
        (f"{named}  {attempt.seconds:.1f} s", "dim"),
    ]


def show_eval(report: Report, *, changed: Sequence[Change], app: str) -> None:
    """Print a report on stdout: a table, the reasons of each failure, the changes, and the totals.

    ``app``: the command's argument, for the commands that open the kept store.
    """
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
                money_text(sums.cost),
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
            facts = [word, f"{sums.asks} asked", f"{sums.tokens:,} tok", money_text(sums.cost)]
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
    yield "cost unknown" if sums.cost is None else f"cost {money_text(sums.cost)}"


def money_text(cost: Decimal | None) -> str:
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
