"""Whole results: stored once by the digest of their text, unchanged, and found by it."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select

from turngate.domain.conversation.clipping import clipped, result_digest, whole_text
from turngate.domain.conversation.messages import Message, ToolResultPart
from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.runs import calls, messages, runs
from turngate.store.runs.whole_results import keep, text_of
from turngate.store.tables import whole_results as table


async def row_count(database: Database) -> int:
    async with database.read() as conn:
        return int((await conn.execute(select(func.count()).select_from(table))).scalar_one())


async def test_a_whole_result_is_stored_once_by_its_digest(database: Database) -> None:
    """The same text, even at once, is one row under the digest that its reader computes; an unknown digest gives None."""
    text = '{"lines":["' + "é" * 100_000 + '"]}'

    async def keep_it() -> str:
        async with database.write() as conn:
            return await keep(conn, text)

    digests = await asyncio.gather(*(keep_it() for _ in range(8)))
    assert set(digests) == {result_digest(text)}
    assert await row_count(database) == 1
    async with database.read() as conn:
        assert await text_of(conn, digests[0]) == text
        assert await text_of(conn, result_digest("other")) is None


async def test_two_texts_are_two_rows(database: Database) -> None:
    """Texts that differ by one character do not share a row."""
    async with database.write() as conn:
        digests = [await keep(conn, text) for text in ("a", "b", "a ")]
        assert [await text_of(conn, digest) for digest in digests] == ["a", "b", "a "]
    assert await row_count(database) == 3


@pytest.mark.parametrize("odd", ["\x00", "\udc80"])
async def test_i9_a_whole_result_of_unstorable_characters_is_stored(database: Database, odd: str) -> None:
    """I9: NUL and half a surrogate pair, from a file that is not text, lose no finished tool's result."""
    _, whole = clipped(Failure(kind="odd", fields={"text": odd + "x" * 5_000}), limit=1_000)
    assert whole is not None
    async with database.write() as conn:
        stored = await text_of(conn, await keep(conn, whole))
    assert stored is not None
    assert "x" * 5_000 in stored


@pytest.mark.parametrize("result", [Ok(value={"text": "x" * 5_000}), Failure(kind="odd", fields={"text": "x" * 5_000})])
async def test_a_clipped_call_names_its_whole_result(database: Database, run: runs.Run, result: Ok | Failure) -> None:
    """The call holds the excerpt and the digest; the whole result and the message's pointer to it read back unchanged."""
    excerpt, whole = clipped(result, limit=1_000)
    assert whole == whole_text(result)
    async with database.write() as conn:
        row = calls.Call(
            run_id=run.id,
            tool_call_id="c1",
            step=1,
            position=0,
            tool_name="read",
            input="{}",
            repeat_key="k",
            disposition="run",
            verdict="",
            digest="d",
            policy_version="p",
            effect="read",
        )
        await calls.insert_planned(conn, [row])
        digest = await keep(conn, whole)
        assert await calls.settle(conn, run.id, "c1", excerpt, calls.ResultView(whole_result=digest), nonce=run.nonce)
        part = ToolResultPart(tool_call_id="c1", tool_name="read", result=excerpt, whole_result=digest)
        await messages.append(
            conn,
            messages.NewMessage(
                id="results",
                parent_id=run.input_message_id,
                conversation_id=run.conversation_id,
                run_id=run.id,
                step=1,
                message=Message(role="tool", parts=(part,)),
            ),
        )
    async with database.read() as conn:
        call = await calls.get(conn, run.id, "c1")
        message = await messages.get(conn, "results")
        assert call is not None
        assert call.settled_result == excerpt
        assert call.whole_result == message.results[0].whole_result == digest
        assert await text_of(conn, digest) == whole
