"""``turngate people``: whose names are stored, and the switch that gives people ids. It writes the store."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.runtime.settings import load_stack_settings
from turngate.store.access import people
from turngate.store.access.people import PersonRow
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name

app = typer.Typer(no_args_is_help=True, help="Whose names are stored, and whether the log has ids in their place.")


@app.command("list")
def listed(data_dir: DataDir = None) -> None:
    """List everyone who was given an id, or whose name is one: name, id, since when."""
    settings = load_stack_settings(data_dir=data_dir)

    async def read() -> tuple[bool, list[PersonRow]]:
        async with stores.opened_store(settings) as database, database.read() as conn:
            return await people.is_on(conn), await people.every(conn)

    is_on, rows = asyncio.run(read())
    terminal.table(
        ("NAME", "ID", "SINCE"),
        [
            (plain_line(display_name(each.id)), each.id if each.has_id else "the name", minute(each.created_at))
            for each in rows
        ],
    )
    if not is_on:
        terminal.note(
            "people have no ids here: their names are in decisions and in the audit log (turngate people ids --on)"
        )


@app.command("ids")
def ids(
    on: Annotated[bool, typer.Option("--on", help="Give ids to new people from now on. It can't be undone.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Say whether decisions and the audit log name people by id, so that `turngate erase NAME` erases the name everywhere.

    A new store does. Before you turn it on for one that has names: every API, worker and command that uses the store runs this
    release. Restart the workers afterwards.
    """
    settings = load_stack_settings(data_dir=data_dir)

    async def change() -> tuple[bool, int]:
        async with stores.opened_store(settings) as database, stores.signing_log(settings, database):
            if not on:
                async with database.read() as conn:
                    return await people.is_on(conn), 0
            async with database.write() as conn:
                return True, await people.turn_on(conn, local_user=stores.local_user())

    is_on, count = asyncio.run(change())
    if not is_on:
        terminal.line(
            "Off: decisions and the audit log have the names of people, and they stay when a person is erased."
        )
        return
    terminal.line("On: decisions and the audit log have ids for new people. Their names are in one table.")
    if count:
        terminal.note(f"{count:,} name(s) that rows had already stay as they are: `turngate people list` shows whose")
