"""Erasing a conversation: a real run in which people, a model and tools say 1,000 different things, and what is left of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import secrets
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import insert, text, update
from sqlalchemy.engine import make_url
from support.engine.stack import OPERATOR, ListModel, Script, Stack, call, person, require_no_difference, says, stack
from support.stores.encryption import BOTH_ENCRYPTED
from support.stores.postgres_server import program
from temporalio.client import Client

from turngate import Limits, tool
from turngate.approvals_api.requests import comments
from turngate.approvals_api.retention.erase import ErasureOrder, erase, preview
from turngate.approvals_api.runs.dry_run import start_dry_run
from turngate.approvals_api.runs.fork import fork
from turngate.approvals_api.runs.send_message import send
from turngate.cli.commands.events.audit import event_line
from turngate.domain.errors import ConflictError, ModelError
from turngate.domain.tools.declare import interaction_tool
from turngate.domain.tools.preview import Preview
from turngate.store import evidence
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import audit, events
from turngate.store.runs import runs
from turngate.store.tables import (
    deliveries,
    delivery_attempts,
    deltas,
    errors,
    idempotent_answers,
    judgements,
    progress,
    summaries,
)
from turngate.store.tables import messages as messages_table
from turngate.store.tables.content import TEXT_COLUMNS
from turngate.wire.orders import DryRunOrder, ForkOrder, MessageOrder

PLANTED = 1_000
ADMIN = person("root", "admin")


class Planted:
    """Strings that are nowhere else, each given out once."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.all: list[str] = []

    def some(self, count: int = 1) -> str:
        """So many of them, in one text."""
        new = [f"planted-{next(self._numbers):04d}-secret" for _ in range(count)]
        self.all += new
        return " ".join(new)


class Payment(BaseModel):
    note: str


class Question(BaseModel):
    text: str


class Reply(BaseModel):
    answer: str


ask_person = interaction_tool(name="ask_person", description="Ask a person.", params=Question, answer=Reply)


async def planted_run(database: Database, engine: Stack, planted: Planted) -> runs.Run:
    """A run that ended, with planted strings wherever a run has content."""
    run = await engine.start(planted.some(100))
    paying = await engine.request(run, tool="pay")
    await comments.comment(engine.services, OPERATOR, paying.id, text=planted.some(50), idempotency_key="once")
    await send(engine.services, OPERATOR, run.id, MessageOrder(input=planted.some(50), while_running="inject"))
    edited = json.dumps({"note": planted.some(50)})
    await engine.decide(paying, "edit", args=edited, message=planted.some(20))
    question = await engine.request(run, kind="question")
    await engine.decide(question, "respond", args=json.dumps({"answer": planted.some(50)}))
    refused = await engine.request(run, tool="pay")
    await engine.decide(refused, "reject", message=planted.some(20))
    last = await engine.request(run, tool="pay")
    await engine.interrupt(run, planted.some(20))
    ended = await engine.ended(run)
    assert last.status == "pending"
    await _for_watchers(database, ended, planted)
    return ended


async def _for_watchers(database: Database, run: runs.Run, planted: Planted) -> None:
    """Rows that only another provider, a watcher or a receiver would cause."""
    at = as_text(now())
    async with database.write() as conn:
        first = (await events.after(conn, 0, run_id=run.id))[0]
        await conn.execute(
            insert(deltas).values(
                id=99_001, run_id=run.id, step=1, attempt=1, n=1, payload=planted.some(10), created_at=at
            )
        )
        await conn.execute(
            insert(progress).values(run_id=run.id, tool_call_id="c", n=1, payload=planted.some(10), created_at=at)
        )
        failed = {"id": "err-1", "run_id": run.id, "attempt": 1, "says": "tool crashed", "about": planted.some(10)}
        failed |= {"message": planted.some(10), "traceback": planted.some(10), "worker": "w", "build": "b"}
        await conn.execute(insert(errors).values(**failed, created_at=at))
        judged = {"run_id": run.id, "tool_call_id": "j", "judgement": planted.some(10), "created_at": at}
        await conn.execute(insert(judgements).values(**judged))
        cut = {
            "head_message_id": run.head_message_id,
            "covers": "m",
            "root_message_id": "m",
            "run_id": run.id,
            "step": 1,
        }
        cut |= {"kind": "summary", "text": planted.some(20), "tokens_before": 1, "tokens_after": 1, "created_at": at}
        await conn.execute(insert(summaries).values(**cut))
        sent = {"id": "ntf_1", "channel": "hook", "first_seq": first.seq, "last_seq": first.seq, "status": "delivered"}
        sent |= {"payload": planted.some(20), "attempts": 1, "next_attempt_at": at, "created_at": at}
        await conn.execute(insert(deliveries).values(**sent))
        tried = {"delivery_id": "ntf_1", "n": 1, "started_at": at, "milliseconds": 1, "answer": planted.some(10)}
        await conn.execute(insert(delivery_attempts).values(**tried))
        answer = json.dumps({"run_id": run.id, "text": planted.some(10)})
        stored = {"principal": "name:x", "key": "k", "fingerprint": "f", "answer": answer, "created_at": at}
        await conn.execute(insert(idempotent_answers).values(**stored))


@pytest.fixture
def planted() -> Planted:
    return Planted()


async def uncompressed(database: Database) -> None:
    """Let PostgreSQL store long texts so that a search of its files finds what is in them."""
    if "sqlite" in database.url:
        return
    async with database.write() as conn:
        for name, columns in TEXT_COLUMNS.items():
            for column in columns.content:
                await conn.execute(text(f'ALTER TABLE "{name}" ALTER COLUMN "{column}" SET STORAGE EXTERNAL'))


@pytest.fixture
async def engine(client: Client, database: Database, planted: Planted) -> AsyncIterator[Stack]:
    results = planted.some(300)
    await uncompressed(database)

    @tool(effect="read", ask=False)
    async def look(params: Payment) -> dict[str, Any]:
        """Look something up."""
        return {"found": results, "note": params.note}

    def before(params: Payment, _workspace: object) -> Preview:
        return Preview(kind="text", text=f"{planted.some(10)} {params.note}")

    @tool(effect="once", ask=True, preview=before)
    async def pay(params: Payment) -> dict[str, str]:
        """Pay."""
        return {"paid": params.note}

    def arguments(count: int) -> str:
        return json.dumps({"note": planted.some(count)})

    script = ListModel(
        says(planted.some(50), call("look", arguments(20))),
        says(planted.some(20), call("pay", arguments(20))),
        says(planted.some(20), call("ask_person", json.dumps({"text": planted.some(20)}))),
        says(planted.some(20), call("pay", arguments(20))),
        says(planted.some(20), call("pay", arguments(20))),
        says("Done."),
    )
    failures = iter([ModelError(planted.some(10), error_class="overloaded", retryable=True, retry_after_seconds=0.01)])
    answer = script.generate

    async def generate(request: Any) -> Any:
        for failure in failures:
            raise failure
        return await answer(request)

    script.generate = generate  # type: ignore[method-assign]
    async with stack(
        client, database, look, pay, ask_person, model=script, limits=Limits(result_chars=2_000)
    ) as engine:
        yield engine


def stored_bytes(database: Database, directory: Path) -> Iterator[bytes]:
    """The bytes of all files of a database; of SQLite with its logs, and of a backup."""
    url = make_url(database.url)
    if url.get_backend_name() != "sqlite":
        for file in directory.rglob("*"):
            if file.is_file() and "pg_wal" not in file.parts:
                yield file.read_bytes()
        return
    path = Path(url.database or "")
    for file in path.parent.glob(f"{path.name}*"):
        yield file.read_bytes()
    copy = path.with_name(f"backup-{secrets.token_hex(4)}")
    source, backup = sqlite3.connect(path), sqlite3.connect(copy)
    source.backup(backup)
    source.close()
    backup.close()
    yield copy.read_bytes()


async def planted_in(database: Database, planted: Planted) -> set[str]:
    """Which planted strings are somewhere in the files of a database."""
    directory = Path()
    if "sqlite" not in database.url:
        async with database.glance() as conn:
            await conn.execute(text("CHECKPOINT"))
            directory = Path((await conn.execute(text("SHOW data_directory"))).scalar_one()) / "base"
            number = (
                await conn.execute(text("SELECT oid FROM pg_database WHERE datname = current_database()"))
            ).scalar_one()
        directory /= str(number)
    return {each for whole in stored_bytes(database, directory) for each in found_in(whole, planted)}


def found_in(whole: bytes, planted: Planted) -> set[str]:
    """Which planted strings are in these bytes; one pass for all of them."""
    return set(planted.all) & {each.decode() for each in re.findall(rb"planted-\d{4}-secret", whole)}


async def in_dump_or_wal(database: Database, planted: Planted) -> set[str]:
    """Which planted strings are in a new dump of a PostgreSQL database, or in its write-ahead log after two checkpoints.

    Segments are not recycled meanwhile: a recycled one is an old file under a new name, until it is written over.
    """
    if "sqlite" in database.url:
        return set()
    async with database.glance() as conn:
        directory = Path((await conn.execute(text("SHOW data_directory"))).scalar_one())
        for statement in ("SELECT pg_switch_wal()", "CHECKPOINT", "SELECT pg_switch_wal()", "CHECKPOINT"):
            await conn.execute(text(statement))
    command = [program("pg_dump"), "--dbname", database.url.replace("+psycopg", "")]
    dumped = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    assert b"COPY" in dumped.stdout
    log = b"".join(file.read_bytes() for file in sorted((directory / "pg_wal").glob("0*")))
    return found_in(dumped.stdout, planted) | found_in(log, planted)


async def exported(database: Database) -> str:
    async with database.read() as conn:
        return "".join([event_line(each) async for each in audit.every(conn)])


@BOTH_ENCRYPTED
async def test_i15_nothing_of_1000_planted_strings_is_left_and_the_log_agrees(
    database: Database,
    engine: Stack,
    planted: Planted,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """I15: files, backups, exports and logs hold none of them; ids, verdicts and the chain stay, and verify."""
    caplog.set_level(logging.INFO)
    run = await planted_run(database, engine, planted)
    assert len(planted.all) >= PLANTED
    if "sqlite" not in database.url:
        async with database.glance() as conn:
            await conn.execute(text("ALTER SYSTEM SET wal_recycle = off"))
            await conn.execute(text("SELECT pg_reload_conf()"))
            await conn.execute(text("ANALYZE"))  # the planner's statistics quote values
    before = await planted_in(database, planted)
    # A secret's place is the result of a large read: the model is shown a part of it, and people the whole.
    if database.is_encrypted:
        assert before == set()
    else:
        assert len(before) > PLANTED * 0.95, set(planted.all) - before
    dumped = await in_dump_or_wal(database, planted)
    if database.is_encrypted:
        assert dumped == set()
    elif "sqlite" not in database.url:
        assert len(dumped) > PLANTED * 0.95
    seen = await preview(database, run.id)
    assert seen.counts["messages"] > 5
    assert not seen.forks
    result = await erase(database, ErasureOrder(target=run.id, by="root", reason="They asked for it."))
    left = await planted_in(database, planted)
    assert left == set()
    assert await in_dump_or_wal(database, planted) == set()
    assert found_in((await exported(database)).encode(), planted) == set()
    logged = "\n".join(each.getMessage() for each in caplog.records if each.name != "temporalio.activity")
    logged += capsys.readouterr().out  # structlog's own printer
    assert "model failed" in logged
    assert found_in(logged.encode(), planted) == set()
    assert result.erasures[0].conversation_id == run.conversation_id
    await require_no_difference(database)
    async with database.read() as conn:
        assert await events.chain_break(conn, run.id) is None
        erased = (await events.newest(conn, run.id, evidence.ERASED, limit=1))[0].payload
    assert (erased["by"], erased["reason"], erased["intact"]) == ("root", "They asked for it.", True)
    await _refuses(engine, run)
    # What was changed after it is found again.
    async with database.write() as conn:
        rows = messages_table.c.run_id == run.id
        await conn.execute(update(messages_table).where(rows).values(parts='[{"type":"text","text":"other"}]'))
    async with database.read() as conn:
        different = await evidence.first_difference(conn, run.id)
    assert different is not None
    assert "erasing" in different.problem
    async with database.write() as conn:
        erased_text = '[{"type":"text","text":"(erased)"}]'
        await conn.execute(update(messages_table).where(rows).values(parts=erased_text))


async def _refuses(engine: Stack, run: runs.Run) -> None:
    """No fork, no dry run and no new message of an erased conversation: all refuse in words."""
    services = engine.services
    with pytest.raises(ConflictError, match=r"erased at .* UTC by root: They asked for it\..* a fork of it"):
        await fork(services, OPERATOR, run.id, ForkOrder(text="again", step=1))
    with pytest.raises(ConflictError, match="a dry run of it"):
        await start_dry_run(services, OPERATOR, run.id, DryRunOrder())
    with pytest.raises(ConflictError, match="a new run in it"):
        await engine.start("more", conversation_id=run.conversation_id)


async def test_i15_a_row_that_was_emptied_without_an_erasure_is_found(client: Client, sqlite: Database) -> None:
    """I15: emptying a message, or the words of an event, is a change like any other unless the log says it was erased."""
    async with stack(client, sqlite, model=Script(says("Hello.")), tampered="it empties rows") as engine:
        run = await engine.ended(await engine.start("hello"))
        async with sqlite.write() as conn:
            await events.append(conn, run.id, [("model.retrying", {"message": "quoted"})])
        async with sqlite.write() as conn:
            await conn.execute(text("UPDATE events SET words = NULL"))
        async with sqlite.read() as conn:
            different = await evidence.first_difference(conn, run.id)
        assert different is not None
        assert "words are missing" in different.problem
        async with sqlite.write() as conn:
            erased_text = '[{"type":"text","text":"(erased)"}]'
            await conn.execute(
                update(messages_table).where(messages_table.c.run_id == run.id).values(parts=erased_text)
            )
        # A later erasure doesn't hide it: it says that the rows were not as the log says.
        await erase(sqlite, ErasureOrder(target=run.id, by="root", reason="to hide it", scrub=False))
        async with sqlite.read() as conn:
            different = await evidence.first_difference(conn, run.id)
        assert different is not None
        assert "before this run's content was erased" in different.problem


async def test_a_live_run_a_fork_and_a_hold_keep_a_conversation(client: Client, sqlite: Database) -> None:
    """Each is refused in words; with interrupt and with forks all of it goes, and a hold overrides both."""
    from turngate.store.retention import erasures  # noqa: PLC0415

    @tool(effect="once", ask=True)
    async def pay(params: Payment) -> dict[str, str]:
        """Pay."""
        return {"paid": params.note}

    waits = says("I will pay.", call("pay", '{"note": "n"}'))
    async with stack(client, sqlite, pay, model=Script(waits, says("Done."))) as engine:
        run = await engine.start("pay")
        await engine.decide(await engine.request(run), "approve")
        await engine.ended(run)
        forked = await fork(engine.services, OPERATOR, run.id, ForkOrder(text="pay again", step=1))
        await engine.request(forked)
        order = ErasureOrder(target=run.conversation_id, by="root", reason="gone", scrub=False)
        with pytest.raises(ConflictError, match="share messages") as refused:
            await erase(sqlite, order)
        assert refused.value.details["run_ids"] == [forked.id]
        with_forks = ErasureOrder(**{**vars(order), "with_forks": True})
        with pytest.raises(ConflictError, match="still live"):
            await erase(sqlite, with_forks)
        async with sqlite.write() as conn:
            hold = await erasures.add_hold(conn, kind="agent", target="agent", reason="a lawsuit", by="lea")
        everything = ErasureOrder(**{**vars(with_forks), "interrupt": True})
        with pytest.raises(ConflictError, match=r"legal hold since .* by lea: a lawsuit"):
            await erase(sqlite, everything)
        async with sqlite.write() as conn:
            assert await erasures.remove_hold(conn, hold, reason="settled", by="lea") is not None
        stopped: list[str] = []

        def tell(run_id: str) -> None:
            stopped.append(run_id)
            engine.services.gateway.tell_changed(run_id)

        result = await erase(sqlite, everything, on_interrupt=tell)
        assert stopped == [forked.id]
        assert [each.conversation_id for each in result.erasures] == [run.conversation_id, forked.conversation_id]
        assert (await engine.ended(forked)).status == "interrupted"
