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

from turngate.cli import (
    access_commands,
    audit_commands,
    build_commands,
    compare_commands,
    demo_command,
    doctor_command,
    driver_commands,
    dry_replay_commands,
    eval_command,
    explain_commands,
    export_commands,
    fork_commands,
    grant_commands,
    init_command,
    mcp_gateway_command,
    model_commands,
    notify_commands,
    policy_commands,
    recovery_commands,
    replay_commands,
    request_commands,
    result_commands,
    run_commands,
    schedule_commands,
    serve_commands,
    terminal,
    tui_command,
    user_commands,
)
from turngate.cli.failing import EXIT_CTRL_C, Commands

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

app.command("init", rich_help_panel=SET_UP)(init_command.init)
app.command("demo", rich_help_panel=SET_UP)(demo_command.demo)
app.command("doctor", rich_help_panel=SET_UP)(doctor_command.doctor)
app.command("models", rich_help_panel=SET_UP)(model_commands.models)
app.command("login-link", rich_help_panel=SET_UP)(access_commands.login_link)
app.add_typer(access_commands.token_app, name="token", rich_help_panel=SET_UP)
app.add_typer(access_commands.session_app, name="session", rich_help_panel=SET_UP)
app.add_typer(user_commands.user_app, name="user", rich_help_panel=SET_UP)

app.add_typer(notify_commands.app, name="notify", rich_help_panel=SET_UP)
app.add_typer(audit_commands.app, name="audit", rich_help_panel=SET_UP)

app.command("up", rich_help_panel=SERVE)(serve_commands.up)
app.command("worker", rich_help_panel=SERVE)(serve_commands.worker)
app.command("api", rich_help_panel=SERVE)(serve_commands.api)
app.command("temporal", rich_help_panel=SERVE)(serve_commands.temporal)
app.command(
    "mcp-gateway",
    rich_help_panel=SERVE,
    # The first word that is no option begins the server's command, with options of its own.
    context_settings={"allow_interspersed_args": False},
)(mcp_gateway_command.mcp_gateway)
app.command("migrate", rich_help_panel=SERVE)(serve_commands.migrate)
app.command("recover", rich_help_panel=SERVE)(recovery_commands.recover)
app.command("reconcile", rich_help_panel=SERVE)(recovery_commands.reconcile)
app.command("replay-check", rich_help_panel=SERVE)(replay_commands.replay_check)
app.command("builds", rich_help_panel=SERVE)(build_commands.builds)

app.command("run", rich_help_panel=WORK)(run_commands.run)
app.command("watch", rich_help_panel=WORK)(run_commands.watch)
app.command("runs", rich_help_panel=WORK)(run_commands.runs)
app.command("explain", rich_help_panel=WORK)(explain_commands.explain)
app.command("export", rich_help_panel=WORK)(export_commands.export)
app.command("compare", rich_help_panel=WORK)(compare_commands.compare)
app.command("fork", rich_help_panel=WORK)(fork_commands.fork)
app.command("replay", rich_help_panel=WORK)(dry_replay_commands.replay)
app.command("eval", rich_help_panel=WORK)(eval_command.evaluate)
app.command("retry", rich_help_panel=WORK)(fork_commands.retry)
app.command("send", rich_help_panel=WORK)(run_commands.send)
app.command("pause", rich_help_panel=WORK)(run_commands.pause)
app.command("model", rich_help_panel=WORK)(model_commands.model)
app.command("resume", rich_help_panel=WORK)(run_commands.resume)
app.command("interrupt", rich_help_panel=WORK)(run_commands.interrupt)
app.command("result", rich_help_panel=WORK)(result_commands.result)
app.command("requests", rich_help_panel=WORK)(request_commands.requests)
app.command("decide", rich_help_panel=WORK)(request_commands.decide)
app.command("tui", rich_help_panel=WORK)(tui_command.tui)
app.command("rpc", rich_help_panel=WORK)(driver_commands.rpc)
app.command("acp", rich_help_panel=WORK)(driver_commands.acp)
app.add_typer(schedule_commands.app, name="schedule", rich_help_panel=WORK)
app.add_typer(grant_commands.app, name="grants", rich_help_panel=WORK)
app.add_typer(policy_commands.app, name="policy", rich_help_panel=WORK)


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
    """Run one command; the exit codes stand in :mod:`turngate.cli.failing`."""
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
