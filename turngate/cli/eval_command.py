"""``turngate eval``: an app against a file of cases (docs/howto/evaluate-an-agent.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turngate.runtime.settings import load_settings


def evaluate(
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
    """Run an agent over cases, with swapped handlers and scripted approvers, and report how it did.

    Each case goes through the real engine, on a server of its own that is gone afterwards. Keys of providers are taken from
    the environment, as by `turngate up`.

    Exit code: 0 all passed (or as many as --fail-under asks for); 1 some did not; 2 a case or an option is wrong, and nothing
    has run; 130 stopped by Ctrl-C, after a report on what was known.
    """
    from turngate.cli import evaluating  # noqa: PLC0415 - slow to import

    evaluating.evaluate(
        load_settings(),
        evaluating.Order(
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
