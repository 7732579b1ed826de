"""``turngate retention``: what is kept how long. Run it daily; a run that was killed is continued by the next one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from approvals_api.retention import apply
from turngate.cli import stores, terminal
from turngate.cli.options import AsJson, DataDir
from turngate.domain.errors import ConfigurationError
from turngate.domain.retention import RetentionRule, read_retention
from turngate.runtime.settings import load_stack_settings
from turngate.store.clock import now

File = Annotated[
    Path,
    typer.Argument(envvar="TURNGATE_RETENTION", metavar="FILE", help="The retention file (TOML).", show_default=False),
]

app = typer.Typer(no_args_is_help=True, help="What is kept how long: check the file, preview, run.")


@app.command("check")
def check(file: File = Path("retention.toml")) -> None:
    """Check the file, and print its rules."""
    rules = _rules(file)
    terminal.table(("RULE", "KIND", "KEPT", "OF"), [_row(each) for each in rules])
    if not rules:
        terminal.note("the file has no rules: everything is kept")


@app.command("preview")
def preview(file: File = Path("retention.toml"), as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Print how much each rule would erase now. Changes nothing."""
    _print(_apply(_rules(file), data_dir, only_preview=True), as_json=as_json, done="would go")


@app.command("run")
def run(file: File = Path("retention.toml"), as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """Erase what the rules no longer keep. Legal holds are respected; the audit log says what went by which rule."""
    _print(_apply(_rules(file), data_dir, only_preview=False), as_json=as_json, done="went")


def _rules(file: Path) -> list[RetentionRule]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the retention file {file} cannot be read ({error}): name one, or set TURNGATE_RETENTION"
        ) from None
    return read_retention(text, file=str(file))


def _apply(rules: Sequence[RetentionRule], data_dir: Path | None, *, only_preview: bool) -> dict[str, int]:
    async def act() -> dict[str, int]:
        settings = load_stack_settings(data_dir=data_dir)
        async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
            if only_preview:
                return await apply.preview(database, rules, now())
            return await apply.run(database, rules, now(), by=stores.acting_as())

    return asyncio.run(act())


def _print(counts: dict[str, int], *, as_json: bool, done: str) -> None:
    if as_json:
        terminal.raw(json.dumps(counts))
        return
    terminal.table(("RULE", done.upper()), [(name, f"{number:,}") for name, number in counts.items()])


def _row(rule: RetentionRule) -> tuple[str, ...]:
    whose = ", ".join(rule.tools or ()) or rule.agent or "everyone"
    return (rule.name, rule.kind, f"{rule.keep.days} d" if rule.keep.days else str(rule.keep), whose)
