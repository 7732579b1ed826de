"""Holding the live runs of a restored store."""

from __future__ import annotations

from support.stores.stored_requests import live_run

from turngate.approvals_api.recovery.restored import hold_live_runs
from turngate.store.clock import now
from turngate.store.database import Database
from turngate.store.runs import runs


async def test_every_live_run_is_held_whatever_fits_one_transaction(database: Database) -> None:
    """Sub-agents' runs, too; a run that was held before keeps its reason, and a repeat changes nothing."""
    async with database.write() as conn:
        for number in range(5):
            parent = await live_run(conn, f"run_{number}")
            child = await live_run(conn, f"run_{number}_1", parent_run_id=parent.id, parent_tool_call_id="c")
            await live_run(conn, f"run_{number}_2", parent_run_id=child.id, parent_tool_call_id="c")
        await runs.pause(conn, "run_3", by="Ann", reason="lunch", at=now())
    assert await hold_live_runs(database, by="cli:root", backup_at="noon", at_once=2) == 14
    assert await hold_live_runs(database, by="cli:root", backup_at="noon", at_once=2) == 0
    async with database.read() as conn:
        for number in range(5):
            for each in (f"run_{number}", f"run_{number}_1", f"run_{number}_2"):
                run = await runs.get(conn, each)
                assert run is not None
                assert run.paused_at is not None
                assert run.paused_by == ("Ann" if each == "run_3" else "cli:root"), each
