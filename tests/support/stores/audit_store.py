"""``turngate audit`` over a store of its own, and changes of that store as only its database's administrator can make them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from typer.testing import CliRunner

from turngate.cli import stores
from turngate.cli.main import app
from turngate.runtime.settings import load_settings
from turngate.store.database import Connection

Answer = TypeVar("Answer")


def in_store(data_dir: Path, act: Callable[[Connection], Awaitable[Answer]]) -> Answer:
    """Do something in the store, on a loop of its own: the commands under test have theirs."""

    async def do() -> Answer:
        async with stores.opened_store(load_settings(data_dir=data_dir)) as database, database.write() as conn:
            return await act(conn)

    return asyncio.run(do())


def turngate(*words: str, store: Path | None = None, code: int = 0, stdin: str | None = None) -> tuple[str, str]:
    """Run ``turngate audit``; returns stdout, and stderr as one line."""
    more = () if store is None else ("--data-dir", str(store))
    outcome = CliRunner().invoke(app, ["audit", *words, *more], input=stdin)
    assert outcome.exit_code == code, (outcome.output, outcome.stderr)
    return outcome.stdout, " ".join(outcome.stderr.split())
