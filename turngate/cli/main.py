"""The entry point: every command by its name. What they do stands in the modules beside this one."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from turngate.cli import terminal
from turngate.cli.commands.access import sessions, tokens, users
from turngate.cli.commands.evals import eval as evals
from turngate.cli.commands.events import audit, notify
from turngate.cli.commands.frontends import mcp_gateway, stdio, tui
from turngate.cli.commands.policy import grants, policy
from turngate.cli.commands.recovery import recovery
from turngate.cli.commands.requests import requests
from turngate.cli.commands.runs import compare, control, dry_run, explain, export, fork, result, runs
from turngate.cli.commands.schedules import schedules
from turngate.cli.commands.serve import builds, replay_check, servers
from turngate.cli.commands.setup import demo, doctor, init, models
from turngate.cli.errors import EXIT_CTRL_C, Commands

SERVE = "Serve"
WORK = "Runs and requests"
SET_UP = "Set up and look"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("init", rich_help_panel=SET_UP)(init.init)
app.command("demo", rich_help_panel=SET_UP)(demo.demo)
app.command("doctor", rich_help_panel=SET_UP)(doctor.doctor)
app.command("models", rich_help_panel=SET_UP)(models.models)
app.command("login-link", rich_help_panel=SET_UP)(sessions.login_link)
app.add_typer(tokens.token_app, name="token", rich_help_panel=SET_UP)
app.add_typer(sessions.session_app, name="session", rich_help_panel=SET_UP)
app.add_typer(users.user_app, name="user", rich_help_panel=SET_UP)

app.add_typer(notify.app, name="notify", rich_help_panel=SET_UP)
app.add_typer(audit.app, name="audit", rich_help_panel=SET_UP)

app.command("up", rich_help_panel=SERVE)(servers.up)
app.command("worker", rich_help_panel=SERVE)(servers.worker)
app.command("api", rich_help_panel=SERVE)(servers.api)
app.command("temporal", rich_help_panel=SERVE)(servers.temporal)
app.command(
    "mcp-gateway",
    rich_help_panel=SERVE,
    # The first word that is no option begins the server's command, with options of its own.
    context_settings={"allow_interspersed_args": False},
)(mcp_gateway.mcp_gateway)
app.command("migrate", rich_help_panel=SERVE)(servers.migrate)
app.command("recover", rich_help_panel=SERVE)(recovery.recover)
app.command("reconcile", rich_help_panel=SERVE)(recovery.reconcile)
app.command("replay-check", rich_help_panel=SERVE)(replay_check.replay_check)
app.command("builds", rich_help_panel=SERVE)(builds.builds)

app.command("run", rich_help_panel=WORK)(runs.run)
app.command("watch", rich_help_panel=WORK)(runs.watch)
app.command("runs", rich_help_panel=WORK)(runs.runs)
app.command("explain", rich_help_panel=WORK)(explain.explain)
app.command("export", rich_help_panel=WORK)(export.export)
app.command("compare", rich_help_panel=WORK)(compare.compare)
app.command("fork", rich_help_panel=WORK)(fork.fork)
app.command("replay", rich_help_panel=WORK)(dry_run.replay)
app.command("eval", rich_help_panel=WORK)(evals.eval_app)
app.command("retry", rich_help_panel=WORK)(fork.retry)
app.command("send", rich_help_panel=WORK)(control.send)
app.command("pause", rich_help_panel=WORK)(control.pause)
app.command("model", rich_help_panel=WORK)(control.model)
app.command("resume", rich_help_panel=WORK)(control.resume)
app.command("interrupt", rich_help_panel=WORK)(control.interrupt)
app.command("result", rich_help_panel=WORK)(result.result)
app.command("requests", rich_help_panel=WORK)(requests.requests)
app.command("decide", rich_help_panel=WORK)(requests.decide)
app.command("tui", rich_help_panel=WORK)(tui.tui)
app.command("rpc", rich_help_panel=WORK)(stdio.rpc)
app.command("acp", rich_help_panel=WORK)(stdio.acp)
app.add_typer(schedules.app, name="schedule", rich_help_panel=WORK)
app.add_typer(grants.app, name="grants", rich_help_panel=WORK)
app.add_typer(policy.app, name="policy", rich_help_panel=WORK)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turngate {version('turngate')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turngate runs AI agents whose tool calls wait for a person's consent."""


def main() -> NoReturn:
    """Run one command; the exit codes stand in :mod:`turngate.cli.errors`."""
    terminal.prepare_streams()
    if not sys.warnoptions:  # Libraries warn their developers at import; ask for it with `python -W default`.
        warnings.simplefilter("ignore")
    try:
        app(prog_name="turngate")
    except KeyboardInterrupt:  # between two commands' own handling
        _leave(EXIT_CTRL_C)
    except SystemExit as done:
        _leave(done.code if isinstance(done.code, int) else int(done.code is not None))
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End the process now, its work done and its streams flushed.

    Not by the interpreter's own end: the Temporal SDK's threads hand log lines to Python, and one that does so while
    the interpreter is being taken down aborts the process (``PyGILState_Release: thread state must be current``), after
    an orderly stop and once in some dozens of times.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it may be gone
            stream.flush()
    os._exit(code)
