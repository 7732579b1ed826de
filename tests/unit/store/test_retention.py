"""Retention in the store: each column with content is reached by a rule, what is old goes, and one process at a time works."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from turngate.approvals_api.retention import apply
from turngate.approvals_api.retention.overview import retention_status
from turngate.approvals_api.settings import RetentionSettings
from turngate.domain.errors import ConflictError
from turngate.domain.retention import KINDS, OF_CONVERSATIONS, Kind, RetentionRule
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import events
from turngate.store.retention import erasures, expire, retention_runs
from turngate.store.retention.expire import ROWS
from turngate.store.tables import (
    conversations,
    deliveries,
    delivery_attempts,
    deltas,
    errors,
    grants,
    idempotent_answers,
    messages,
    metadata,
    policy_proposals,
    policy_versions,
    progress,
    runs,
    schedule_fires,
    schedules,
)
from turngate.store.tables.content import TEXT_COLUMNS, Owner

DAY = timedelta(days=1)
OLD, YOUNG = as_text(now() - 9 * DAY), as_text(now())


def rule(kind: Kind, **more: Any) -> RetentionRule:
    return RetentionRule(name=f"{kind}-rule", kind=kind, keep=DAY, **more)


@pytest.mark.parametrize("name", sorted(name for name, columns in TEXT_COLUMNS.items() if columns.content))
def test_each_column_with_content_is_reached_by_a_rule(name: str) -> None:
    """By the rule of its conversation, or by one for its own age; a new column has to get one."""
    by_age = {rows.table.name: rows for of_kind in ROWS.values() for rows in of_kind}
    if TEXT_COLUMNS[name].owner is not Owner.NONE:  # erased with it (erase_content walks the same list)
        assert name != "grants" or name in by_age  # some belong to no conversation
        return
    parents = {rows.first[0].table.name for of_kind in ROWS.values() for rows in of_kind if rows.first is not None}
    if name in parents:
        return
    emptied = by_age[name].emptied
    assert emptied is None or set(emptied) == set(TEXT_COLUMNS[name].content)


def test_each_kind_has_rows_or_is_of_conversations() -> None:
    """A kind in the file that nothing applies would keep what someone wanted gone."""
    assert set(ROWS) | OF_CONVERSATIONS == set(KINDS)


async def add(database: Database, table: Any, **columns: Any) -> None:
    async with database.write() as conn:
        await conn.execute(insert(table).values(**columns))


async def planted(database: Database, at: str, n: int) -> None:
    """One row of each kind that goes by its own age."""
    sent = {"id": f"ntf_{n}", "channel": "hook", "first_seq": n, "last_seq": n, "status": "delivered", "attempts": 1}
    await add(database, deliveries, **sent, payload="{}", next_attempt_at=at, created_at=at, ended_at=at)
    await add(database, delivery_attempts, delivery_id=f"ntf_{n}", n=1, started_at=at, milliseconds=1, answer="no")
    failed = {"id": f"err-{n}", "run_id": "run_x", "attempt": 1, "says": "s", "about": "a", "message": "m"}
    await add(database, errors, **failed, traceback="t", worker="w", build="b", created_at=at)
    await add(database, progress, run_id="run_x", tool_call_id="c", n=n, payload="p", created_at=at)
    await add(database, deltas, id=n, run_id="run_x", step=1, attempt=1, n=n, payload="p", created_at=at)
    answered = {"principal": "name:x", "key": f"k{n}", "fingerprint": "f", "answer": "{}", "created_at": at}
    await add(database, idempotent_answers, **answered)
    plan = {
        "id": f"sch_{n}",
        "name": f"n{n}",
        "agent": "a",
        "input": "secret",
        "unattended_asks": "park",
        "overlap": "skip",
    }
    plan |= {"timetable": "{}", "catch_up_seconds": 1, "revision": 1, "created_by": "lea", "created_at": at}
    await add(database, schedules, **plan, deleted_at=at)
    await add(
        database, schedule_fires, schedule_id=f"sch_{n}", fire_at=at, outcome="skipped", reason="secret", noted_at=at
    )
    granted = {"id": f"grt_{n}", "tool_name": "t", "pattern": '{"secret":1}', "scope": "everyone", "expires_at": at}
    await add(database, grants, **granted, max_uses=1, note="secret", created_by="lea", created_at=at)
    stored = {"source": "secret", "digest": "d", "comment": "secret", "created_at": at}
    await add(database, policy_versions, version=n, changed_by="lea", **stored)
    await add(database, policy_proposals, number=n, version=n, proposed_by="lea", why="secret", **stored)


async def texts(database: Database, table: Any) -> list[tuple[Any, ...]]:
    columns = [table.c[name] for name in TEXT_COLUMNS[table.name].content]
    async with database.read() as conn:
        return [tuple(row) for row in (await conn.execute(select(*columns))).all()]


async def test_what_is_old_goes_by_its_own_age(database: Database) -> None:
    """One row of each kind is old and goes, or is emptied; a young one stays; the log says by which rule."""
    await planted(database, OLD, 1)
    await planted(database, YOUNG, 2)
    rules = [rule(kind) for kind in ROWS]
    seen = await apply.preview(database, rules, now())
    done = await apply.run(database, rules, now(), by="lea")
    assert seen == done
    assert done == {each.name: len(ROWS[each.kind]) for each in rules}
    for kind, of_kind in ROWS.items():
        for rows in of_kind:
            left = await texts(database, rows.table)
            assert len(left) == (1 if rows.emptied is None else 2), kind
            young = [row for row in left if "secret" in str(row) or rows.emptied is None]
            assert len(young) == 1, rows.table.name
    assert len(await texts(database, delivery_attempts)) == 1
    async with database.read() as conn:
        applied = await events.newest(conn, events.SYSTEM, "retention.applied", limit=20)
    assert {each.payload["rule"] for each in applied} == {each.name for each in rules}
    assert not any((await apply.run(database, rules, now(), by="lea")).values())


async def conversation(database: Database, n: int, *, ended_at: str = OLD) -> str:
    """A conversation with one run that ended, and one message."""
    conversation_id, run_id = f"conv_{n:04d}", f"run_{n:04d}"
    await add(database, conversations, id=conversation_id, created_at=ended_at)
    applied = {"id": f"msg_{n}", "conversation_id": conversation_id, "role": "user", "provider_options": "{}"}
    await add(database, messages, **applied, parts='[{"type":"text","text":"secret"}]', created_at=ended_at)
    columns = {"id": run_id, "conversation_id": conversation_id, "agent": "a", "agent_version": "1", "model": "m"}
    columns |= {"task": "secret", "status": "completed", "input_message_id": f"msg_{n}", "head_message_id": f"msg_{n}"}
    await add(database, runs, **columns, started_by="lea", created_at=ended_at, ended_at=ended_at)
    return conversation_id


async def test_the_walk_looks_at_a_bounded_number_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once: all that are old are expired, each once, and the last step says that it is the last."""
    monkeypatch.setattr(expire, "LOOKED_AT", 3)
    ids = [await conversation(database, n, ended_at=OLD if n % 2 else YOUNG) for n in range(8)]
    expired, place, steps = [], "", 0
    while place is not None:
        async with database.read() as conn:
            some, place = await expire.conversations(conn, rule("conversations"), now(), after=place)
        expired, steps = expired + some, steps + 1
    assert expired == ids[1::2]
    assert steps == 3


async def test_one_process_at_a_time_applies_the_rules(database: Database) -> None:
    """While one holds the run, another is refused in words; when that is dead for long enough, the run is continued."""
    first = await retention_runs.begin(database, "p1", by="lea")
    assert first is not None
    assert await retention_runs.begin(database, "p2", by="ann") is None
    with pytest.raises(ConflictError, match="Another process is applying the retention rules now"):
        await apply.run(database, [rule("errors")], now(), by="ann")
    async with database.write() as conn:
        moved = await retention_runs.keep(conn, first, counts={"errors-rule": 3}, rule="", place="")
    assert moved is not None
    table = metadata.tables["retention_runs"]
    async with database.write() as conn:
        await conn.execute(update(table).values(held_until=OLD))
    assert (await retention_status(database, None, runs=5)).runs[0].state == "broken off"
    assert await apply.run(database, [rule("errors")], now(), by="ann") == {"errors-rule": 3}
    async with database.write() as conn:
        assert await retention_runs.keep(conn, first, counts={}, rule="", place="") is None  # the first one must stop
    (only,) = (await retention_status(database, None, runs=5)).runs
    assert (only.id, only.state, only.counts) == (first.id, "ended", {"errors-rule": 3})


async def test_a_conversation_that_cannot_be_erased_keeps_no_other_one(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest goes, and the run says which one stayed."""
    ids = [await conversation(sqlite, n) for n in range(3)]
    erase = erasures.erase

    async def broken(conn: Any, conversation_id: str, *args: Any, **more: Any) -> Any:
        if conversation_id == ids[1]:
            raise RuntimeError("a bug")
        return await erase(conn, conversation_id, *args, **more)

    monkeypatch.setattr(erasures, "erase", broken)
    assert await apply.run(sqlite, [rule("conversations")], now(), by="lea") == {"conversations-rule": 2}
    (only,) = (await retention_status(sqlite, None, runs=5)).runs
    assert ids[1] in only.problem


RULES = '[[rule]]\nname = "month"\nkind = "conversations"\nkeep = "1d"\n'
PROCESS = """
import asyncio, pathlib, sys
from datetime import timedelta
from turngate.approvals_api.retention.apply import keep_retention
from turngate.approvals_api.settings import RetentionSettings
from turngate.store.database import Database

settings = RetentionSettings(file=pathlib.Path(sys.argv[2]))
asyncio.run(keep_retention(Database(sys.argv[1]), settings, hold_for=timedelta(seconds=1)))
"""
MANY = 8


async def erased(database: Database) -> int:
    table = metadata.tables["erasures"]
    async with database.read() as conn:
        return int((await conn.execute(select(func.count()).select_from(table))).scalar_one())


async def until(condition: Any, seconds: float = 300) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.exhaustive)], indirect=True
)
async def test_a_process_that_is_killed_in_the_middle_is_continued(database: Database, tmp_path: Path) -> None:
    """Kill -9 after some erasures: another process's loop ends the same run, each conversation once, and none is left."""
    for n in range(MANY):
        await conversation(database, n)
    file = tmp_path / "retention.toml"
    file.write_text(RULES)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, database.url, str(file), env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )

    async def some() -> bool:
        assert process.returncode is None
        return await erased(database) > 0

    await until(some)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    before = await erased(database)
    assert before < MANY
    settings = RetentionSettings(file=file)
    task = asyncio.create_task(apply.keep_retention(database, settings, hold_for=DAY / 86_400))

    async def ended() -> bool:
        return (await retention_status(database, settings, runs=1)).runs[0].state == "ended"

    await until(ended)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    status = await retention_status(database, settings, runs=9)
    (only,) = status.runs
    assert await erased(database) == MANY
    assert MANY - 1 <= only.counts["month"] <= MANY  # a kill between an erasure and its note loses one of the count
    assert status.next_at is not None
    assert status.next_at > YOUNG
    assert "secret" not in str(await texts(database, messages))


async def test_the_loop_waits_for_a_file_that_can_be_read(sqlite: Database, tmp_path: Path) -> None:
    """A typo erases nothing, and the status says what is wrong; switched off, the loop returns at once."""
    file = tmp_path / "retention.toml"
    file.write_text(RULES.replace("keep", "kept"))
    await conversation(sqlite, 1)
    settings = RetentionSettings(file=file)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await apply.keep_retention(sqlite, settings)
    status = await retention_status(sqlite, settings, runs=1)
    assert "retention.toml, line 4: 'kept' is no key of a rule" in status.says
    assert await erased(sqlite) == 0
    await apply.keep_retention(sqlite, RetentionSettings(file=file, every=None))
    await apply.keep_retention(sqlite, None)
