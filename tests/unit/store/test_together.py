"""Writes that go to the database together leave the same on both: rows, counts and errors."""

from __future__ import annotations

from typing import Any, Final

import pytest
from sqlalchemy import bindparam, select, update
from sqlalchemy.exc import IntegrityError
from support.stores.stored_requests import live_run

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.runs import messages
from turngate.store.tables import conversations, model_names
from turngate.store.together import MOST_ROWS, Together, Writes

MOVE: Final = (
    update(conversations)
    .where(conversations.c.id == bindparam("conversation"), conversations.c.head_message_id.is_(None))
    .values(head_message_id=bindparam("head"))
)
GUARDED: Final = Together(MOVE, model_names, guarded=True)
BOTH: Final = Together(model_names, MOVE)
VALUES: Final = {"conversation": "conv", "head": "m"}


def names(count: int) -> list[dict[str, Any]]:
    return [
        {
            "task_queue": "q",
            "name": f"m{number}",
            "kind": "profile",
            "model": "\x00\ud800",
            "published_at": as_text(now()),
        }
        for number in range(count)
    ]


@pytest.fixture
async def store(database: Database) -> Database:
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
    return database


@pytest.mark.parametrize("rows", [0, 1, 3, MOST_ROWS + 1])
async def test_each_write_says_what_it_changed(store: Database, rows: int) -> None:
    """Inserts and updates count their rows, however many there are; text is stored as any other column stores it."""
    async with store.write() as conn:
        assert await BOTH.run(conn, {model_names: names(rows)}, VALUES) == [rows, 1]
        assert await BOTH.run(conn, {model_names: []}, VALUES) == [0, 0]
    async with store.read() as conn:
        assert list((await conn.execute(select(model_names.c.model))).scalars()) == ["\ufffd\ufffd"] * rows
        assert await messages.head_of(conn, "conv") == "m"


async def test_a_row_that_is_there_already_fails_all_of_it(store: Database) -> None:
    """The error is that of a single insert, and the transaction leaves none of the writes."""
    async with store.write() as conn:
        await BOTH.run(conn, {model_names: names(1)}, {**VALUES, "conversation": "other"})
    with pytest.raises(IntegrityError):
        async with store.write() as conn:
            await BOTH.run(conn, {model_names: names(2)}, VALUES)
    async with store.read() as conn:
        assert len((await conn.execute(select(model_names))).all()) == 1
        assert await messages.head_of(conn, "conv") is None


@pytest.mark.parametrize("rows", [0, 2, MOST_ROWS + 1])
@pytest.mark.parametrize("count", [1, 3])
async def test_events_go_with_the_writes_before_them(store: Database, rows: int, count: int) -> None:
    """An append takes writes along: they count as alone, and the chain is intact after several such transactions."""
    for turn in range(3):
        async with store.write() as conn:
            writes = Writes(BOTH, {model_names: [{**each, "task_queue": f"q{turn}"} for each in names(rows)]}, VALUES)
            new = [("user.noted", {"n": number}) for number in range(count)]
            assert await events.append(conn, events.SYSTEM, new, writes=writes) == [rows, 1 if turn == 0 else 0]
    async with store.read() as conn:
        assert [each.payload["n"] for each in await events.after(conn, 0)] == [*range(count)] * 3
        assert await events.chain_break(conn, events.SYSTEM) is None
        assert len((await conn.execute(select(model_names))).all()) == 3 * rows


async def test_writes_go_without_events_too(store: Database) -> None:
    """An append of nothing still writes what it takes along."""
    async with store.write() as conn:
        assert await events.append(conn, "no run", [], writes=Writes(BOTH, {model_names: names(1)}, VALUES)) == [1, 1]


@pytest.mark.parametrize("rows", [1, 3, MOST_ROWS + 1])
@pytest.mark.parametrize("with_events", [False, True])
async def test_nothing_goes_with_a_guard_that_changes_nothing(store: Database, rows: int, *, with_events: bool) -> None:
    """Neither rows nor events; of two such transactions only the first writes, and each is over with its one statement."""
    new = [("user.noted", {})] if with_events else []
    async with store.write() as conn:
        run = await live_run(conn, "run_1")
    counts = []
    for _ in range(2):
        async with store.write() as conn:
            writes = Writes(GUARDED, {model_names: names(rows)}, VALUES)
            counts.append(await events.append(conn, run.id, new, writes=writes, last=True))
    async with store.read() as conn:
        assert counts == [[1, rows], [0, 0]]
        assert len((await conn.execute(select(model_names))).all()) == rows
        assert len(await events.after(conn, 0)) == len(new)
        assert await events.chain_break(conn, run.id) is None
