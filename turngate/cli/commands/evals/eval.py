"""``turngate eval``: an app against a file of cases (docs/howto/evaluate-an-agent.md)."""

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
from turngate.cli.posix_signals import stop_on_posix_signals
from turngate.domain.errors import ConfigurationError
from turngate.evals import Attempt, Case, Report, changes, junit_xml, load_cases, load_report, run_cases
from turngate.runtime.app_loader import LoadedApp
from turngate.runtime.settings import Settings, load_settings
from turngate.runtime.telemetry import configure_logging

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


async def _run(settings: Settings, order: EvalOrder, app: LoadedApp, cases: list[Case]) -> Report:
    beside = order.cases.resolve().parent
    runs = len(cases) * max(len(order.models), 1) * order.repeat
    ended = 0

    def on_attempt(attempt: Attempt) -> None:
        nonlocal ended
        ended += 1
        terminal.note(*views.progress(attempt, ended, runs))

    with stop_on_posix_signals() as stop:
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
            on_attempt=on_attempt,
            stop=stop.requested,
        )


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
