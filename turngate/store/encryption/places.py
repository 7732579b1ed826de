"""Which values of a statement are sealed, with which key and for which row; and which of its columns hold sealed text.

The columns' types know their place (``table.column``), so a statement that is written tomorrow is sealed like those of today: an
insert, an update, SQL as text whose parameters have the columns' types, and several of these in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from sqlalchemy import BindParameter, Column, Executable, Insert, Select, Table, TextClause, Update, UpdateBase
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import BinaryExpression
from sqlalchemy.sql.selectable import Alias

from turngate.store.tables import metadata
from turngate.store.tables.content import TEXT_COLUMNS, Owner

OF_DEPLOYMENT: Final = frozenset({Owner.NONE, Owner.RESULT, Owner.OVERRIDES})
"""Whose rows the deployment's key seals: they belong to no single conversation."""
MAY_BE_PLAIN: Final = frozenset({"events", "deliveries", "delivery_attempts", "idempotent_answers"})
"""Tables whose texts may be plain: the log can't be changed and has its own digests, and of the others erasing leaves words."""
DATA_KEY: Final = "conversations.data_key"
ALSO: Final = ("steps.trail",)
"""Sealed, though it is no content: digests of what a step did."""


def _mark_columns() -> frozenset[str]:
    listed = [f"{table}.{column}" for table, columns in TEXT_COLUMNS.items() for column in columns.content]
    for place in (*listed, *ALSO):
        table, _, column = place.partition(".")
        metadata.tables[table].c[column].type.place = place  # type: ignore[attr-defined]
    return frozenset((*listed, *ALSO)) - {DATA_KEY}


def _mark_hashes() -> frozenset[str]:
    listed = [metadata.tables[table].c[each] for table, columns in TEXT_COLUMNS.items() for each in columns.hashes]
    listed.append(metadata.tables["precedent_features"].c.feature)
    for column in listed:
        column.type.keyed = True  # type: ignore[attr-defined]
    return frozenset(f"{column.table.name}.{column.name}" for column in listed)


PLACES: Final = _mark_columns()
"""All columns that are sealed."""
HASHES: Final = _mark_hashes()
"""All columns with hashes of content, which are kept under a key of their own."""

Value = Callable[[str], Any]
"""Column of the row that is written → its value; None: the statement doesn't say."""


@dataclass(frozen=True, slots=True)
class SealedParameter:
    """One parameter that is sealed. ``names``: column of its row → the parameter that has its value."""

    key: str
    place: str
    table: Table
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _SealedColumn:
    """One column of a result. ``keys``: where the row's primary key is in it; None: it isn't.

    ``place``: which column it is. ``beside``: other columns of its table → where they are.
    """

    position: int
    keys: tuple[int, ...] | None
    place: str
    beside: Mapping[str, int]


@dataclass
class Plan:
    """What of one statement is sealed. ``constants``: values that are part of it. ``learns``: rows that say whose they are."""

    parameters: tuple[SealedParameter, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    learns: tuple[SealedParameter, ...] = ()
    columns: Mapping[int, _SealedColumn] = field(default_factory=dict)
    writes: bool = False
    hashes: tuple[str, ...] = ()
    """Names of the parameters that are hashes of content."""
    fixed: frozenset[str] = frozenset()
    """Those of ``parameters`` and ``hashes`` whose values are part of the statement (:func:`with_values`)."""

    def value(self, of: SealedParameter, row: Mapping[str, Any]) -> Value:
        """Return the values of the row that a parameter belongs to."""

        def value(column: str) -> Any:
            name = of.names.get(column)
            if name is None:
                return None
            return row[name] if name in row else self.constants.get(name)

        return value


_plans: WeakKeyDictionary[Executable, dict[tuple[str, ...], Plan]] = WeakKeyDictionary()


def plan_of(statement: Executable, names: Sequence[str], dialect: Dialect) -> Plan:
    """Return what of a statement with parameters of these names is sealed. Statements of the hot path are analysed once."""
    plans = _plans.get(statement)
    if plans is None:
        plans = _plans[statement] = {}
    key = (dialect.name, *names)
    if key not in plans:
        plans[key] = _analysed(statement, names, dialect)
    return plans[key]


def _analysed(statement: Executable, names: Sequence[str], dialect: Dialect) -> Plan:
    parts = list(visitors.iterate(cast("Any", statement)))
    columns = _columns(statement)
    if not any(isinstance(part, (UpdateBase, TextClause)) for part in parts):
        hashes = _hashes([part for part in parts if isinstance(part, BindParameter)])
        own = {each.key: each.value for each in hashes if each.unique}
        return Plan(constants=own, columns=columns, hashes=_keys(hashes), fixed=frozenset(own))
    compiled = statement.compile(dialect=dialect, column_keys=list(names))  # type: ignore[attr-defined]
    if not isinstance(compiled, SQLCompiler):
        return Plan(columns=columns, writes=True)
    binds = list(compiled.binds.values())
    constants = {bind.key: bind.value for bind in binds if not bind.required and bind.key not in names}
    sealed = _sealed(binds, parts, names)
    known = {*names, *constants}
    learns = (*_inserted_ids("runs", known, parts), *_inserted_ids("requests", known, parts))
    keyed = _keys(_hashes(binds))
    fixed = {bind.key for bind in binds if bind.unique} & {*keyed, *(each.key for each in sealed)}
    return Plan(tuple(sealed), constants, learns, columns, True, keyed, frozenset(fixed))


def _sealed(binds: Sequence[BindParameter[Any]], parts: Sequence[Any], names: Sequence[str]) -> list[SealedParameter]:
    """Return the parameters of content. ``parts``: of the statement. ``names``: of what it runs with."""
    rows = _rows(parts)
    begins = any(isinstance(part, Insert) and cast("Table", part.table).name == "conversations" for part in parts)
    places = [(bind.key, str(getattr(bind.type, "place", None) or "")) for bind in binds]
    skipped = {""} if begins else {"", DATA_KEY}
    return [_parameter(key, place, rows, names) for key, place in places if place not in skipped]


def _hashes(binds: Sequence[BindParameter[Any]]) -> list[BindParameter[Any]]:
    return [bind for bind in binds if _is_hash(bind)]


def _keys(binds: Sequence[BindParameter[Any]]) -> tuple[str, ...]:
    return tuple({bind.key for bind in binds})


def _is_hash(bind: BindParameter[Any]) -> bool:
    return getattr(bind.type, "keyed", False)


def with_values(statement: Executable, sealed: Mapping[str, Any]) -> Executable:
    """Return the statement with these values in place of its own, by their keys.

    They can't be parameters. SQLAlchemy names such a value by its address in memory, which a later statement's may have, too,
    and the compiled form of the earlier one would put it into another column.
    """

    def change(bind: BindParameter[Any]) -> None:
        if bind.key in sealed:
            bind.value = sealed[bind.key]

    changed = visitors.cloned_traverse(cast("Any", statement), {"maintain_key": True}, {"bindparam": change})
    return cast("Executable", changed)


def _parameter(key: str, place: str, rows: Mapping[str, Mapping[str, str]], known: Sequence[str]) -> SealedParameter:
    table_name, _, column = place.partition(".")
    table = metadata.tables[table_name]
    if place == "events.words" and "chain_id" in known:  # PostgreSQL's one statement that appends events
        return SealedParameter(key, place, table, {"run_id": "chain_id"})
    number = key.removeprefix(f"{table_name}_{column}_")
    if number != key and number.isdigit():  # turngate.store.together
        names = {each.name: f"{table_name}_{each.name}_{number}" for each in table.columns}
    else:
        own = {each.name: each.name for each in table.columns}
        names = dict(rows.get(table_name, own))
    return SealedParameter(key, place, table, names)


def _inserted_ids(table_name: str, names: set[str], parts: Sequence[Any]) -> list[SealedParameter]:
    """Return the inserts of rows that say to which conversation, or run, others belong."""
    table = metadata.tables[table_name]
    prefix = f"{table_name}_id_"
    joined = [
        SealedParameter(
            name,
            table_name,
            table,
            {each.name: f"{table_name}_{each.name}_{name[len(prefix) :]}" for each in table.columns},
        )
        for name in names
        if name.startswith(prefix) and name[len(prefix) :].isdigit()
    ]
    if joined or not any(isinstance(part, Insert) and part.table is table for part in parts):
        return joined
    return [SealedParameter("id", table_name, table, {each.name: each.name for each in table.columns})]


def _rows(parts: Sequence[Any]) -> dict[str, dict[str, str]]:
    """Return table → column → the parameter that has its value, of an insert, or that an update's row has to be equal to."""
    rows: dict[str, dict[str, str]] = {}
    for part in parts:
        if isinstance(part, Insert) and part._values:  # noqa: SLF001 - no other way to what an insert has of its own
            table = cast("Table", part.table)
            own = rows.setdefault(table.name, {each.name: each.name for each in table.columns})
            own.update({_name_of(column): bind.key for column, bind in part._values.items() if _is_bind(bind)})  # noqa: SLF001
        if not isinstance(part, Update) or part.whereclause is None:
            continue
        own = rows.setdefault(cast("Table", part.table).name, {})
        for each in visitors.iterate(part.whereclause):
            if not isinstance(each, BinaryExpression) or each.operator is not operators.eq:
                continue
            if (
                isinstance(each.left, Column)
                and each.left.table is part.table
                and isinstance(each.right, BindParameter)
            ):
                own[each.left.name] = each.right.key
    return rows


def _name_of(column: Any) -> str:
    return column if isinstance(column, str) else str(column.name)


def _is_bind(value: object) -> bool:
    return isinstance(value, BindParameter)


def _beside(places: Mapping[tuple[int, str], int], table: object) -> dict[str, int]:
    return {name: at for (of, name), at in places.items() if of == id(table)}


def _columns(statement: Executable) -> dict[int, _SealedColumn]:
    """Return, by position, the columns of the result that are a table's own and are sealed."""
    if isinstance(statement, Select):
        described = [each["expr"] for each in statement.column_descriptions]
    elif isinstance(statement, UpdateBase):
        described = [each["expr"] for each in statement.returning_column_descriptions]
    else:
        return {}
    places: dict[tuple[int, str], int] = {}
    for position, each in enumerate(described):
        if isinstance(each, Column) and each.table is not None:
            places[id(each.table), each.name] = position
    columns = {}
    for position, each in enumerate(described):
        table = each.table if isinstance(each, Column) else None
        base = table.element if isinstance(table, Alias) else table
        if not isinstance(base, Table) or f"{base.name}.{each.name}" not in PLACES:
            continue
        keys = tuple(places.get((id(table), key.name), -1) for key in base.primary_key)
        place = f"{base.name}.{each.name}"
        columns[position] = _SealedColumn(position, None if -1 in keys else keys, place, _beside(places, table))
    return columns
