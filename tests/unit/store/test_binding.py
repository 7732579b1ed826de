"""Handles bound to a schema on PostgreSQL: each sees its own tables, and the server refuses the others' to it."""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
from collections.abc import AsyncIterator, Callable
from importlib import import_module

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from support.stores.postgres_server import PostgresServer

import turngate.store
from turngate.domain.errors import ConfigurationError
from turngate.store.access import binding
from turngate.store.connection import Binding
from turngate.store.database import Database
from turngate.store.runs import messages
from turngate.store.tables import metadata

MARKER = "marker-of-acme"
WITHOUT_A_STORE = [f"turngate.store.access.passwords.{name}" for name in ("hash_password", "verify_password")]
"""They compute in a thread and reach no store."""
ACME = Binding(schema="tenant_acme", role="tenant_acme")
BOLT = Binding(schema="tenant_bolt", role="tenant_bolt")


@pytest.fixture(scope="module")
async def tenants(postgres: PostgresServer) -> AsyncIterator[tuple[Database, Database]]:
    """Two tenants' handles in one database, opened by a login without rights over the server."""
    url = postgres.fresh_url()
    _as_admin(url, "DO $$ BEGIN CREATE ROLE plain LOGIN CREATEROLE; EXCEPTION WHEN duplicate_object THEN END $$")
    _as_admin(url, f'GRANT CREATE ON DATABASE "{make_url(url).database}" TO plain')
    url = make_url(url).set(username="plain").render_as_string(hide_password=False)
    owner = Database(url)
    for each in (ACME, BOLT):
        async with owner.write() as conn:
            assert await binding.create(conn, each)
    await owner.close()
    bound = (make_url(url).update_query_dict(vars(each)) for each in (ACME, BOLT))
    acme, bolt = (Database(each.render_as_string(hide_password=False)) for each in bound)
    for each in (acme, bolt):
        await each.migrate()
    async with acme.write() as conn:
        await messages.create_conversation(conn, MARKER)
    yield acme, bolt
    await acme.close()
    await bolt.close()
    _as_admin(acme.url, "DROP SCHEMA tenant_acme, tenant_bolt CASCADE; DROP ROLE tenant_acme, tenant_bolt")


def _as_admin(url: str, statement: str) -> None:
    where = make_url(url)
    with psycopg.connect(
        host=where.host, port=where.port, user="turngate", dbname=where.database, autocommit=True
    ) as it:
        it.execute(statement)


async def refused(database: Database, statement: str) -> str:
    """Return what the server says of a statement that it must refuse."""
    with pytest.raises(DBAPIError) as caught:
        async with database.write() as conn:
            await conn.execute(text(statement))
    return str(caught.value.orig)


@pytest.mark.parametrize("table", sorted(metadata.tables))
async def test_the_server_refuses_another_tenants_table(tenants: tuple[Database, Database], table: str) -> None:
    """Reading, writing, locking and emptying a table by its qualified name: permission denied, each time, by the server."""
    _acme, bolt = tenants
    column = next(iter(metadata.tables[table].columns)).name
    for form in (
        "SELECT * FROM {}",
        "INSERT INTO {} DEFAULT VALUES",
        "UPDATE {} SET COLUMN = NULL".replace("COLUMN", column),
        "DELETE FROM {}",
        "TRUNCATE {}",
        "LOCK TABLE {}",
        "CREATE VIEW theirs AS SELECT * FROM {}",
    ):
        statement = form.format(f"tenant_acme.{table}")
        assert "permission denied" in await refused(bolt, statement), statement
    async with bolt.read() as conn:
        own = await conn.execute(text(f"SELECT '{table}'::regclass::oid = 'tenant_bolt.{table}'::regclass::oid"))
        assert own.scalar_one()


async def test_the_same_ids_live_beside_each_other(tenants: tuple[Database, Database]) -> None:
    """A conversation with an id that the other tenant uses is another conversation."""
    acme, bolt = tenants
    count = text("SELECT count(*) FROM conversations")
    async with bolt.read() as conn:
        assert (await conn.execute(count)).scalar_one() == 0
    async with bolt.write() as conn:
        await messages.create_conversation(conn, MARKER)
        await conn.execute(text("DELETE FROM conversations"))
    async with acme.read() as conn:
        assert (await conn.execute(count)).scalar_one() == 1


@pytest.mark.parametrize("undo", ["RESET search_path", "RESET ROLE", "RESET ALL", "DISCARD ALL"])
async def test_what_a_session_resets_is_bound_again(tenants: tuple[Database, Database], undo: str) -> None:
    """The server returns to what the connection was opened with, not to the login's own rights."""
    _acme, bolt = tenants
    async with bolt.glance() as conn:
        await conn.execute(text(undo))
        seen = (await conn.execute(text("SELECT current_schemas(false)::text, current_user::text"))).one()
    assert tuple(seen) == ("{tenant_bolt}", "tenant_bolt")


async def test_a_commit_wakes_its_own_tenant_only(tenants: tuple[Database, Database]) -> None:
    """Another process's commit of acme rings acme's watchers; bolt's hear nothing of it."""
    acme, bolt = tenants
    others = Database(acme.url)
    rings: dict[str, asyncio.Event] = {"acme": asyncio.Event(), "bolt": asyncio.Event()}
    async with acme.commits(rings["acme"].set), bolt.commits(rings["bolt"].set):
        for each in rings.values():  # each rings once when it listens
            await asyncio.wait_for(each.wait(), 10)
            each.clear()
        async with others.write() as conn:
            await conn.execute(text("UPDATE event_counter SET last_seq = last_seq"))
        await asyncio.wait_for(rings["acme"].wait(), 10)
        assert not rings["bolt"].is_set()
    await others.close()


async def test_a_connection_that_is_not_bound_is_refused(
    tenants: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooler that drops a connection's options would hand out another schema; the handle refuses to use it."""
    _acme, bolt = tenants
    monkeypatch.setattr(Binding, "connecting", lambda _self, url: url.difference_update_query(["schema", "role"]))
    unbound = Database(bolt.url)
    with pytest.raises(ConfigurationError, match="not bound to the schema tenant_bolt"):
        async with unbound.read():
            pass
    await unbound.close()


async def test_rights_across_tenants_are_found(tenants: tuple[Database, Database]) -> None:
    """What would make the role no lock is named, with the fix, and gone once it is revoked."""
    acme, _bolt = tenants
    plain = Database(make_url(acme.url).difference_update_query(["schema", "role"]).render_as_string(False))
    _as_admin(acme.url, "GRANT USAGE ON SCHEMA tenant_acme TO tenant_bolt")
    async with plain.read() as conn:
        of_bolt, of_acme = await binding.problems(conn, BOLT), await binding.problems(conn, ACME)
    _as_admin(acme.url, "REVOKE USAGE ON SCHEMA tenant_acme FROM tenant_bolt")
    assert of_bolt == ["the role tenant_bolt also reaches tenant_acme: REVOKE its rights there"]
    assert of_acme == ["the schema tenant_acme is open to tenant_bolt: REVOKE their rights"]
    async with plain.write() as conn:
        assert await binding.problems(conn, BOLT) == []
        assert not await binding.create(conn, BOLT)  # safe to repeat
    await plain.close()


@pytest.mark.parametrize("name", ["public; DROP", "Tenant", "pg_x", "a" * 51, "", "x-y", "information_schema"])
def test_a_name_that_needs_quotes_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be a schema"):
        Binding(schema=name)


def store_functions() -> list[Callable[..., object]]:
    """Every public coroutine function and asynchronous generator of the store's modules."""
    modules = [
        import_module(each.name)
        for each in pkgutil.walk_packages(turngate.store.__path__, "turngate.store.")
        if ".migrations" not in each.name
    ]
    functions = (
        each
        for module in modules
        for name, each in vars(module).items()
        if not name.startswith("_") and getattr(each, "__module__", "") == module.__name__
    )
    return [each for each in functions if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)]


def test_every_store_function_is_given_its_handle() -> None:
    """Its first parameter is a connection or a database, so a function belongs to the tenant whose handle it is called with."""
    functions = store_functions()
    assert len(functions) > 200
    without = [
        f"{each.__module__}.{each.__name__}"
        for each in functions
        if not any(
            kind in str(next(iter(inspect.signature(each).parameters.values()), "").annotation)
            for kind in ("Connection", "Database", "Store")
        )
    ]
    assert sorted(without) == WITHOUT_A_STORE


def test_no_module_keeps_a_handle() -> None:
    """No module of the store has a database or a connection of its own: then a function could use another tenant's."""
    names = [each.name for each in pkgutil.walk_packages(turngate.store.__path__, "turngate.store.")]
    handles = [
        f"{name}.{key}"
        for name in names
        if ".migrations" not in name
        for key, value in vars(import_module(name)).items()
        if isinstance(value, Database)
    ]
    assert handles == []
