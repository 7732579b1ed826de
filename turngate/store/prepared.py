"""Statements that run on SQLite's driver itself, in a third of the time that SQLAlchemy takes to run them.

SQLAlchemy compiles a statement and knows its types; what it does around each execution costs more than SQLite's own work. So
a statement of the hot path, which is built once and runs again and again, is also compiled once. SQLAlchemy runs the others,
and what this doesn't know: lists in ``IN``, defaults made in Python, several rows that return something.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Executable, Select, TextClause, UpdateBase
from sqlalchemy.engine import CursorResult, Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from turngate.store.connection import Parameters

PREPARE_AFTER: Final = 3
"""How often SQLAlchemy runs a statement before. One that is built for each use runs less often, and would only be compiled."""

Convert = Callable[[Any], Any]
_Known = Select[Any] | UpdateBase | TextClause


class _Value(NamedTuple):
    """Where a value of the statement comes from. ``key``: the parameter's name; None: it is ``constant``."""

    key: str | None
    constant: Any
    convert: Convert | None

    def of(self, parameters: Mapping[str, Any]) -> Any:
        value = self.constant if self.key is None else parameters[self.key]
        return value if self.convert is None else self.convert(value)


class _Rows(IteratorResult[Any]):
    """A result with as much of SQLAlchemy's own as store functions use."""

    rowcount: int


class Prepared:
    """One statement with parameters of certain names. ``converts``: one for each column, where a column needs one."""

    def __init__(
        self, sql: str, values: Sequence[_Value], converts: Sequence[Convert | None], *, returns: bool
    ) -> None:
        self.returns = returns
        self._sql = sql
        self._values = values
        self._converts = converts
        self._columns: SimpleResultMetaData | None = None

    @classmethod
    def of(cls, statement: _Known, names: Sequence[str], dialect: Dialect) -> Prepared | None:
        """Compile a statement; None: SQLAlchemy has to run it."""
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        if not isinstance(compiled, SQLCompiler) or _needs_more(compiled):
            return None
        values = [_value(compiled, name, names, dialect) for name in compiled.positiontup or ()]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        columns = _column_types(statement)
        converts = [each.dialect_impl(dialect).result_processor(dialect, None) for each in columns]
        return cls(compiled.string, known, converts if any(converts) else (), returns=bool(columns))

    def run(self, driver: sqlite3.Connection, parameters: Parameters | None) -> CursorResult[Any]:
        """Run it. Raises what SQLAlchemy raises."""
        try:
            if isinstance(parameters, Mapping | None):
                cursor = driver.execute(self._sql, [value.of(parameters or {}) for value in self._values])
            else:
                cursor = driver.executemany(
                    self._sql, [[value.of(row) for value in self._values] for row in parameters]
                )
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            raise DBAPIError.instance(self._sql, None, error, sqlite3.Error) from error
        if self._converts:
            rows = [
                tuple(
                    value if convert is None else convert(value)
                    for value, convert in zip(row, self._converts, strict=True)
                )
                for row in rows
            ]
        if self._columns is None:
            self._columns = SimpleResultMetaData([each[0] for each in cursor.description or ()])
        result = _Rows(self._columns, iter(rows))
        result.rowcount = cursor.rowcount
        return cast("CursorResult[Any]", result)


def _needs_more(compiled: SQLCompiler) -> bool:
    """Tell whether SQLAlchemy changes its text with each run, makes values for it, or reads what it returns."""
    return bool(
        compiled.post_compile_params
        or compiled.literal_execute_params
        or compiled.insert_prefetch
        or compiled.update_prefetch
        or compiled.implicit_returning
    )


def _value(compiled: SQLCompiler, name: str, names: Sequence[str], dialect: Dialect) -> _Value | None:
    bind = compiled.binds[name]
    convert = bind.type.dialect_impl(dialect).bind_processor(dialect)
    for key in (bind.key, name):
        if key in names:
            return _Value(key, None, convert)
    return None if bind.required or bind.callable else _Value(None, bind.value, convert)


def _column_types(statement: _Known) -> Sequence[TypeEngine[Any]]:
    """Return the types of what a statement returns, in order; none of text, whose columns SQLite names."""
    if isinstance(statement, TextClause):
        return ()
    if isinstance(statement, Select):
        return [each["type"] for each in statement.column_descriptions]
    return [each["type"] for each in statement.returning_column_descriptions]


@dataclass
class _Use:
    """How often a statement ran, and its prepared forms by the names of its parameters."""

    runs: int = 0
    forms: dict[tuple[str, ...], Prepared | None] = field(default_factory=dict)


_uses: WeakKeyDictionary[Executable, _Use] = WeakKeyDictionary()
"""Of all databases of this process: a statement is the same for each of them."""


def prepared(statement: Executable, parameters: Parameters | None, dialect: Dialect) -> Prepared | None:
    """Return how to run a statement on the driver; None: SQLAlchemy has to run it."""
    use = _uses.get(statement)
    if use is None:
        use = _uses[statement] = _Use()
    use.runs += 1
    if use.runs <= PREPARE_AFTER or not isinstance(statement, (Select, UpdateBase, TextClause)):
        return None
    one = parameters if isinstance(parameters, Mapping | None) else next(iter(parameters), None)
    names = tuple(one or ())
    if names not in use.forms:
        use.forms[names] = Prepared.of(statement, names, dialect)
    form = use.forms[names]
    is_known = form is None or one is parameters or (one is not None and not form.returns)
    return form if is_known else None
