"""``turngate search-attributes``: by what runs are found in Temporal, and adding it to a server."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from turngate.cli import terminal
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import DataDir
from turngate.domain.runs.labels import ATTRIBUTES
from turngate.runtime import search_attributes, temporal_client
from turngate.runtime.locations import RunningStack
from turngate.runtime.settings import Settings

Add = Annotated[bool, typer.Option("--add", help="Add what is missing. Needs an operator's rights at Temporal.")]


def attributes(add: Add = False, data_dir: DataDir = None) -> None:
    """Say which search attributes Temporal's namespace lacks, or add them.

    Runs can be found in Temporal by agent, source, starter and schedule once its namespace has these search
    attributes. Without them runs work all the same. `turngate up` adds them to its own server by itself.

    Exit code: 0 when the namespace has them all, 1 when it lacks one.
    """
    lacking = asyncio.run(_look_or_add(server_settings(data_dir=data_dir), add=add))
    if lacking and not add:
        terminal.line(f"missing: {', '.join(lacking)}. To add: `turngate search-attributes --add`")
        raise typer.Exit(1)
    if lacking:
        terminal.line(f"added: {', '.join(lacking)}. New runs get them within a minute")
    else:
        terminal.line(f"nothing is missing: {', '.join(ATTRIBUTES)}")


async def _look_or_add(settings: Settings, *, add: bool) -> list[str]:
    note = RunningStack.read(settings.data_dir) if settings.temporal_address is None else None
    client = await temporal_client.connect(settings, note.temporal_address if note else None)
    return await search_attributes.look_or_add(client, adding=add)
