"""Migrating gives exactly the declared tables, however often and in however many processes at once."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.script import ScriptDirectory

from turngate.domain.errors import UnknownSchemaError
from turngate.store import schema
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.tables import event_counter, metadata

Schema = dict[str, dict[str, Any]]


def schema_of(connection: sqlalchemy.Connection) -> Schema:
    """Return the database's description of each table: columns, keys and indexes, named and in a fixed order."""
    inspector = sqlalchemy.inspect(connection)
    tables: Schema = {}
    for table in set(inspector.get_table_names()) - {"alembic_version"}:
        tables[table] = {
            "columns": {
                column["name"]: (str(column["type"]), column["nullable"], column["default"])
                for column in inspector.get_columns(table)
            },
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": {key["name"]: key for key in inspector.get_foreign_keys(table)},
            "unique": {key["name"]: key for key in inspector.get_unique_constraints(table)},
            # The whole statement that creates it: which rows a partial index holds is part of its contract.
            "indexes": {index["name"]: _with_its_condition(index) for index in inspector.get_indexes(table)},
        }
    return tables


def _with_its_condition(index: Any) -> dict[str, Any]:
    return {**index, "dialect_options": {name: str(option) for name, option in index["dialect_options"].items()}}


async def schema_in(database: Database) -> Schema:
    async with database.read() as conn:
        return await conn.run_sync(schema_of)


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Gives the address of an empty database of a kind."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path}/empty.db"
        url: str = request.getfixturevalue("postgres").fresh_url()
        return url

    return make


async def _declared(url: str) -> Schema:
    """Return the schema of a database whose tables come from their declarations alone."""
    database = Database(url)
    try:
        async with database.write() as conn:
            await conn.run_sync(metadata.create_all)
        return await schema_in(database)
    finally:
        await database.close()


def _kind(database: Database) -> str:
    return database.url.partition(":")[0].partition("+")[0]


async def _revision_becomes(database: Database, revision: str) -> None:
    async with database.write() as conn:
        await conn.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = :it"), {"it": revision})


async def test_a_new_database_has_exactly_the_declared_tables(
    database: Database, empty_url: Callable[[str], str]
) -> None:
    """A migrated database has everything that the code declares and nothing else, and all names agree."""
    migrated = await schema_in(database)
    assert len(migrated) > 40
    assert migrated == await _declared(empty_url(_kind(database)))


async def test_the_comparison_sees_a_difference(sqlite: Database) -> None:
    """An extra column, index or table is noticed, so the test above can fail."""
    before = await schema_in(sqlite)
    async with sqlite.write() as conn:
        await conn.execute(sqlalchemy.text("ALTER TABLE agents ADD COLUMN extra TEXT"))
        await conn.execute(sqlalchemy.text("DROP INDEX ix_requests_pending"))
        await conn.execute(sqlalchemy.text("CREATE INDEX ix_requests_pending ON requests (created_at)"))
        await conn.execute(sqlalchemy.text("DROP TABLE login_links"))
    after = await schema_in(sqlite)
    assert before.keys() - after.keys() == {"login_links"}
    assert {name for name, table in after.items() if table != before[name]} == {"agents", "requests"}
    assert after["agents"]["columns"].keys() - before["agents"]["columns"].keys() == {"extra"}
    assert after["requests"]["indexes"]["ix_requests_pending"] != before["requests"]["indexes"]["ix_requests_pending"]


async def test_migrating_again_changes_nothing(database: Database) -> None:
    """A second start migrates again: rows stay, and the counter's one row is not doubled."""
    before = await schema_in(database)
    async with database.write() as conn:
        await conn.execute(sqlalchemy.update(event_counter).values(last_seq=7))
    await database.migrate()
    async with database.read() as conn:
        assert await events.last_seq(conn) == 7
    assert await schema_in(database) == before
    assert await database.schema_revision() == schema.newest_revision()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_two_processes_may_migrate_at_once(empty_url: Callable[[str], str], kind: str) -> None:
    """Worker and API start together on an empty database, each with its own connections, and both succeed."""
    url = empty_url(kind)
    databases = [Database(url) for _ in range(3)]
    try:
        assert await databases[0].schema_revision() is None
        async with asyncio.timeout(60):
            assert await asyncio.gather(*(each.migrate() for each in databases), return_exceptions=True) == [None] * 3
        assert set(await schema_in(databases[0])) == set(metadata.tables)
        async with databases[0].read() as conn:
            assert await events.last_seq(conn) == 0
    finally:
        for each in databases:
            await each.close()


async def test_a_database_of_another_version_is_refused(database: Database) -> None:
    """After a rollback, or of before the first release: the error says what to do, and leaves the schema alone."""
    before = await schema_in(database)
    for revision, attempt in (
        ("0007", database.migrate),
        ("0028_people", database.schema_revision),
        ("0412_later", database.migrate),
        ("0412_later", database.schema_revision),
    ):
        await _revision_becomes(database, revision)
        with pytest.raises(
            UnknownSchemaError, match=rf"has the schema {revision}, which Turngate .* doesn't know"
        ) as refused:
            await attempt()
        assert "run that one, or restore a backup" in str(refused.value)
        assert "move the data directory away" in str(refused.value)
        assert "TURNGATE_DATABASE_URL" in str(refused.value)
    assert await schema_in(database) == before


def test_a_revision_is_the_name_of_its_file() -> None:
    """What a database says is found among the files without importing them."""
    migrations = list(ScriptDirectory(str(schema.MIGRATIONS)).walk_revisions())
    assert migrations[0].revision == schema.newest_revision()
    assert {each.revision for each in migrations} == {Path(each.path).stem for each in migrations}


async def test_the_tables_are_those_of_the_newest_revision(sqlite: Database) -> None:
    """A table that changes needs a new revision, because databases have the former one.

    Until the first release, put the new digest here. After it, add a migration with a line of its own (CONTRIBUTING.md).
    """
    tables = json.dumps(await schema_in(sqlite), sort_keys=True, default=str)
    assert {schema.newest_revision(): hashlib.sha256(tables.encode()).hexdigest()[:16]} == {
        "0001_initial": "d0fe7f4150ca333f"
    }


def test_migrations_are_one_line_numbered_without_gaps() -> None:
    """Two branches that were merged, each with its own newest migration, would leave a database that can't be migrated."""
    scripts = ScriptDirectory(str(schema.MIGRATIONS))
    assert len(scripts.get_heads()) == 1, "two migrations have one parent: set down_revision of one to the other"
    too_long = [each.revision for each in scripts.walk_revisions() if len(each.revision) > 32]
    assert too_long == [], "PostgreSQL keeps a revision in a column of 32 characters, as Alembic makes it"
    in_order = [each.revision for each in reversed(list(scripts.walk_revisions()))]
    assert [revision.partition("_")[0] for revision in in_order] == [
        f"{number:04}" for number in range(1, len(in_order) + 1)
    ]
    files = sorted(path.stem for path in (schema.MIGRATIONS / "versions").glob("*.py") if path.stem != "__init__")
    assert files == in_order
