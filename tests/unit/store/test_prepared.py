"""Statements that run on SQLite's driver itself: what comes back is what SQLAlchemy returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from turngate.store.connection import Parameters
from turngate.store.prepared import PREPARE_AFTER, prepared
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
    return form.run(driver, parameters)


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        (select(things).order_by(things.c.id), None),
        (select(things.c.is_new, func.count().label("n")).group_by(things.c.is_new).order_by("n"), None),
        (select(things.c.id, others.c.id, others.c.is_new).join(others, things.c.id == others.c.id), None),
        (select(things).where(things.c.name == bindparam("wanted"), things.c.id < 9), {"wanted": "a\x00"}),
        (text("SELECT id, is_new FROM things WHERE id = :id"), {"id": 1}),
        (select(things).where(things.c.id > 5), None),
    ],
)
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
