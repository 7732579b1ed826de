"""``turngate hold``: what may not be erased, by whom and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from turngate.approvals_api.retention import holds
from turngate.cli import stores, terminal
from turngate.cli.options import AsJson, DataDir
from turngate.runtime.settings import load_stack_settings
from turngate.store.database import Database
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name
from turngate.wire.retention import HoldView

Result = TypeVar("Result")
Reason = Annotated[str, typer.Option("--reason", help="Why: the audit log keeps it.")]

app = typer.Typer(no_args_is_help=True, help="Legal holds: what may not be erased. Add, list, remove.")


@app.command("add")
def add(
    target: Annotated[
        str, typer.Argument(metavar="CONVERSATION|AGENT", help="A conversation's id, or an agent's name.")
    ],
    reason: Reason,
    data_dir: DataDir = None,
) -> None:
    """Keep a conversation, or everything of an agent, until the hold is removed. It overrides `turngate erase` and retention."""

    async def act(database: Database) -> HoldView:
        return await holds.add(database, target, reason=reason, by=await stores.actor(database))

    hold = _in_store(data_dir, act)
    terminal.line(("✓ ", "bold"), f"{hold.id}: nothing of {plain_line(hold.target)} is erased from now on")


@app.command("remove")
def remove(
    hold_id: Annotated[str, typer.Argument(metavar="HOLD", help="The hold's id, from `turngate hold list`.")],
    reason: Reason,
    data_dir: DataDir = None,
) -> None:
    """Remove a hold. What retention would have erased goes with its next run."""

    async def act(database: Database) -> HoldView:
        return await holds.remove(database, hold_id, reason=reason, by=await stores.actor(database))

    hold = _in_store(data_dir, act)
    terminal.line(("✓ ", "bold"), f"{hold.id} is removed: {plain_line(hold.target)} may be erased again")


@app.command("list")
def listed(
    every: Annotated[bool, typer.Option("--all", help="Include holds that were removed.")] = False,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the holds that apply, newest first."""
    holds_now = _in_store(data_dir, lambda database: holds.listed(database, every=every))
    if as_json:
        terminal.raw(json.dumps([each.model_dump(mode="json") for each in holds_now]))
        return
    terminal.table(("HOLD", "KEEPS", "SINCE", "BY", "WHY"), [_row(each) for each in holds_now])
    if not holds_now:
        terminal.note("there are no holds")


def _row(hold: HoldView) -> tuple[str, ...]:
    since = minute(hold.created_at)
    if hold.removed_at is not None:
        since += f" to {minute(hold.removed_at)}"
    return (
        hold.id,
        plain_line(hold.target),
        since,
        plain_line(display_name(hold.created_by)),
        plain_line(hold.reason, 120),
    )


def _in_store(data_dir: Path | None, act: Callable[[Database], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        settings = load_stack_settings(data_dir=data_dir)
        async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
            return await act(database)

    return asyncio.run(run())
