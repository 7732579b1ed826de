"""An evaluation from the command line: its files checked first, its progress on stderr, its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import typer

from turngate.cli import eval_output, terminal
from turngate.cli.app_loading import load_builders_app
from turngate.cli.failing import EXIT_CTRL_C, EXIT_WENT_WRONG
from turngate.cli.signals import stop_signals
from turngate.domain.errors import ConfigurationError
from turngate.evals import Attempt, Case, Report, changes, junit_xml, load_cases, load_report, run_cases
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings
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
        eval_output.show(report, changed=[] if before is None else changes(before, report), app=order.app)
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
        terminal.note(*eval_output.progress(attempt, ended, runs))

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
