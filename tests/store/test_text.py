"""Text from outside, as bad as it gets: what no database can hold is replaced, never the reason a run fails (I9)."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from turngate.domain.results import Failure
from turngate.store import calls, executions, requests, runs
from turngate.store.database import Database
from turngate.store.tables import calls as calls_table
from turngate.store.tables import metadata, requests as requests_table

BAD = "a\x00b\ud800c\udce9d"
MENDED = "a\ufffdb\ufffdc\ufffdd"


async def test_i9_what_a_model_sends_can_be_stored(database: Database, run: runs.Run) -> None:
    """I9: NUL (which PostgreSQL refuses) and half a surrogate pair in a call or beside it are stored as U+FFFD."""
    call = calls.Call(
        run_id=run.id,
        tool_call_id="c1",
        step=1,
        position=0,
        tool_name=BAD,
        input=BAD,
        repeat_key="k",
        disposition="closed",
        verdict="",
        digest="d",
        policy_version="p",
        effect="",
    )
    async with database.write() as conn:
        await calls.insert_planned(conn, [call])
        await calls.settle(conn, run.id, "c1", Failure(kind="unknown_tool", reason="no"), edited_input=BAD)
    async with database.read() as conn:
        stored = await calls.get(conn, run.id, "c1")
    assert stored is not None
    assert (stored.tool_name, stored.input, stored.edited_input) == (MENDED, MENDED, MENDED)


async def test_i9_what_a_tool_says_can_be_stored(database: Database, run: runs.Run) -> None:
    """I9: previews, partial output and failure reasons come from code that reads files of any kind."""
    request = requests.Request(
        id="rq_1",
        run_id=run.id,
        tool_call_id="c1",
        kind="approval",
        status="pending",
        agent="agent",
        tool_name="pay",
        manifest="{}",
        input="{}",
        digest="d",
        rule=BAD,
        reason=BAD,
        risk="low",
        agent_words=BAD,
        preview_kind="text",
        preview=BAD,
        not_by=None,
        expires_at=None,
        created_at="2026",
    )
    where = {"run_id": run.id, "tool_call_id": "c1"}
    async with database.write() as conn:
        await requests.insert_all(conn, [request])
        await executions.begin(conn, **where, digest="d", decision_id=None, idempotency_key="k")
        await executions.finish(conn, **where, state="failed", partial_output=BAD)
        await runs.end(conn, run.id, status="failed", reason=BAD)
    async with database.read() as conn:
        opened, execution = await requests.get(conn, "rq_1"), await executions.get(conn, **where)
        ended = await runs.get(conn, run.id)
    assert opened is not None
    assert execution is not None
    assert ended is not None
    assert {opened.rule, opened.reason, opened.agent_words, opened.preview} == {MENDED}
    assert (execution.partial_output, ended.reason) == (MENDED, MENDED)


@pytest.mark.parametrize("text", ["", "plain", "é😀\u2028\ufffd", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")])
async def test_what_can_be_stored_is_not_touched(database: Database, run: runs.Run, text: str) -> None:
    """Every other text comes back as it went in."""
    async with database.write() as conn:
        await runs.end(conn, run.id, status="failed", reason=text)
        ended = await runs.get(conn, run.id)
    assert ended is not None
    assert ended.reason == text


async def test_such_text_can_be_searched_for(database: Database, run: runs.Run) -> None:
    """A comparison with text that cannot be stored finds nothing; it does not fail."""
    async with database.read() as conn:
        for column in (calls_table.c.tool_name, requests_table.c.preview, metadata.tables["messages"].c.id):
            assert (await conn.execute(select(column).where(column == BAD))).all() == []
