"""SQLite shared by processes: writers wait for each other, and a waiting process continues with everything else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from turngate.domain.errors import UnavailableError
from turngate.store.database import Database
from turngate.store.runs import messages
from turngate.store.tables import conversations

DEADLINE_SECONDS = 30
SCRIPT = Path(__file__).parents[2] / "support" / "stores" / "lock_holder.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "turngate.db"


@asynccontextmanager
async def other_process(*arguments: str | Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process on the same file, from its first message on; it is gone at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, SCRIPT, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        word = await asyncio.wait_for(process.stdout.readline(), DEADLINE_SECONDS)
        assert word in {b"locked\n", b"ready\n"}
        yield process
        process.stdin.close()
        await asyncio.wait_for(process.wait(), DEADLINE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def add(database: Database, name: str) -> None:
    async with database.write() as conn:
        await messages.create_conversation(conn, name)


async def names(database: Database) -> set[str]:
    async with database.read() as conn:
        return set((await conn.execute(select(conversations.c.id))).scalars())


async def ticks(count: int) -> None:
    """Let the event loop turn that often, as heartbeats need it to."""
    for _ in range(count):
        await asyncio.sleep(0.005)


async def test_two_processes_write_the_same_file(sqlite: Database, path: Path) -> None:
    """Each writes forty transactions at the same time as the other; afterwards every one is there."""
    theirs, ours = [f"theirs {n}" for n in range(40)], [f"ours {n}" for n in range(40)]
    async with other_process("write", path, *theirs):
        await asyncio.gather(*(add(sqlite, name) for name in ours))
    assert await names(sqlite) == {*theirs, *ours}


@pytest.mark.parametrize("opened", ["long ago", "while the lock is held"])
async def test_the_event_loop_runs_while_another_process_holds_the_lock(
    sqlite: Database, path: Path, opened: str
) -> None:
    """The lock is released only after the loop has turned 60 times with a writer waiting, so heartbeats continue.

    If the wait blocked the loop, the loop would not turn, the lock would not be released, and the writer would
    fail. Readers do not wait at all.
    """
    database = sqlite
    async with other_process("hold", path) as holder:
        if opened != "long ago":
            database = Database(sqlite.url)
        writing = asyncio.create_task(add(database, "ours"))
        await ticks(30)
        assert await names(database) == set()
        await ticks(30)
        assert not writing.done()
        assert holder.stdin is not None
        holder.stdin.write(b"\n")
        await asyncio.wait_for(writing, DEADLINE_SECONDS)
    assert await names(database) == {"held", "ours"}
    if database is not sqlite:
        await database.close()


async def test_a_writer_that_waits_may_be_cancelled(sqlite: Database, path: Path) -> None:
    """A task that is cancelled while it waits for another process's lock ends at once and blocks no one."""
    async with other_process("hold", path):
        writing = asyncio.create_task(add(sqlite, "never"))
        await ticks(5)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(writing, DEADLINE_SECONDS)
    await add(sqlite, "ours")
    assert await names(sqlite) == {"held", "ours"}


async def test_waiting_writers_give_up_together(sqlite: Database, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock held too long fails every waiting writer after one wait, not after one wait each."""
    monkeypatch.setattr("turngate.store.sqlite.WRITE_LOCK_SECONDS", 1.0)
    async with other_process("hold", path):
        async with asyncio.timeout(8):
            failed = await asyncio.gather(*(add(sqlite, f"{n}") for n in range(20)), return_exceptions=True)
        assert {type(each) for each in failed} == {UnavailableError}
    await add(sqlite, "ours")
    assert await names(sqlite) == {"held", "ours"}


async def test_i5_a_process_killed_in_its_transaction_leaves_nothing(sqlite: Database, path: Path) -> None:
    """I5: after ``kill -9`` its lock is free and its uncommitted rows are not there."""
    async with other_process("hold", path) as holder:
        writing = asyncio.create_task(add(sqlite, "ours"))
        await ticks(3)
        assert not writing.done()
        holder.kill()
        await asyncio.wait_for(writing, DEADLINE_SECONDS)
    assert await names(sqlite) == {"ours"}
