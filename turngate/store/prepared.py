"""Statements that run on the driver itself, in a third of the time that SQLAlchemy takes to run them.

SQLAlchemy compiles a statement and knows its types; what it does around each execution costs more than SQLite's own work, and
on PostgreSQL more than the trip. So a statement of the hot path, which is built once and runs again and again, is also
compiled once. SQLAlchemy runs the others, and what this doesn't know: lists in ``IN``, defaults made in Python, several rows
that return something.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, cast
from weakref import WeakKeyDictionary

from sqlalchemy import Executable, Select, TextClause, UpdateBase
from sqlalchemy.engine import CursorResult, Dialect, IteratorResult
from sqlalchemy.engine.result import SimpleResultMetaData
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

    @property
    def returns_rows(self) -> bool:
        """Whether the statement is one that returns rows."""
        return len(self.keys()) > 0


class _Cursor(Protocol):
    """A driver's. Its ``description`` takes time on PostgreSQL."""

    @property
    def description(self) -> Sequence[Any] | None: ...

    @property
    def rowcount(self) -> int: ...


@dataclass
class Prepared:
    """One statement with parameters of certain names.

    ``values``: by the name that they have in ``sql``, or, where it has ``?``, by their place. ``converts``: one for each
    column, if any column needs one.
    """

    sql: str
    values: Mapping[str, _Value] | Sequence[_Value]
    converts: Sequence[Convert | None]
    returns: bool
    columns: SimpleResultMetaData | None = None

    @classmethod
    def of(cls, statement: _Known, names: Sequence[str], dialect: Dialect) -> Prepared | None:
        """Compile a statement; None: SQLAlchemy has to run it."""
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        if not isinstance(compiled, SQLCompiler) or _needs_more(compiled):
            return None
        places = list(compiled.binds) if compiled.positiontup is None else compiled.positiontup
        known = [value for name in places if (value := _value(compiled, name, names, dialect)) is not None]
        if len(known) < len(places):
            return None
        columns = _column_types(statement)
        converts = [each.dialect_impl(dialect).result_processor(dialect, None) for each in columns]
        values = known if compiled.positional else dict(zip(places, known, strict=True))
        return cls(compiled.string, values, converts if any(converts) else (), returns=bool(columns))

    def bind(self, parameters: Mapping[str, Any]) -> dict[str, Any] | list[Any]:
        """Return what the driver runs ``sql`` with."""
        if isinstance(self.values, Mapping):
            return {name: value.of(parameters) for name, value in self.values.items()}
        return [value.of(parameters) for value in self.values]

    def result(self, rows: Sequence[tuple[Any, ...]], cursor: _Cursor) -> CursorResult[Any]:
        """Return what SQLAlchemy returns of a driver's rows."""
        if self.converts:
            rows = [
                tuple(
                    value if convert is None else convert(value)
                    for value, convert in zip(row, self.converts, strict=True)
                )
                for row in rows
            ]
        if self.columns is None:
            self.columns = SimpleResultMetaData([each[0] for each in cursor.description or ()])
        result = _Rows(self.columns, iter(rows))
        result.rowcount = cursor.rowcount
        return cast("CursorResult[Any]", result)


def rows_as_result(names: Sequence[str], rows: Sequence[tuple[Any, ...]], rowcount: int) -> CursorResult[Any]:
    """Return rows as a result, with as much of SQLAlchemy's own as store functions use."""
    result = _Rows(_columns_named(tuple(names)), iter(rows))
    result.rowcount = rowcount
    return cast("CursorResult[Any]", result)


@lru_cache(maxsize=500)
def _columns_named(names: tuple[str, ...]) -> SimpleResultMetaData:
    return SimpleResultMetaData(list(names))


def is_one(parameters: Parameters | None) -> TypeGuard[Mapping[str, Any] | None]:
    """Tell whether a statement is to run once; else it runs once for each of its parameters."""
    # Whether it is some Mapping takes ten times as long to find out as whether it is a dict.
    return parameters is None or type(parameters) is dict or isinstance(parameters, Mapping)


def _needs_more(compiled: SQLCompiler) -> bool:
    """Tell whether SQLAlchemy changes its text with each run, makes values for it, or reads what it returns."""
    return bool(
        compiled.post_compile_params
        or compiled.literal_execute_params
        or compiled.insert_prefetch
        or compiled.update_prefetch
        or compiled.implicit_returning
        or compiled.escaped_bind_names
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
    """The database's name comes first."""


_uses: WeakKeyDictionary[Executable, _Use] = WeakKeyDictionary()
"""Of all databases of this process: a statement is the same for each of a kind."""


def prepared(statement: Executable, parameters: Parameters | None, dialect: Dialect) -> Prepared | None:
    """Return how to run a statement on the driver; None: SQLAlchemy has to run it."""
    use = _uses.get(statement)
    if use is None:
        use = _uses[statement] = _Use()
    use.runs += 1
    if use.runs <= PREPARE_AFTER or not isinstance(statement, (Select, UpdateBase, TextClause)):
        return None
    one = parameters if is_one(parameters) else next(iter(cast("Sequence[Mapping[str, Any]]", parameters)), None)
    key = (dialect.name, *(one or ()))
    if key not in use.forms:
        use.forms[key] = Prepared.of(statement, key[1:], dialect)
    form = use.forms[key]
    is_known = form is None or one is parameters or (one is not None and not form.returns)
    return form if is_known else None
