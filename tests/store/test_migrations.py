"""Migrations give exactly the tables the code declares, however often and by however many they are run."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from turngate.store import events, runs
from turngate.store.database import Database
from turngate.store.tables import event_counter, metadata

MODELS = importlib.import_module("turngate.store.migrations.versions.0006_models")


def differences(connection: sqlalchemy.Connection) -> list[Any]:
    # On SQLite Alembic takes an empty-string default for another one; the same migration is compared on PostgreSQL.
    options = {"compare_type": True, "compare_server_default": connection.dialect.name != "sqlite"}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


async def test_migrations_give_exactly_the_declared_tables(database: Database) -> None:
    """Nothing that the code declares is missing in a migrated database, and nothing else is there."""
    async with database.read() as conn:
        assert await conn.run_sync(differences) == []


async def test_the_comparison_sees_a_difference(database: Database) -> None:
    """A column, an index or a table too many is found: the test above can fail."""
    async with database.write() as conn:
        await conn.execute(sqlalchemy.text("ALTER TABLE agents ADD COLUMN extra TEXT"))
        await conn.execute(sqlalchemy.text("DROP INDEX ix_requests_pending"))
        await conn.execute(sqlalchemy.text("DROP TABLE login_links"))
    async with database.read() as conn:
        found = await conn.run_sync(differences)
    assert sorted(each[0] for each in found) == ["add_index", "add_table", "remove_column"]


async def test_migrating_again_changes_nothing(database: Database) -> None:
    """A second start migrates again: rows stay, and the one counter row is not doubled."""
    async with database.write() as conn:
        await conn.execute(sqlalchemy.update(event_counter).values(last_seq=7))
    await database.migrate()
    async with database.read() as conn:
        assert await events.last_seq(conn) == 7
        assert await conn.run_sync(differences) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_two_processes_may_migrate_at_once(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """Worker and API start together on an empty database; each has its own connections, and both succeed."""
    url = f"sqlite:///{tmp_path}/new.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres").fresh_url()
    databases = [Database(url) for _ in range(3)]
    try:
        async with asyncio.timeout(60):
            assert await asyncio.gather(*(each.migrate() for each in databases), return_exceptions=True) == [None] * 3
        async with databases[0].read() as conn:
            assert await conn.run_sync(differences) == []
            assert await events.last_seq(conn) == 0
    finally:
        for each in databases:
            await each.close()


async def test_runs_that_were_interrupted_before_are_told_with_who_did_it(
    database: Database, new_run: Callable[..., Awaitable[runs.Run]]
) -> None:
    """The events of a run that ended under an earlier release say who interrupted it; its row does after the migration."""

    def again(connection: sqlalchemy.Connection) -> None:
        with Operations.context(MigrationContext.configure(connection)):
            MODELS._drop_outcomes()
            MODELS._add_outcomes()

    made = [("interrupted", "ada"), ("interrupted", ""), ("failed", "engine")]
    ended = [await new_run() for _ in made]
    async with database.write() as conn:
        for run, (status, by) in zip(ended, made, strict=True):
            await runs.end(conn, run.id, status=status)
            await events.append(conn, run.id, [("run.ended", {"status": status, "by": by})])
    async with database.write() as conn:
        await conn.run_sync(again)
        assert await conn.run_sync(differences) == []
        found = [await runs.get(conn, run.id) for run in ended]
    assert [each and each.ended_by for each in found] == ["ada", None, None]
