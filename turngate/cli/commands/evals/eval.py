"""An evaluation from the command line: its files checked first, its progress on stderr, its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final

import typer

from turngate.cli import terminal
from turngate.cli.builders_app import load_builders_app
from turngate.cli.commands.evals import views
from turngate.cli.errors import EXIT_CTRL_C, EXIT_WENT_WRONG
from turngate.cli.posix_signals import stop_signals
from turngate.domain.errors import ConfigurationError
from turngate.evals import Attempt, Case, Report, changes, junit_xml, load_cases, load_report, run_cases
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging

STDOUT: Final = Path("-")


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the command was asked for, as it stands in its options."""

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


def evaluate(settings: Settings, order: Order) -> None:
    """Run the cases, report, and raise typer.Exit with the exit code unless it is 0. Raises ConfigurationError."""
    cases = _chosen(load_cases(order.cases), order.only)
    before = None if order.baseline is None else load_report(order.baseline)
    for file in (order.json_file, order.junit_file):
        _require_place(file)
    # What the engine logs of each run is for servers; here it would bury the progress.
    configure_logging("debug" if settings.log_level == "debug" else "error", settings.log_format)
    app = load_builders_app(order.app)
    report = asyncio.run(_run(settings, order, app, cases))
    if order.json_file == STDOUT:
        terminal.raw(report.as_json().removesuffix("\n"))
    else:
        views.show(report, changed=[] if before is None else changes(before, report), app=order.app)
    _write(order.json_file, report.as_json)
    _write(order.junit_file, lambda: junit_xml(report))
    if report.interrupted:
        raise typer.Exit(EXIT_CTRL_C)
    enough = report.all_passed if order.fail_under is None else (report.totals.pass_rate or 0) >= order.fail_under
    if not enough:
        raise typer.Exit(EXIT_WENT_WRONG)


async def _run(settings: Settings, order: Order, app: LoadedApp, cases: list[Case]) -> Report:
    beside = order.cases.resolve().parent
    runs = len(cases) * max(len(order.models), 1) * order.repeat
    ended = 0

    def told(attempt: Attempt) -> None:
        nonlocal ended
        ended += 1
        terminal.note(*views.progress(attempt, ended, runs))

    with stop_signals() as stop:
        stop.running()
        return await run_cases(
            app,
            cases,
            models=order.models,
            parallel=order.parallel,
            repeat=order.repeat,
            keep=order.keep,
            beside=beside,
            settings=settings,
            on_attempt=told,
            stop=stop.told,
        )


def _chosen(cases: list[Case], only: list[str]) -> list[Case]:
    """Return the cases whose names fit one of the patterns; all without any."""
    for pattern in only:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            raise ConfigurationError(f"--only {pattern}: no case has such a name; there are: {_names(cases)}")
    return [case for case in cases if not only or any(fnmatchcase(case.name, pattern) for pattern in only)]


def _names(cases: list[Case]) -> str:
    return ", ".join(case.name for case in cases)


def _require_place(file: Path | None) -> None:
    """Refuse a file whose directory is not there, before anything is paid for."""
    if file is not None and file != STDOUT and (file.is_dir() or not file.resolve().parent.is_dir()):
        raise ConfigurationError(f"{file} cannot be written: it is a directory, or lies in one that is not there")


def _write(file: Path | None, text: Callable[[], str]) -> None:
    if file is None or file == STDOUT:
        return
    try:
        file.write_text(text(), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigurationError(f"the file {file} cannot be written: {error.strerror}") from None


# ``turngate eval``: an app against a file of cases (docs/howto/evaluate-an-agent.md).


def eval_app(
    app: Annotated[
        str, typer.Argument(metavar="APP", show_default=False, help="Your app as MODULE:NAME, such as my_app:app.")
    ],
    cases: Annotated[
        Path, typer.Argument(metavar="CASES", show_default=False, help="The file of cases: YAML, or JSON.")
    ],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="MODEL|AGENT=MODEL,…",
            show_default=False,
            help="Run every case under this model; several are compared, a column each. By agent, sub-agents too: "
            "`support=fast,reader=openai:gpt-5`; `*=fast` for all.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", show_default=False, help="Only cases whose name fits; `*` stands for anything."
        ),
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="How many attempts run at a time.")] = 4,
    repeat: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="How often each case is tried.")] = 1,
    fail_under: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="RATE",
            show_default="1: all have to pass",
            help="The least pass rate for exit code 0.",
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", show_default=False, help="Write the report as JSON; `-` prints it instead."
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", show_default=False, help="Write the report as JUnit XML.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="An earlier `--json` report: show what changed."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", show_default=False, help="Keep the store in this new directory, to look at runs afterwards."
        ),
    ] = None,
) -> None:
    """Run your app against a file of cases, and report how it did.

    Each case goes through the real engine, on a server of its own that is gone afterwards. Keys of providers are taken from
    the environment, as by `turngate up`.

    Exit code: 0 all passed (or as many as --fail-under asks for); 1 some did not; 2 a case or an option is wrong, and nothing
    has run; 130 stopped by Ctrl-C, after a report on what was known.
    """
    evaluate(
        load_settings(),
        Order(
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
