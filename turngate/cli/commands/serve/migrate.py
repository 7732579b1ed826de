"""``turngate migrate``."""

from __future__ import annotations

import asyncio

from turngate.cli import stores, terminal
from turngate.cli.commands.serve.settings import server_settings
from turngate.cli.options import DataDir
from turngate.runtime.settings import Settings


def migrate(data_dir: DataDir = None) -> None:
    """Bring the database's schema to this version, before new workers and APIs start.

    Where the database's URL names a PostgreSQL schema and role, they are created if they are missing.
    """
    migrate_store(server_settings(data_dir=data_dir))


def migrate_store(settings: Settings) -> None:
    """Bring the store's schema to this version."""

    async def bring_up_to_date() -> str | None:
        async with stores.opened_store(settings, migrate=True) as database:
            return await database.schema_revision()

    terminal.line(f"the store's schema is at {asyncio.run(bring_up_to_date())}")
