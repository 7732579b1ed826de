"""Another process that writes the same SQLite file. Run by tests: ``lock_holder.py hold|write PATH [NAME …]``."""

from __future__ import annotations

import asyncio
import sqlite3
import sys


def hold(path: str) -> None:
    """Take the write lock, write a row, say so, and keep the lock until a line comes in; then commit."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO conversations (id, created_at) VALUES ('held', '')")
    print("locked", flush=True)
    sys.stdin.readline()
    connection.execute("COMMIT")


async def write(path: str, names: list[str]) -> None:
    """Migrate, say so, and write one row in a transaction of its own for each name."""
    from turngate.store.database import Database  # noqa: PLC0415
    from turngate.store.runs import messages  # noqa: PLC0415 - `hold` must not depend on what it tests

    database = Database(f"sqlite:///{path}")
    await database.migrate()
    print("ready", flush=True)
    for name in names:
        async with database.write() as conn:
            await messages.create_conversation(conn, name)
    await database.close()


if __name__ == "__main__":
    verb, file, *rest = sys.argv[1:]
    if verb == "hold":
        hold(file)
    else:
        asyncio.run(write(file, rest))
