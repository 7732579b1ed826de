"""Conversations: a tree of immutable messages that read back byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from turngate.domain.conversation.messages import Message, TextPart, ToolCallPart, user_message
from turngate.store.database import Connection, Database
from turngate.store.runs import messages, runs
from turngate.store.tables import messages as messages_table

OPAQUE: dict[str, Any] = {
    "z": 1.0,
    "a": 1,
    "big": 2**80,
    "tiny": 1e-7,
    "text": "\u0000\u2028é😀",
    "nested": [{"y": None, "x": True}],
}
RAW_INPUTS = [
    '{ "b" : 1.0, "a":1 }',
    f'{{"n":{2**80}}}',
    '{"s":"\\u0000\\ud83d\\ude00 é😀"}',
    '{"a":1,"a":2}',
    "not json",
    "",
]


async def grow(conn: Connection, conversation_id: str, parent_id: str | None, *texts: str) -> str:
    """Append user messages, each to the one before; return the last one's id. An id is its text."""
    for text in texts:
        await messages.append(
            conn,
            messages.NewMessage(
                id=text,
                parent_id=parent_id,
                conversation_id=conversation_id,
                run_id=None,
                step=None,
                message=user_message(text),
            ),
        )
        parent_id = text
    assert parent_id is not None
    return parent_id


async def texts_to(conn: Connection, head: str | None) -> list[str]:
    return [stored.message.text for stored in await messages.path_to(conn, head)]


async def test_a_planted_conversation_is_one_past(database: Database) -> None:
    """Each message follows the one before, the last is the head, and no run wrote any; an empty one has no head."""
    async with database.write() as conn:
        await messages.create_with_past(conn, "conv", [user_message(text) for text in ("one", "two", "three")])
        await messages.create_with_past(conn, "empty", [])
    async with database.read() as conn:
        path = await messages.path_to(conn, await messages.head_of(conn, "conv"))
        assert [(each.message.text, each.run_id, each.step) for each in path] == [
            ("one", None, None),
            ("two", None, None),
            ("three", None, None),
        ]
        assert await messages.head_of(conn, "empty") is None
        assert await messages.conversation_exists(conn, "empty")


async def test_a_fork_shares_its_past(database: Database) -> None:
    """A fork is a message with an older parent: both branches read the same past, and no row is copied."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await messages.create_conversation(conn, "fork")
        await grow(conn, "conv", None, "a", "b", "c", "d")
        await grow(conn, "fork", "b", "x", "y")
    async with database.read() as conn:
        assert await texts_to(conn, "d") == ["a", "b", "c", "d"]
        assert await texts_to(conn, "y") == ["a", "b", "x", "y"]
        assert await texts_to(conn, "b") == ["a", "b"]
        path = await messages.path_to(conn, "y")
        assert [stored.parent_id for stored in path] == [None, "a", "b", "x"]
        count = (await conn.execute(select(func.count()).select_from(messages_table))).scalar_one()
        assert count == 6


async def test_a_missing_path_is_empty(database: Database) -> None:
    """An empty conversation and one that does not exist have no head and no path."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
    async with database.read() as conn:
        assert await messages.head_of(conn, "conv") is None
        assert await messages.head_of(conn, "other") is None
        assert await messages.conversation_exists(conn, "conv")
        assert not await messages.conversation_exists(conn, "other")
        assert await messages.path_to(conn, None) == []
        assert await messages.path_to(conn, "nothing") == []


async def test_a_long_conversation_is_read_in_order(database: Database) -> None:
    """A path of 400 messages reads back whole and oldest first: no recursion limit cuts it."""
    texts = [f"m{number:04}" for number in range(400)]
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        head = await grow(conn, "conv", None, *texts)
    async with database.read() as conn:
        assert await texts_to(conn, head) == texts


async def test_opaque_fields_and_raw_input_come_back_byte_for_byte(database: Database) -> None:
    """Key order, 1.0 next to 1, big integers and every character read back unchanged, on both databases."""
    calls = (ToolCallPart(tool_call_id=raw, tool_name="t", input=raw, provider_options=OPAQUE) for raw in RAW_INPUTS)
    message = Message(
        role="assistant", parts=(TextPart(text="\u0000é😀", provider_options=OPAQUE), *calls), provider_options=OPAQUE
    )
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await messages.append(
            conn,
            messages.NewMessage(id="m", parent_id=None, conversation_id="conv", run_id="r", step=3, message=message),
        )
    async with database.read() as conn:
        back = await messages.get(conn, "m")
        stored = (await messages.path_to(conn, "m"))[0]
    assert back == stored.message == message
    assert [call.input for call in back.calls] == RAW_INPUTS
    for options in (back.provider_options, *(part.provider_options for part in back.parts)):
        assert json.dumps(options) == json.dumps(OPAQUE)
    assert (stored.run_id, stored.step) == ("r", 3)


async def test_a_message_is_written_once(database: Database) -> None:
    """The same id again collides, so a retry can neither double nor rewrite a message."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await grow(conn, "conv", None, "a")
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await grow(conn, "conv", None, "a")


async def test_a_parent_that_does_not_exist_is_refused(database: Database) -> None:
    """The database itself refuses an orphan."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
    with pytest.raises(IntegrityError):
        async with database.write() as conn:
            await grow(conn, "conv", "no_such_message", "a")


async def test_moving_the_head_moves_run_and_conversation(database: Database, run: runs.Run) -> None:
    """A closed step's message becomes the head of the run and of its conversation at once."""
    async with database.write() as conn:
        await grow(conn, run.conversation_id, run.head_message_id, "a")
        await runs.move_head(conn, run, "a")
    async with database.read() as conn:
        after = await runs.get(conn, run.id)
        assert after is not None
        assert after.head_message_id == await messages.head_of(conn, run.conversation_id) == "a"


async def test_the_newest_messages_of_a_path_across_a_fork(database: Database) -> None:
    """The last messages of a path, oldest first, and its first one, which may be in another conversation."""
    async with database.write() as conn:
        await messages.create_conversation(conn, "conv")
        await messages.create_conversation(conn, "fork")
        await grow(conn, "conv", None, "a", "b", "c", "d")
        await grow(conn, "fork", "b", "x", "y")
    async with database.read() as conn:
        for count in range(1, 7):
            newest = [stored.message.text for stored in await messages.newest_to(conn, "y", count)]
            assert newest == ["a", "b", "x", "y"][-count:]
        assert (await messages.root_of(conn, "y")).message.text == "a"
        assert (await messages.root_of(conn, "a")).message.text == "a"
