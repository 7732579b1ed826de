"""``turngate retention``: what is kept how long, when it was applied, and what went."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from turngate.approvals_api.retention import apply
from turngate.approvals_api.retention.apply import read_rules
from turngate.approvals_api.retention.overview import retention_status
from turngate.cli import stores, terminal
from turngate.cli.api_settings import retention_settings
from turngate.cli.options import AsJson, DataDir
from turngate.domain.retention import RetentionRule
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.clock import now
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.retention import RetentionRunView, RetentionStatus

File = Annotated[
    Path,
    typer.Argument(envvar="TURNGATE_RETENTION", metavar="FILE", help="The retention file (TOML).", show_default=False),
]

app = typer.Typer(help="What is kept how long: last and next run, check the file, preview, run.")
RUNS_LISTED = 10


@app.callback(invoke_without_command=True)
def status(context: typer.Context, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Without a command: print when retention ran last and runs next, and what went.

    An API applies the file in TURNGATE_RETENTION by itself, once a day. TURNGATE_RETENTION_EVERY_SECONDS changes that; 0 turns it
    off.
    """
    if context.invoked_subcommand is not None:
        return
    settings = load_stack_settings(data_dir=data_dir)
    seen = asyncio.run(_status(settings))
    if as_json:
        terminal.document(seen.model_dump_json())
        return
    terminal.table(("STARTED", "ENDED", "BY", "WHAT WENT"), [_run_row(each) for each in seen.runs])
    if not seen.runs:
        terminal.note("retention has not run yet")
    terminal.note(seen.says)


async def _status(settings: Settings) -> RetentionStatus:
    async with stores.opened_store(settings) as database:
        return await retention_status(database, retention_settings(settings), runs=RUNS_LISTED)


def _run_row(run: RetentionRunView) -> tuple[str, ...]:
    ended = minute(run.ended_at) if run.ended_at is not None else run.state
    went = ", ".join(f"{many:,} {plain_line(name)}" for name, many in run.counts.items() if many) or "nothing"
    return (minute(run.started_at), ended, plain_line(run.started_by), f"{went} {plain_line(run.problem)}".rstrip())


@app.command("check")
def check(file: File = Path("retention.toml")) -> None:
    """Check the file, and print its rules."""
    rules = read_rules(file)
    terminal.table(("RULE", "KIND", "KEPT", "OF"), [_row(each) for each in rules])
    if not rules:
        terminal.note("the file has no rules: everything is kept")


@app.command("preview")
def preview(file: File = Path("retention.toml"), as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Print how much each rule would erase now. Changes nothing."""
    _print(_apply(read_rules(file), data_dir, only_preview=True), as_json=as_json, done="would go")


@app.command("run")
def run(file: File = Path("retention.toml"), as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Erase what the rules no longer keep. Legal holds are respected; the audit log says what went by which rule."""
    _print(_apply(read_rules(file), data_dir, only_preview=False), as_json=as_json, done="went")


def _apply(rules: Sequence[RetentionRule], data_dir: Path | None, *, only_preview: bool) -> dict[str, int]:
    async def act() -> dict[str, int]:
        settings = load_stack_settings(data_dir=data_dir)
        async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
            if only_preview:
                return await apply.preview(database, rules, now())
            return await apply.run(database, rules, now(), by=await stores.actor(database))

    return asyncio.run(act())


def _print(counts: dict[str, int], *, as_json: bool, done: str) -> None:
    if as_json:
        terminal.raw(json.dumps(counts))
        return
    terminal.table(("RULE", done.upper()), [(name, f"{number:,}") for name, number in counts.items()])


def _row(rule: RetentionRule) -> tuple[str, ...]:
    whose = ", ".join(rule.tools or ()) or rule.agent or "everyone"
    return (rule.name, rule.kind, f"{rule.keep.days} d" if rule.keep.days else str(rule.keep), whose)
