"""Calls that are the same as one that waits are found by the arguments that ran, whatever let them through."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update
from support.stores.stored_requests import live_run, request_row

from turngate.domain.digest import repeat_key
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.requests import requests
from turngate.store.requests.same_calls import same_calls
from turngate.store.runs import calls, executions, runs
from turngate.store.tables import executions as executions_table

RAW = '{"cents": 5}'


async def ran(
    conn: Connection,
    run: runs.Run,
    call_id: str,
    *,
    state: str = "succeeded",
    ago: timedelta = timedelta(0),
    decision_id: str | None = None,
    **more: Any,
) -> None:
    """Store a call that was let through so long ago, as the door writes it. ``more``: of the call."""
    call = calls.Call(
        run_id=run.id, tool_call_id=call_id, step=1, position=0, tool_name="pay", repeat_key="", disposition="run", verdict="",
        digest="d", policy_version="p", effect="once", **{"input": RAW, **more},
    )  # fmt: skip
    call = replace(call, repeat_key=repeat_key("pay", call.input))
    await calls.insert_planned(conn, [call])
    names = {"run_id": run.id, "tool_call_id": call_id}
    new = executions.NewExecution(
        **names, digest="d", decision_id=decision_id, idempotency_key="k", repeat_key=call.running_key
    )
    await executions.begin(conn, new)
    await executions.finish(conn, **names, state=state)
    at = as_text(now() - ago)
    table = executions_table
    await conn.execute(update(table).where(table.c.tool_call_id == call_id).values(started_at=at, ended_at=at))


@pytest.fixture
async def asking(database: Database) -> runs.Run:
    """A run that asks to pay 5 cents, request ``rq``."""
    async with database.write() as conn:
        run = await live_run(conn, "run_asking")
        request = request_row(run, "rq", tool_call_id="now", input=RAW, repeat_key=repeat_key("pay", '{ "cents":5 }'))
        await requests.insert_all(conn, [request])
    return run


HOUR = timedelta(hours=1, minutes=1)


@pytest.mark.parametrize(
    ("elsewhere", "execution", "marked"),
    [
        pytest.param(True, {}, ["succeeded"], id="a rule or grant let it run in another run"),
        pytest.param(True, {"decision_id": "d1"}, ["succeeded"], id="a person approved it there"),
        pytest.param(
            True, {"input": '{"cents": 9}', "edited_input": RAW}, ["succeeded"], id="an edit made it the same"
        ),
        pytest.param(True, {"edited_input": '{"cents": 9}'}, [], id="an edit made it another"),
        pytest.param(True, {"ago": HOUR}, [], id="it ran elsewhere long ago"),
        pytest.param(False, {"ago": HOUR}, ["succeeded"], id="it ran long ago in the same run"),
        pytest.param(False, {"ago": HOUR, "input": "{}", "edited_input": RAW}, ["succeeded"], id="there after an edit"),
        pytest.param(True, {"ago": 100 * HOUR, "state": "unknown"}, ["unknown"], id="no one knows what it did"),
    ],
)
async def test_a_call_is_marked_by_what_ran(
    database: Database, asking: runs.Run, elsewhere: bool, execution: dict[str, Any], marked: list[str]
) -> None:
    """In the same run at any time, in another one lately; one that may have happened until a person approves it again."""
    async with database.write() as conn:
        other = await live_run(conn, "run_other")
        await ran(conn, other if elsewhere else asking, "before", **execution)
        assert [each.state for each in (await same_calls(conn, ["rq"])).get("rq", [])] == marked
        if execution.get("state") == "unknown":
            await ran(conn, other, "again", ago=2 * HOUR, state="failed", decision_id="d2")
            assert (await same_calls(conn, ["rq"])).get("rq", []) == []
