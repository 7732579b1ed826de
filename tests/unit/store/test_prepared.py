"""Statements that run on the driver itself: what comes back is what SQLAlchemy returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Executable,
    Integer,
    MetaData,
    Table,
    bindparam,
    create_engine,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.engine import Connection, CursorResult
from sqlalchemy.exc import IntegrityError
from support.engine.stack import until
from support.stores.recycled_postgres import Recycled

from turngate.domain.errors import UnavailableError
from turngate.store.connection import Connection as StoreConnection
from turngate.store.connection import Parameters
from turngate.store.database import Database
from turngate.store.prepared import PREPARE_AFTER, prepared
from turngate.store.sqlite import run_prepared
from turngate.store.storable import StorableText

things = Table(
    "things",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", StorableText),
    Column("is_new", Boolean, nullable=False),
)
others = things.alias()
ROWS: Sequence[Mapping[str, Any]] = [
    {"id": 1, "name": "a\x00", "is_new": True},
    {"id": 2, "name": None, "is_new": False},
]

QUERIES: Sequence[tuple[Executable, Mapping[str, Any] | None]] = [
    (select(things).order_by(things.c.id), None),
    (select(things.c.is_new, func.count().label("n")).group_by(things.c.is_new).order_by("n"), None),
    (select(things.c.id, others.c.id, others.c.is_new).join(others, things.c.id == others.c.id), None),
    (select(things).where(things.c.name == bindparam("wanted"), things.c.id < 9), {"wanted": "a\x00"}),
    (text("SELECT id, is_new FROM things WHERE id = :id"), {"id": 1}),
    (select(things).where(things.c.id > 5), None),
]


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    things.metadata.create_all(engine)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def is_prepared(connection: Connection, statement: Executable, parameters: Parameters | None = None) -> bool:
    return any(prepared(statement, parameters, connection.dialect) for _each in range(PREPARE_AFTER + 1))


def run(connection: Connection, statement: Executable, parameters: Parameters | None = None) -> Any:
    """Run a statement on the driver, as one that has run before."""
    assert is_prepared(connection, statement, parameters)
    form = prepared(statement, parameters, connection.dialect)
    driver = connection.connection.driver_connection
    assert form is not None
    assert driver is not None
    return run_prepared(driver, form, parameters)


@pytest.mark.parametrize(("query", "parameters"), QUERIES)
def test_rows_are_those_of_sqlalchemy(connection: Connection, query: Executable, parameters: Parameters | None) -> None:
    """Names, values and their types, read as rows or as mappings."""
    run(connection, insert(things), ROWS)
    expected = connection.execute(query, parameters)
    names, rows = list(expected.keys()), expected.all()
    result = run(connection, query, parameters)
    assert list(result.keys()) == names
    assert repr(result.all()) == repr(rows)
    assert [dict(row) for row in run(connection, query, parameters).mappings()] == [dict(row._mapping) for row in rows]


def test_writes_count_their_rows_and_may_return_some(connection: Connection) -> None:
    """One row or many, with values of the statement's own."""
    assert run(connection, insert(things), ROWS).rowcount == 2
    assert run(connection, insert(things), {"id": 3, "name": "c", "is_new": True}).rowcount == 1
    rename = update(things).where(things.c.id == bindparam("one")).values(name=bindparam("to"), is_new=False)
    assert run(connection, rename, {"one": 1, "to": "b"}).rowcount == 1
    assert run(connection, rename, {"one": 9, "to": "b"}).rowcount == 0
    removed = delete(things).where(things.c.id == bindparam("one")).returning(things.c.name, things.c.is_new)
    assert run(connection, removed, {"one": 1}).one() == ("b", False)
    assert run(connection, removed, {"one": 1}).one_or_none() is None


def test_an_error_is_sqlalchemys(connection: Connection) -> None:
    """Callers catch its errors, on either way."""
    run(connection, insert(things), ROWS)
    with pytest.raises(IntegrityError, match="UNIQUE constraint failed"):
        run(connection, insert(things), ROWS[:1])


def test_what_sqlalchemy_has_to_do_is_left_to_it(connection: Connection) -> None:
    """Lists, missing parameters, no rows, several rows that return something; and whatever ran less often."""
    by_id = select(things).where(things.c.id == bindparam("one"))
    assert not any(prepared(by_id, {"one": 1}, connection.dialect) for _each in range(PREPARE_AFTER))
    assert is_prepared(connection, by_id, {"one": 1})
    assert not is_prepared(connection, by_id, {"other": 1})
    assert not is_prepared(connection, select(things).where(things.c.id.in_([1, 2])))
    assert not is_prepared(connection, insert(things), [])
    assert not is_prepared(connection, insert(things).returning(things.c.id), ROWS)


@pytest.fixture
async def transaction(recycled: Recycled) -> AsyncIterator[StoreConnection]:
    """A transaction of PostgreSQL with the table."""
    database = await recycled.take()
    async with database.write() as conn:
        columns = "id integer PRIMARY KEY, name text, is_new boolean NOT NULL"
        await conn.execute(text(f"CREATE TEMP TABLE things ({columns}) ON COMMIT DROP"))
        yield conn


async def on_each_way(
    conn: StoreConnection, statement: Executable, each: Sequence[Parameters | None]
) -> list[CursorResult[Any]]:
    """Run a statement once with each of these parameters: first SQLAlchemy does, then the driver."""
    assert len(each) > PREPARE_AFTER
    results = [await conn.execute(statement, parameters) for parameters in each]
    assert [result.context is None for result in results] == [place >= PREPARE_AFTER for place in range(len(each))]
    return results


@pytest.mark.parametrize(("query", "parameters"), QUERIES)
async def test_postgresql_returns_the_same(
    transaction: StoreConnection, query: Any, parameters: Mapping[str, Any] | None
) -> None:
    """Names, values and their types, as rows and as mappings. Its driver is asynchronous, and names its parameters."""
    await transaction.execute(insert(things), ROWS)
    statement = query._clone()  # that has not run yet
    first, *_between, last = await on_each_way(transaction, statement, [parameters] * (PREPARE_AFTER + 1))
    assert list(last.keys()) == list(first.keys())
    assert repr(last.all()) == repr(first.all())
    again = (await transaction.execute(statement, parameters)).mappings()
    assert [dict(row) for row in again] == [
        dict(row._mapping) for row in await transaction.execute(query._clone(), parameters)
    ]


async def test_postgresql_writes_the_same(transaction: StoreConnection) -> None:
    """Counts, what is returned, and the error of a row that is there already."""
    row = {"name": "b\x00", "is_new": True}
    add = insert(things).returning(things.c.name, things.c.is_new)
    added = await on_each_way(transaction, add, [{"id": number, **row} for number in range(PREPARE_AFTER + 1)])
    assert {result.one() for result in added} == {("b\ufffd", True)}
    rename = update(things).where(things.c.id == bindparam("one")).values(name=bindparam("to"))
    renamed = await on_each_way(transaction, rename, [{"one": number, "to": "c"} for number in (0, 1, 9, 2, 9)])
    assert [result.rowcount for result in renamed] == [1, 1, 0, 1, 0]
    with pytest.raises(IntegrityError, match="duplicate key"):
        await transaction.execute(add, {"id": 0, **row})


SLEEP = text("SELECT pg_sleep(:seconds)")


async def test_what_a_cancelled_task_ran_on_postgresql_is_over(recycled: Recycled) -> None:
    """The server also stops, and the next look-up gets a connection that answers."""
    database = await recycled.take()
    async with database.glance() as conn:
        await on_each_way(conn, SLEEP, [{"seconds": 0.0}] * (PREPARE_AFTER + 1))

    async def sleep() -> None:
        async with database.glance() as conn:
            await conn.execute(SLEEP, {"seconds": 1000.0})

    asleep = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
        "AND query LIKE 'SELECT pg_sleep%'"
    )

    async def count() -> int:
        async with database.glance() as conn:
            return int((await conn.execute(asleep)).scalar_one())

    async def is_asleep() -> bool:
        return await count() == 1

    async def is_over() -> bool:
        return await count() == 0

    sleeping = asyncio.create_task(sleep())
    await until(is_asleep, "a query that sleeps")
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    await until(is_over, "the end of the query")


async def test_a_lost_connection_to_postgresql_is_an_outage_once(recycled: Recycled) -> None:
    """A statement of the hot path finds it lost; the pool then replaces the others, and the next ones run."""
    database = await recycled.take()
    look = text("SELECT :number")

    async def looked(number: int) -> Any:
        async with database.glance() as conn:
            await asyncio.sleep(0)
            return (await conn.execute(look, {"number": number})).scalar_one()

    assert [await looked(number) for number in range(PREPARE_AFTER + 1)] == list(range(PREPARE_AFTER + 1))
    await asyncio.gather(*(looked(number) for number in range(3)))
    other = Database(database.url)
    async with other.glance() as killer:
        await killer.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )
    await other.close()
    with pytest.raises(UnavailableError):
        await looked(1)
    assert await asyncio.gather(*(looked(number) for number in range(3))) == [0, 1, 2]
