"""The connection of an encrypted store: it seals what a statement writes, and opens what one returns.

Store functions use it like any other. All of them pass here, so none can forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import sqlalchemy
from sqlalchemy import Executable
from sqlalchemy.engine import CursorResult, Dialect

from turngate.domain.errors import UnreadableContentError
from turngate.store.connection import Connection, Fact, Parameters, Result
from turngate.store.encryption.key_ring import KeyRing, Keys
from turngate.store.encryption.places import (
    DATA_KEY,
    MAY_BE_PLAIN,
    OF_DEPLOYMENT,
    Plan,
    SealedParameter,
    Value,
    plan_of,
    with_values,
)
from turngate.store.encryption.sealed import ANY_ROW, HASH_MARK, Envelope, label_of
from turngate.store.prepared import is_one, rows_as_result
from turngate.store.storable import MARK, storable
from turngate.store.tables.content import TEXT_COLUMNS


class SealedConnection:
    """One connection of an encrypted store. ``keys``: those of its transaction; they count for others once it is committed."""

    def __init__(self, inner: Connection, ring: KeyRing) -> None:
        self._inner = inner
        self.keys = Keys(ring, inner)
        self.facts: list[Fact] | None = None

    @property
    def dialect(self) -> Dialect:
        """As :class:`~turngate.store.connection.Connection` says; so are the methods below."""
        return self._inner.dialect

    async def execute(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement."""
        return await self._run(self._inner.execute, statement, parameters)

    async def look(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run one statement that reads and locks nothing."""
        return await self._run(self._inner.look, statement, parameters)

    async def execute_last(self, statement: Executable, parameters: Parameters | None = None, /) -> CursorResult[Any]:
        """Run the last statement of a write transaction."""
        return await self._run(self._inner.execute_last, statement, parameters)

    async def run_sync(self, action: Callable[[sqlalchemy.Connection], Result], /) -> Result:
        """Run a synchronous function on the underlying connection (migrations)."""
        return await self._inner.run_sync(action)

    async def _run(self, run: Any, statement: Executable, parameters: Parameters | None) -> CursorResult[Any]:
        one = is_one(parameters)
        first = parameters if one else next(iter(cast("Sequence[Mapping[str, Any]]", parameters)), None)
        plan = plan_of(statement, tuple(first or ()), self.dialect)  # type: ignore[arg-type]
        if plan.parameters or plan.learns or plan.hashes:
            if plan.fixed and not one:
                raise TypeError("content in a statement that runs for several rows: give each row its own")
            if one:
                sealed = await self._sealed(plan, cast("Mapping[str, Any]", parameters or {}))
                if plan.fixed:
                    statement = with_values(statement, {name: sealed.pop(name) for name in plan.fixed & {*sealed}})
                parameters = sealed
            else:
                rows = cast("Sequence[Mapping[str, Any]]", parameters)
                parameters = [await self._sealed(plan, row) for row in rows]
        result: CursorResult[Any] = await run(statement, parameters)
        return await self._opened(plan, result) if result.returns_rows else result

    async def _sealed(self, plan: Plan, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of one row as the database gets them."""
        for each in plan.learns:
            self.keys.learn(each.place, plan.value(each, row))
        sealed = dict(row)
        for name in plan.hashes:
            value = row[name] if name in row else plan.constants.get(name)
            if value is not None:
                sealed[name] = self.keys.hashes.seal(value)
        later = []
        for each in plan.parameters:
            if each.place == DATA_KEY:  # first of all: the other rows of the statement are sealed with it
                sealed[each.key] = self.keys.begin(str(plan.value(each, row)("id")))
            else:
                later.append(each)
        for each in later:
            text = row[each.key] if each.key in row else plan.constants.get(each.key)
            if text and (type(text) is not list or any(text)):
                sealed[each.key] = await self._seal(each, plan.value(each, row), text)
        return sealed

    async def _seal(self, parameter: SealedParameter, value: Value, text: Any) -> Any:
        table = parameter.table
        key = self.keys.deployment
        if TEXT_COLUMNS[table.name].owner not in OF_DEPLOYMENT:
            key = await self.keys.of_row(table.name, value)
        if isinstance(text, list):
            return [None if each is None else key.seal(parameter.place, ANY_ROW, storable(each)) for each in text]
        own = tuple(value(column.name) for column in table.primary_key)
        label = ANY_ROW if None in own else label_of(own)
        return key.seal(parameter.place, label, storable(text))

    async def _opened(self, plan: Plan, result: CursorResult[Any]) -> CursorResult[Any]:
        """Return the result with its sealed texts opened."""
        names, rowcount = list(result.keys()), result.rowcount
        rows = [tuple(row) for row in result.fetchall()]
        sealed: dict[int, list[tuple[int, Envelope]]] = {}
        for place, row in enumerate(rows):
            await self._require_sealed(plan, row)
            marked = [(at, text) for at, text in enumerate(row) if type(text) is str and text[:1] == MARK]
            if marked:
                rows[place], envelopes = self._taken_apart(plan, row, marked)
                if envelopes:
                    sealed[place] = envelopes
        if len(sealed) > 1:
            await self.keys.look_up({envelope.owner for here in sealed.values() for _, envelope in here})
        for place, here in sealed.items():
            rows[place] = await self._opened_row(plan, rows[place], here)
        return rows_as_result(names, rows, rowcount)

    async def _require_sealed(self, plan: Plan, row: tuple[Any, ...]) -> None:
        """Raise UnreadableContentError for a text that someone wrote into the database as plain text."""
        for position, column in plan.columns.items():
            text, table = row[position], column.place.partition(".")[0]
            if type(text) is not str or not text or text[:1] == MARK or table in MAY_BE_PLAIN:
                continue
            beside = {name: row[at] for name, at in column.beside.items()}
            if not await self.keys.may_be_plain(table, beside.get):
                raise UnreadableContentError(
                    f"a text in {column.place} is not encrypted, though this database is: someone wrote it there past Turngate, "
                    "or it is older than the encryption, and `turngate keys encrypt` encrypts it",
                    place=column.place,
                )

    def _taken_apart(
        self, plan: Plan, row: tuple[Any, ...], marked: list[tuple[int, str]]
    ) -> tuple[tuple[Any, ...], list[tuple[int, Envelope]]]:
        """Return the row with its hashes opened, and its sealed texts. ``marked``: position → what is one of these."""
        opened, envelopes = list(row), []
        for position, text in marked:
            if text.startswith(HASH_MARK) and position not in plan.columns:  # in place of content, it is no text
                opened[position] = self.keys.hashes.opened(text)
            else:
                envelopes.append((position, Envelope.of(text)))
        return tuple(opened), envelopes

    async def _opened_row(
        self, plan: Plan, row: tuple[Any, ...], sealed: list[tuple[int, Envelope]]
    ) -> tuple[Any, ...]:
        opened = list(row)
        for position, envelope in sealed:
            column = plan.columns.get(position)
            keys = None if column is None else column.keys
            own = None if keys is None else tuple(row[key] for key in keys)
            label = None if own is None or None in own else label_of(own)
            opened[position] = envelope.opened(await self.keys.of_owner(envelope.owner), label)
        return tuple(opened)
