"""The worst text from outside: what no database can hold is replaced, and never fails a run (I9)."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from turngate.domain.tools.results import Failure, Ok
from turngate.store.database import Database
from turngate.store.requests import requests
from turngate.store.runs import calls, executions, runs
from turngate.store.tables import calls as calls_table
from turngate.store.tables import messages as messages_table
from turngate.store.tables import requests as requests_table

BAD = "a\x00b\ud800c\udce9d"
CORRECTED = "a\ufffdb\ufffdc\ufffdd"


def planned(run: runs.Run, text: str) -> calls.Call:
    return calls.Call(
        run_id=run.id,
        tool_call_id="c1",
        step=1,
        position=0,
        tool_name=text,
        input=text,
        repeat_key="k",
        disposition="run",
        verdict="",
        digest="d",
        policy_version="p",
        effect="once",
    )


async def test_i9_what_a_model_sends_can_be_stored(database: Database, run: runs.Run) -> None:
    """I9: NUL (which PostgreSQL refuses) and half a surrogate pair in a call or next to it are stored as U+FFFD."""
    async with database.write() as conn:
        await calls.insert_planned(conn, [planned(run, BAD)])
        await calls.set_edited_input(conn, run.id, "c1", BAD, defaults=None)
        await calls.settle(conn, run.id, "c1", Failure(kind="unknown_tool", reason="no"), nonce=run.nonce)
    async with database.read() as conn:
        stored = await calls.get(conn, run.id, "c1")
    assert stored is not None
    assert (stored.tool_name, stored.input, stored.edited_input) == (CORRECTED, CORRECTED, CORRECTED)


async def test_i9_any_text_of_a_tool_can_be_stored(database: Database, run: runs.Run) -> None:
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
        urgent_at="2026",
    )
    where = {"run_id": run.id, "tool_call_id": "c1"}
    async with database.write() as conn:
        await requests.insert_all(conn, [request])
        await executions.begin(
            conn, executions.NewExecution(**where, digest="d", decision_id=None, idempotency_key="k")
        )
        await executions.finish(conn, **where, state="failed", partial_output=BAD)
        await runs.end(conn, run.id, runs.Ending(status="failed", reason=BAD))
    async with database.read() as conn:
        opened, execution = await requests.get(conn, "rq_1"), await executions.get(conn, **where)
        ended = await runs.get(conn, run.id)
    assert opened is not None
    assert execution is not None
    assert ended is not None
    assert {opened.rule, opened.reason, opened.agent_words, opened.preview} == {CORRECTED}
    assert (execution.partial_output, ended.reason) == (CORRECTED, CORRECTED)


@pytest.mark.parametrize(
    "text", ["", "plain", "é😀\u2028\ufffd", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")]
)
async def test_storable_text_is_unchanged(database: Database, run: runs.Run, text: str) -> None:
    """Every other text reads back as it was written."""
    async with database.write() as conn:
        await runs.end(conn, run.id, runs.Ending(status="failed", reason=text))
        ended = await runs.get(conn, run.id)
    assert ended is not None
    assert ended.reason == text


async def test_unstorable_text_can_be_searched_for(database: Database, run: runs.Run) -> None:
    """A comparison with unstorable text finds nothing, and does not fail."""
    async with database.read() as conn:
        for column in (calls_table.c.tool_name, requests_table.c.preview, messages_table.c.id):
            assert (await conn.execute(select(column).where(column == BAD))).all() == []


@pytest.mark.parametrize(
    "result", [Ok(value={"name": BAD, "n": [1.0]}), Failure(kind="x", reason=BAD, fields={"p": BAD})]
)
async def test_i3_a_finished_tools_result_is_stored(database: Database, run: runs.Run, result: Ok | Failure) -> None:
    """I3: a ``once`` tool that ran does not count as lost because a file name in its result is not UTF-8."""
    async with database.write() as conn:
        await calls.insert_planned(conn, [planned(run, "ls")])
        assert await calls.settle(conn, run.id, "c1", result, nonce=run.nonce)
        stored = await calls.get(conn, run.id, "c1")
    assert stored is not None
    corrected = "a\x00b\ufffdc\ufffdd"  # NUL is an escape in JSON, and stays
    if isinstance(result, Ok):
        assert stored.settled_result == Ok(value={"name": corrected, "n": [1.0]})
    else:
        assert stored.settled_result == Failure(kind="x", reason=corrected, fields={"p": corrected})
