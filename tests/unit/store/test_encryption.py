"""What the database holds is encrypted, what store functions see is not; each change of it is an error of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy import text as sql
from support.stores.encryption import encrypted
from support.stores.sql_census import SqlCensus
from support.stores.stored_requests import live_run

from turngate.domain.conversation.messages import user_message
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError, UnreadableContentError
from turngate.runtime.key_services import SecretKey, VaultTransit, new_key, open_keys, service_of
from turngate.runtime.settings import Settings
from turngate.store import evidence
from turngate.store.database import Connection, Database
from turngate.store.encryption import rewrite
from turngate.store.encryption.key_ring import KeyRing
from turngate.store.encryption.places import HASHES, PLACES
from turngate.store.encryption.sealed import HASH_MARK, HashKey
from turngate.store.runs import calls, messages, queued_messages, runs, whole_results
from turngate.store.tables import metadata
from turngate.store.tables import runs as runs_table

SECRET = "the owner's name is Ximena"


def key() -> SecretKey:
    return SecretKey.of(new_key(), "a test's key")


async def raw(database: Database, statement: str, **values: Any) -> list[Any]:
    """Run SQL past the store, as someone with the database's file does."""
    async with database._backend.write() as conn:
        result = await conn.execute(sql(statement), values)
        return list(result.all()) if result.returns_rows else []


async def say(database: Database, run: runs.Run, message_id: str, words: str = SECRET) -> None:
    async with database.write() as conn:
        await append(conn, run, message_id, words)


async def append(conn: Connection, run: runs.Run, message_id: str, words: str = SECRET) -> None:
    new = messages.NewMessage(
        id=message_id,
        parent_id=None,
        conversation_id=run.conversation_id,
        run_id=run.id,
        message=user_message(words),
    )
    await messages.append(conn, new)


async def text_of(database: Database, message_id: str) -> str:
    async with database.read() as conn:
        return (await messages.get(conn, message_id)).text


async def new_run(database: Database, run_id: str) -> runs.Run:
    async with database.write() as conn:
        return await live_run(conn, run_id, task=SECRET)


async def test_the_database_holds_no_plain_text_and_the_store_reads_it(database: Database) -> None:
    """Messages and tasks are sealed under the conversation's own key, which is stored wrapped, with the row."""
    ring = await encrypted(database)
    one, other = await new_run(database, "run_1"), await new_run(database, "run_2")
    await say(database, one, "m1")
    assert await text_of(database, "m1") == SECRET
    (stored,) = await raw(database, "SELECT parts FROM messages WHERE id = 'm1'")
    assert stored[0].startswith(f"\x02messages.parts:{one.conversation_id}:")
    assert SECRET not in stored[0]
    async with database.read() as conn:
        again = await runs.get(conn, "run_2")
    assert again is not None
    assert (again.task, again.nonce) == (other.task, other.nonce)
    keys = await raw(database, "SELECT data_key FROM conversations")
    assert len({each[0] for each in keys}) == 2
    assert all(each[0].startswith(f"{ring.current}:") for each in keys)


async def test_another_process_reads_it_with_the_same_key_and_refuses_others(database: Database) -> None:
    """A key that isn't the database's, or none, or one for a database that isn't encrypted, is refused at the start."""
    own, secret = new_key(), new_key()
    with pytest.raises(ConfigurationError, match="run `turngate keys init`"):
        await open_keys(Settings(key=secret), Database(database.url))
    await encrypted(database, SecretKey.of(own, "a test's key"))
    await say(database, await new_run(database, "run_1"), "m1")
    second = Database(database.url)
    await open_keys(Settings(key=own), second)
    assert await text_of(second, "m1") == SECRET
    with pytest.raises(ConfigurationError, match="TURNGATE_FORMER_KEY_FILE"):
        await open_keys(Settings(key=secret), Database(database.url))
    with pytest.raises(ConfigurationError, match="no key is configured"):
        await open_keys(Settings(), Database(database.url))
    await second.close()


@pytest.mark.parametrize(
    "change", ["swapped", "another column", "another conversation", "cut", "bit", "mark only", "a hash", "plain"]
)
async def test_i15_a_sealed_text_that_was_changed_or_moved_is_an_error_and_found(
    database: Database, change: str
) -> None:
    """I15: the text of another row, column or conversation, a truncated one and a changed one are never read as content."""
    ring = await encrypted(database)
    run, other = await new_run(database, "run_1"), await new_run(database, "run_2")
    await say(database, run, "m1")
    await say(database, run, "m2", "Something else.")
    await say(database, other, "m3")
    stored = {row[0]: row[1] for row in await raw(database, "SELECT id, parts FROM messages")}
    options = await raw(database, "SELECT task FROM runs WHERE id = 'run_1'")
    mine = stored["m1"]
    forged = {
        "swapped": stored["m2"],
        "another column": options[0][0],
        "another conversation": stored["m3"].replace(other.conversation_id, run.conversation_id),
        "cut": mine[:-9],
        "bit": mine[:-6] + ("A" if mine[-6] != "A" else "B") + mine[-5:],
        "mark only": "\x02",
        "plain": '[{"type":"text","text":"Pay twice."}]',
        "a hash": ring.hashes.seal(framed_sha256("other")) if ring.hashes else "",
    }[change]
    await raw(database, "UPDATE messages SET parts = :forged WHERE id = 'm1'", forged=forged)
    with pytest.raises(UnreadableContentError):
        await text_of(database, "m1")
    async with database.read() as conn:
        different = await evidence.first_difference(conn, "run_1")
    assert different is not None
    assert any(each in str(different) for each in ("decrypt", "another row", "damaged", "is not encrypted"))


async def test_a_transaction_that_fails_leaves_no_key_behind(database: Database) -> None:
    """A process that kept the key of a conversation that was never stored would write texts that no one can read."""
    ring = await encrypted(database)

    async def failing() -> None:
        async with database.write() as conn:
            await live_run(conn, "run_1", conversation_id=None)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert not ring.data_keys
    run = await new_run(database, "run_1")
    ring.data_keys.clear()
    await say(database, run, "m1")
    ring.data_keys.clear()
    assert await text_of(database, "m1") == SECRET


async def test_without_its_data_key_a_conversation_cannot_be_read(database: Database) -> None:
    """Who deletes the data key has deleted the content, in every copy of the database."""
    ring = await encrypted(database)
    await say(database, await new_run(database, "run_1"), "m1")
    ring.data_keys.clear()
    await raw(database, "UPDATE conversations SET data_key = NULL")
    with pytest.raises(UnreadableContentError, match="is gone"):
        await text_of(database, "m1")


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_the_first_use_of_an_old_conversation_locks_no_row_of_others(database: Database) -> None:
    """One transaction has the run and writes content, another has written content and wants the run: no deadlock."""
    run = await new_run(database, "run_1")
    await encrypted(database)  # the conversation is older and has no data key
    has_run, has_written = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with database.write() as conn:
            await conn.execute(update(runs_table).where(runs_table.c.id == run.id).values(status="running"))
            has_run.set()
            await has_written.wait()
            await append(conn, run, "m1")

    async def second() -> None:
        await has_run.wait()
        async with database.write() as conn:
            await append(conn, run, "m2")
            has_written.set()
            await conn.execute(update(runs_table).where(runs_table.c.id == run.id).values(status="running"))

    async with asyncio.timeout(20):
        await asyncio.gather(first(), second())
    assert [await text_of(database, each) for each in ("m1", "m2")] == [SECRET] * 2
    await rewrite.encrypt(database)
    await say(database, run, "m3")
    (stored,) = await raw(database, "SELECT parts FROM messages WHERE id = 'm3'")
    assert f":{run.conversation_id}:" in stored[0]
    # From its next start on, a process takes nothing that isn't encrypted.
    assert database.ring is not None
    next_start = KeyRing(database.ring.services)
    async with database.read() as conn:
        await next_start.load(conn)
    database.encrypt_with(next_start)
    await raw(database, "UPDATE messages SET parts = '[]' WHERE id = 'm1'")
    with pytest.raises(UnreadableContentError, match="not encrypted, though this database is"):
        await text_of(database, "m1")


async def test_a_list_of_many_conversations_takes_one_look_up_of_keys(database: Database) -> None:
    """A process that has just started reads fifty conversations' rows with one more statement, not fifty."""
    ring = await encrypted(database)
    for number in range(50):
        await new_run(database, f"run_{number}")
    ring.data_keys.clear()
    with SqlCensus(database) as census:
        async with database.read() as conn:
            rows = (await conn.execute(select(runs_table.c.task))).all()
    assert [row.task for row in rows] == [SECRET] * 50
    assert len([each for one in census.transactions for each in one.statements if "data_key" in each]) == 1
    assert len(ring.data_keys) == 50


async def test_keys_rotate_while_others_write_and_the_former_key_is_needed_no_more(database: Database) -> None:
    """Each data key is wrapped again, a run that began under the former key continues, and a stopped rotation is resumed."""
    former, current = key(), key()
    await encrypted(database, former)
    mine = [await new_run(database, f"run_{number}") for number in range(5)]
    await say(database, mine[0], "m1")
    other = Database(database.url)  # a process that has both keys, as the how-to wants it
    shared = KeyRing([current, former])
    async with other.read() as conn:
        await shared.load(conn)
    other.encrypt_with(shared)
    rotating = KeyRing([current, former])
    assert await rewrite.rotate(other, rotating) == rewrite.Rotation(5, is_new=True)
    await say(database, mine[1], "m2")  # by the process that knows nothing of it
    late = await new_run(database, "run_late")
    await say(database, late, "m3")
    assert await rewrite.rotate(other, KeyRing([current, former])) == rewrite.Rotation(1, is_new=False)
    alone = Database(database.url)
    ring = KeyRing([current])
    async with alone.read() as conn:
        await ring.load(conn)
    alone.encrypt_with(ring)
    assert [await text_of(alone, each) for each in ("m1", "m2", "m3")] == [SECRET] * 3
    wrapped = [row[0] for row in await raw(database, "SELECT data_key FROM conversations")]
    assert {each.partition(":")[0] for each in wrapped} == {ring.current}
    again = await rewrite.rotate(other, KeyRing([current, former]))
    assert again == rewrite.Rotation(6, is_new=True)  # all were done
    for each in (other, alone):
        await each.close()


async def test_what_was_stored_before_is_encrypted_later(database: Database) -> None:
    """Rows of a database that was not encrypted are read as they are, and `turngate keys encrypt` seals them in place."""
    run = await new_run(database, "run_1")
    await say(database, run, "m1")
    await encrypted(database)
    assert await text_of(database, "m1") == SECRET
    async with database.read() as conn:
        before = {each.table: each.plain for each in await rewrite.unsealed(conn)}
    assert before["messages"] >= 1
    assert before["runs"] == 1
    await rewrite.encrypt(database)
    async with database.read() as conn:
        after = {each.table: each.plain for each in await rewrite.unsealed(conn)}
    assert sum(count for name, count in after.items() if name != "events") == 0
    assert await text_of(database, "m1") == SECRET
    (stored,) = await raw(database, "SELECT parts FROM messages WHERE id = 'm1'")
    assert f":{run.conversation_id}:" in stored[0]


async def test_plain_text_cannot_pass_as_sealed(database: Database) -> None:
    """A model that writes the mark at the beginning of its text gets a replacement character, encrypted or not."""
    run = await new_run(database, "run_1")
    async with database.write() as conn:
        await runs.end(conn, run.id, runs.Ending(status="failed", reason="\x02runs.reason:conv:AAAA"))
    await encrypted(database)
    async with database.read() as conn:
        stored = await runs.get(conn, "run_1")
    assert stored is not None
    assert stored.reason == "\ufffdruns.reason:conv:AAAA"


@pytest.mark.parametrize("place", sorted(PLACES))
def test_sealed_columns_hold_text_of_any_length(place: str) -> None:
    """Sealed text is longer: a column with a limit would refuse it on PostgreSQL."""
    table, _, column = place.partition(".")
    assert getattr(metadata.tables[table].c[column].type, "length", None) is None


@pytest.mark.parametrize("place", sorted(HASHES - {"precedent_features.feature"}))
def test_sealed_hashes_fit_into_their_columns(place: str) -> None:
    """The hash of anything, in hex, has at most the length that its column allows once it is under a key."""
    table, _, column = place.partition(".")
    sealed = HashKey(b"s" * 32).seal(framed_sha256("any"))
    assert len(sealed) <= metadata.tables[table].c[column].type.length  # type: ignore[attr-defined]


def test_a_key_of_hashes_is_its_own_and_finds_changes() -> None:
    """Equal for equal hashes and no one else's; what was changed in the database is an error, not another hash."""
    mine, other = HashKey(b"s" * 32), HashKey(b"t" * 32)
    plain = framed_sha256("any")
    for value in (plain, "k1", plain.upper(), "ab"):
        assert mine.seal(value) == mine.seal(value) != other.seal(value)
        assert mine.opened(mine.seal(value)) == value
        assert mine.seal([value]) == [mine.seal(value), value]  # rows from before have the plain one
        for forged in (
            mine.seal(value)[:-2],
            mine.seal(value)[:-1] + "\x01",
            other.seal(value),
            f"{HASH_MARK}h",
            HASH_MARK,
        ):
            with pytest.raises(UnreadableContentError, match="a hash"):
                mine.opened(forged)
    assert mine.seal(2**63 - 1) == mine.seal(2**63 - 1) != other.seal(2**63 - 1)
    assert (mine.seal(""), mine.seal(None)) == ("", None)


async def test_what_an_insert_has_of_its_own_is_sealed_with_its_conversations_key(database: Database) -> None:
    """Rows are written with parameters, or with values in the statement: both have the key and label of their row."""
    await encrypted(database)
    run = await new_run(database, "run_1")
    sent = queued_messages.QueuedMessage(
        id="q1", run_id=run.id, text=SECRET, while_running="queue", sent_by="ann", fingerprint=framed_sha256("f")
    )
    other = replace(sent, id="q2", text="other")
    async with database.write() as conn:
        await queued_messages.add(conn, sent, "")
        await queued_messages.add(conn, other, "")
    async with database.read() as conn:
        stored = await queued_messages.get(conn, "q1")
    assert stored is not None
    assert (stored.text, stored.fingerprint) == (sent.text, sent.fingerprint)
    (raw_text, raw_hash), _ = await raw(database, "SELECT text, fingerprint FROM queued_messages ORDER BY id")
    assert raw_text.startswith(f"\x02queued_messages.text:{run.conversation_id}:")
    assert raw_hash.startswith(HASH_MARK)
    swap = "UPDATE queued_messages SET text = (SELECT text FROM queued_messages WHERE id = 'q2') WHERE id = 'q1'"
    await raw(database, swap)
    async with database.read() as conn:
        with pytest.raises(UnreadableContentError, match="another row"):
            await queued_messages.get(conn, "q1")


async def test_rows_from_before_are_found_by_their_hashes(database: Database) -> None:
    """Between `keys init` and `keys encrypt`, and after it, equal calls and whole results are found as before."""
    run = await new_run(database, "run_1")
    old_key, old_whole, new_whole = framed_sha256("pay", "5"), "old " * 50, "new " * 50

    async def plan(call_id: str, position: int, whole: str) -> None:
        async with database.write() as conn:
            digest = await whole_results.keep(conn, whole)
            await calls.insert_planned(conn, [planned_call(run, call_id, position, old_key)])
            with_whole = update(metadata.tables["calls"]).where(metadata.tables["calls"].c.tool_call_id == call_id)
            await conn.execute(with_whole.values(whole_result=digest))

    async def all_found() -> None:
        async with database.read() as conn:
            equal_calls = await calls.with_repeat_keys(conn, run.id, [old_key])
            assert [each.tool_call_id for each in equal_calls] == ["c1", "c2", "c3"]
            assert {each.repeat_key for each in equal_calls} == {old_key}
            for each, whole in zip(equal_calls, (old_whole, old_whole, new_whole), strict=True):
                assert await whole_results.text_of(conn, each.whole_result or "") == whole

    await plan("c1", 0, old_whole)
    await encrypted(database)
    await plan("c2", 1, old_whole)
    await plan("c3", 2, new_whole)
    await all_found()
    assert (await raw(database, "SELECT count(*) FROM whole_results"))[0][0] == 3  # the old one in both forms
    await rewrite.encrypt(database)
    await all_found()
    names = await raw(database, "SELECT digest FROM whole_results")
    assert len(names) == 2
    assert all(each[0].startswith(HASH_MARK) for each in names)
    async with database.read() as conn:
        assert sum(each.plain for each in await rewrite.unsealed(conn) if each.table != "events") == 0


async def test_what_was_written_before_a_conversation_had_a_key_gets_it(database: Database) -> None:
    """A message of an old conversation, written after `keys init`, is under the deployment's key until `keys encrypt`."""
    run = await new_run(database, "run_1")
    await encrypted(database)
    for number in range(3):
        await say(database, run, f"m{number}")
    owners = "SELECT parts FROM messages WHERE conversation_id = :conversation"
    before = [row[0] for row in await raw(database, owners, conversation=run.conversation_id)]
    assert sum(each.startswith("\x02messages.parts:=") for each in before) == 3
    await rewrite.encrypt(database)
    after = [row[0] for row in await raw(database, owners, conversation=run.conversation_id)]
    assert len(after) == len(before)
    assert all(each.startswith(f"\x02messages.parts:{run.conversation_id}:") for each in after)
    assert await text_of(database, "m0") == SECRET


def planned_call(run: runs.Run, call_id: str, position: int, key: str) -> calls.Call:
    return calls.Call(
        run_id=run.id,
        tool_call_id=call_id,
        step=1,
        position=position,
        tool_name="pay",
        input="{}",
        repeat_key=key,
        digest="d" * 64,
        disposition="run",
        verdict="",
        policy_version="p",
        effect="once",
    )


def test_a_service_of_ones_own_and_wrong_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``module:function`` returns any object with the three members; what can't be used is an error."""
    (tmp_path / "our_keys.py").write_text(
        "from turngate.runtime.key_services import SecretKey, new_key\n\n"
        "def service():\n    return SecretKey.of(new_key(), 'x')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    service = service_of("our_keys:service")
    assert service.unwrap(service.wrap(b"k" * 32)) == b"k" * 32
    assert service_of("vault:transit/turngate") == VaultTransit("transit", "turngate")
    for wrong in ("our_keys:absent", "no_such_module:service", "our_keys", "vault:turngate"):
        with pytest.raises(ConfigurationError, match="TURNGATE_KEY_SERVICE"):
            service_of(wrong)
    with pytest.raises(ConfigurationError, match="32 random bytes"):
        SecretKey.of("short", "TURNGATE_KEY")


def contents(directory: Path) -> list[bytes]:
    return [each.read_bytes() for each in directory.iterdir() if each.is_file()]


async def test_no_planted_text_is_in_the_files_of_sqlite(sqlite: Database, tmp_path: Path) -> None:
    """Neither the file nor its WAL has any of 1,000 texts, before and after a checkpoint."""
    await encrypted(sqlite)
    run = await new_run(sqlite, "run_1")
    planted = [f"planted-{number:04}-zebra" for number in range(1_000)]
    async with sqlite.write() as conn:
        for number, words in enumerate(planted):
            new = messages.NewMessage(
                id=f"m{number}", parent_id=None, conversation_id=run.conversation_id, message=user_message(words)
            )
            await messages.append(conn, new)
    assert await text_of(sqlite, "m999") == planted[-1]
    for _ in range(2):
        files = contents(tmp_path)
        assert files
        assert not any(b"planted-" in each or b"zebra" in each or SECRET.encode() in each for each in files)
        with sqlite3.connect(tmp_path / "turngate.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
