"""Writes that go to the database together: one statement on PostgreSQL, where each takes a trip; one by one on SQLite.

The parts of such a statement see the database as it was before it, so no part may read or change what another one writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import CTE, Insert, Select, Table, Update, bindparam, func, insert, literal_column, select, union_all

from turngate.store.database import Connection

MOST_ROWS: Final = 8
"""Of one statement. A statement is built and prepared for each number of rows."""
Rows: TypeAlias = Mapping[Table, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Writes:
    """Writes with what they write. ``rows``, ``values``: as :meth:`Together.run` takes them."""

    together: Together
    rows: Rows
    values: Mapping[str, Any]

    async def run(self, conn: Connection) -> list[int]:
        """Write. As :meth:`Together.run`."""
        return await self.together.run(conn, self.rows, self.values)


class Together:
    """Writes in this order. An insert is named by its table; an update has a parameter for each value.

    Updates share their parameters: what has the same name in two of them means the same.
    """

    def __init__(self, *writes: Table | Update) -> None:
        self._writes = writes
        self._names = {write: _parameters(write) for write in writes if isinstance(write, Update)}
        self._inserts = {write: insert(write) for write in writes if isinstance(write, Table)}
        self._joined: dict[tuple[Any, ...], Select[Any]] = {}

    async def run(self, conn: Connection, rows: Rows, values: Mapping[str, Any]) -> list[int]:
        """Write, and return how many rows each write inserted or changed.

        ``rows``: table → the rows to insert, all with the same columns. ``values``: parameters of the updates. Raises
        sqlalchemy's IntegrityError, and then nothing is written.
        """
        if joins(conn, rows):
            return await self.run_joined(conn, rows, values)
        counts: list[int] = []
        for write in self._writes:
            if isinstance(write, Update):
                own = {name: values[name] for name in self._names[write]}
                counts.append((await conn.execute(write, own)).rowcount)
                continue
            if rows[write]:
                await conn.execute(self._inserts[write], list(rows[write]))
            counts.append(len(rows[write]))
        return counts

    async def run_joined(
        self, conn: Connection, rows: Rows, values: Mapping[str, Any], last: Sequence[CTE] = ()
    ) -> list[int]:
        """As :meth:`run`, as one statement. ``last``: more parts of it; the count of the last one is added."""
        counts = tuple(1 if isinstance(write, Update) else len(rows[write]) for write in self._writes)
        shape = (*counts, last)
        if shape not in self._joined:
            self._joined[shape] = self._join(rows, last)
        parameters = dict(values)
        for table, inserted in rows.items():
            for place, row in enumerate(inserted):
                parameters.update({_name(table, column, place): value for column, value in row.items()})
        return [int(count) for count in (await conn.execute(self._joined[shape], parameters)).one()]

    def _join(self, rows: Rows, last: Sequence[CTE]) -> Select[Any]:
        """Return the statement for as many rows as these."""
        counts: list[Any] = []
        for place, write in enumerate(self._writes):
            if not isinstance(write, Update) and not rows[write]:
                counts.append(literal_column("0"))
                continue
            part = write if isinstance(write, Update) else _insert(write, rows[write])
            written = part.returning(literal_column("1").label("one")).cte(f"write_{place}")
            counts.append(select(func.count()).select_from(written).scalar_subquery())
        if last:
            counts.append(select(func.count()).select_from(last[-1]).scalar_subquery())
        return select(*counts).add_cte(*last)


def joins(conn: Connection, rows: Rows) -> bool:
    """Tell whether writes of so many rows are one statement on this database."""
    return conn.dialect.name == "postgresql" and sum(len(each) for each in rows.values()) <= MOST_ROWS


def _parameters(write: Update) -> list[str]:
    return [str(bind.key) for bind in write.compile().binds.values() if bind.required]


def _insert(table: Table, rows: Sequence[Mapping[str, Any]]) -> Insert:
    # SELECT, not VALUES: SQLAlchemy keeps no compiled form of an insert of several rows, and compiling one takes milliseconds.
    columns = list(rows[0])
    each = [
        select(*(bindparam(_name(table, column, place), type_=table.c[column].type) for column in columns))
        for place in range(len(rows))
    ]
    return insert(table).from_select(columns, each[0] if len(each) == 1 else union_all(*each))


def _name(table: Table, column: str, place: int) -> str:
    return f"{table.name}_{column}_{place}"


NO_WRITES: Final = Writes(Together(), {}, {})
