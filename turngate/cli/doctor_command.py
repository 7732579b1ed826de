"""``turngate doctor``: is everything there, and what to do about what is not."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.failing import EXIT_WENT_WRONG
from turngate.cli.options import DEFAULT_APP, ApiPort, AppArgument, DataDir
from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import load_settings
from turngate.text.plain_text import plain


def doctor(
    app: AppArgument = DEFAULT_APP,
    port: ApiPort = None,
    data_dir: DataDir = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Ask each model a short question; it may cost something.")
    ] = False,
) -> None:
    """Check this machine, the data directory, the database, Temporal, the port, APP with its agents, and its models.

    Exit code 1 when something is wrong; each ✗ says how to mend it. A ! works, and may still not be what you meant, such
    as a tool without a handler.
    """
    from turngate.cli import checks  # noqa: PLC0415 - slow to import

    try:
        settings = load_settings(api_port=port, data_dir=data_dir)
    except ConfigurationError as error:
        _show(checks.Finding("settings", str(error), good=False))
        raise typer.Exit(EXIT_WENT_WRONG) from None
    found = asyncio.run(checks.examine(settings, app, probe=probe, show=_show))
    if not all(finding.good for finding in found):
        raise typer.Exit(EXIT_WENT_WRONG)
    terminal.line("")
    terminal.line(("everything is in order", "green"))


def _show(finding: object) -> None:
    from turngate.cli.checks import Finding  # noqa: PLC0415 - slow to import

    if isinstance(finding, Finding):
        good = ("! ", "yellow") if finding.warns else ("✓ ", "green")
        mark = good if finding.good else ("✗ ", "red")
        terminal.line(mark, f"{finding.what}: {plain(finding.said)}")
