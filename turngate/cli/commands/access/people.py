"""``turngate people``: who has which id. It reads the store."""

from __future__ import annotations

import asyncio

import typer

from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.runtime.settings import load_stack_settings
from turngate.store.access import people
from turngate.store.access.people import PersonRow
from turngate.text.instants import minute
from turngate.text.plain_text import plain_line
from turngate.wire.people import display_name

app = typer.Typer(no_args_is_help=True, help="The ids by which decisions and the audit log name people.")


@app.command("list")
def listed(data_dir: DataDir = None) -> None:
    """List everyone who was given an id: name, id, since when."""
    settings = load_stack_settings(data_dir=data_dir)

    async def read() -> list[PersonRow]:
        async with stores.opened_store(settings) as database, database.read() as conn:
            return await people.every(conn)

    terminal.table(
        ("NAME", "ID", "SINCE"),
        [(plain_line(display_name(each.id)), each.id, minute(each.created_at)) for each in asyncio.run(read())],
    )
