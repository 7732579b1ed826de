"""Numbers for a monitor: what waits, and for what, from a bounded number of rows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import insert, update
from support.stores.stored_requests import live_run, request_row

from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.live import gauges
from turngate.store.requests import requests
from turngate.store.tables import executions
from turngate.store.tables import runs as runs_table

AT = now()


async def test_pending_requests_are_counted_by_kind_tool_risk_and_age(database: Database) -> None:
    """Each group has its number and the opening of its oldest; requests that ended don't count."""
    ages = {"a": timedelta(minutes=1), "b": timedelta(minutes=2), "c": timedelta(minutes=30), "d": timedelta(days=9)}
    async with database.write() as conn:
        run = await live_run(conn, "run_1")
        rows = [request_row(run, name, created_at=as_text(AT - age)) for name, age in ages.items()]
        rows.append(request_row(run, "e", tool_name="refund", kind="outcome", risk="high", created_at=as_text(AT)))
        await requests.insert_all(conn, [*rows, request_row(run, "f", created_at=as_text(AT))])
        await requests.settle(conn, "f", requests.Ending(status="expired", at=AT))
    async with database.glance() as conn:
        groups = await gauges.pending_requests(conn, AT)
    assert {(each.kind, each.tool, each.risk, each.age): each.count for each in groups} == {
        ("approval", "pay", "low", "5m"): 2,
        ("approval", "pay", "low", "1h"): 1,
        ("approval", "pay", "low", "older"): 1,
        ("outcome", "refund", "high", "5m"): 1,
    }
    assert min(each.oldest_at for each in groups) == as_text(AT - timedelta(days=9))


async def test_live_runs_are_counted_by_what_they_wait_for(database: Database) -> None:
    """A person, someone who resumes it, the end of an interrupt, a tool, or else the engine; ended runs don't count."""
    async with database.write() as conn:
        live = {
            name: await live_run(conn, f"run_{name}")
            for name in ("person", "resume", "interrupt", "tool", "model", "ended")
        }
        await requests.insert_all(conn, [request_row(live["person"], "r")])

        async def change(name: str, **values: Any) -> None:
            await conn.execute(update(runs_table).where(runs_table.c.id == live[name].id).values(values))

        await change("resume", paused_at=as_text(AT))
        await change("interrupt", interrupted_at=as_text(AT))
        await change("ended", status="completed")
        row = {"run_id": live["tool"].id, "tool_call_id": "c", "state": "executing", "digest": "d", "attempts": 1}
        await conn.execute(insert(executions), {**row, "idempotency_key": "k", "started_at": as_text(AT)})
    async with database.glance() as conn:
        groups = await gauges.live_runs(conn)
    causes = ("person", "resume", "interrupt", "tool", "model_or_worker")
    assert {each.waits_for: each.count for each in groups} == dict.fromkeys(causes, 1)


async def test_the_gauges_read_what_waits_and_never_what_ended(sqlite: Database) -> None:
    """Both queries begin at an index of pending rows: a million runs and requests that ended cost nothing."""
    statements: list[str] = []
    async with sqlite.glance() as conn:

        def plans(connection: Any) -> None:
            driver = connection.connection.driver_connection
            driver.set_trace_callback(statements.append)

        await conn.run_sync(plans)
        await gauges.pending_requests(conn, AT)
        await gauges.live_runs(conn)
        taken = [each for each in statements if each.startswith("SELECT")]

        def explained(connection: Any) -> list[str]:
            driver = connection.connection.driver_connection
            driver.set_trace_callback(None)
            return [str(row[3]) for each in taken for row in driver.execute(f"EXPLAIN QUERY PLAN {each}")]

        steps = await conn.run_sync(explained)
    assert len(taken) == 2
    assert any("COVERING INDEX ix_requests_pending" in step for step in steps), steps
    assert any("runs USING INDEX uq_runs_live_conversation" in step for step in steps), steps
    whole = [step for step in steps if step.startswith("SCAN") and "INDEX" not in step]
    assert all("anon" in step or "SUBQUERY" in step for step in whole), steps
