"""The entry point: every group of commands, and the end of the process."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

import turngate
from turngate.cli import terminal
from turngate.cli.commands import (
    access,
    evals,
    events,
    frontends,
    policy,
    recovery,
    requests,
    retention,
    runs,
    schedules,
    serve,
    setup,
)
from turngate.cli.errors import EXIT_CTRL_C, Commands
from turngate.cli.lazy import MARKUP
from turngate.cli.posix_signals import leave

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(setup.app)
app.add_typer(serve.app)
app.add_typer(recovery.app)
app.add_typer(runs.app)
app.add_typer(schedules.app)
app.add_typer(evals.app)
app.add_typer(requests.app)
app.add_typer(policy.app)
app.add_typer(access.app)
app.add_typer(retention.app)
app.add_typer(events.app)
app.add_typer(frontends.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turngate {turngate.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turngate runs AI agents whose tool calls wait for a person's consent."""
    if context.invoked_subcommand != "doctor" and any(name.upper().startswith("TURNGATE_") for name in os.environ):
        from turngate.cli.commands.serve.settings import unknown_settings  # noqa: PLC0415 - a list of commands needs none

        for each in unknown_settings():
            terminal.warning(each)


def main() -> NoReturn:
    """Run one command. The exit codes are in :mod:`turngate.cli.errors`."""
    terminal.prepare_streams()
    if not sys.warnoptions:  # Libraries warn their developers at import; ask for it with `python -W default`.
        warnings.simplefilter("ignore")
    try:
        app(prog_name="turngate")
    except KeyboardInterrupt:  # between two commands' own handling
        leave(EXIT_CTRL_C)
    except SystemExit as done:
        leave(done.code if isinstance(done.code, int) else int(done.code is not None))
    leave(0)
