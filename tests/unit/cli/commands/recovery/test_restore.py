"""``turngate restore``: what it puts in place, what it refuses, and what a kill leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from support.stores import killed_restore
from support.stores.postgres_server import PostgresServer
from support.stores.stored_requests import live_run
from typer.testing import CliRunner

from turngate.cli.main import app
from turngate.domain.agents.schedules import Timetable
from turngate.domain.errors import UnfinishedRestoreError
from turngate.domain.policy.grants import GrantPattern, WantedGrant
from turngate.runtime.locations import RunningStack
from turngate.store.access import sessions, tokens, users
from turngate.store.clock import as_text, now
from turngate.store.database import Database
from turngate.store.events import deliveries, events
from turngate.store.evidence import ERASED
from turngate.store.policy import grants
from turngate.store.runs import runs
from turngate.store.schedules import schedule_fires, schedules
from turngate.store.schedules.schedules import Schedule

Environment = dict[str, str | None]
MANIFEST = "manifest.json"


def typed(*words: str, code: int = 0, env: Environment | None = None) -> str:
    """Type a command, and return what it printed."""
    outcome = CliRunner().invoke(app, words, env=env)
    assert outcome.exit_code == code, (outcome.output, outcome.stderr, outcome.exception)
    return " ".join((outcome.stdout + outcome.stderr).split())


def backed_up(home: Path, name: str) -> Path:
    """Make a store whose only token has this name, and a backup of it."""
    data, backup = home / name, home / f"{name}.tar"
    data.mkdir(mode=0o700)
    typed("token", "add", name, "--scope", "requests:read", "--data-dir", str(data))
    with closing(sqlite3.connect(data / "temporal.db")) as temporal:
        temporal.execute(f"PRAGMA user_version = {2 if name == 'new' else 1}")
        temporal.execute("CREATE TABLE workflows (id)")
    typed("backup", str(backup), "--data-dir", str(data))
    return backup


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backed_up(tmp_path_factory.mktemp("backup"), "new")


def everything_in(directory: Path) -> dict[str, bytes]:
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def token_names(data: Path) -> list[str]:
    with closing(sqlite3.connect(data / "turngate.db")) as store:
        return [row[0] for row in store.execute("SELECT name FROM api_tokens WHERE name IN ('old', 'new')")]


def test_a_backup_takes_the_place_of_a_store(tmp_path: Path, backup: Path) -> None:
    """Only with --replace; the old one is kept. Files of --with stay in the backup, and are named."""
    data, own = tmp_path / "old", tmp_path / "policy.toml"
    backed_up(tmp_path, "old")
    own.write_text("[[rules]]")
    before = everything_in(data)
    message = typed("restore", str(backup), "--data-dir", str(data), code=2)
    assert "--replace" in message
    assert {name: content for name, content in everything_in(data).items() if name in before} == before
    assert "restored as of" in typed("restore", str(backup), "--replace", "--data-dir", str(data))
    assert token_names(data) == ["new"]
    [aside] = data.glob("turngate.db.before-restore-*[0-9]")
    shutil.move(aside, data / "turngate.db")
    assert token_names(data) == ["old"]
    typed("backup", str(tmp_path / "also.tar"), "--with", str(own), "--data-dir", str(data))
    message = typed("restore", str(tmp_path / "also.tar"), "--data-dir", str(tmp_path / "elsewhere"))
    assert "with-0-policy.toml" in message


async def with_rights(data: Path) -> tuple[str, str]:
    """Write two users, a session, a token, a grant, a schedule and a notification that waits; return ids of token and grant."""
    database = Database(f"sqlite:///{data}/turngate.db")
    async with database.write() as conn:
        await users.add(conn, users.User(name="ann", role="admin"), by="root")
    async with database.write() as conn:
        await users.add(conn, users.User(name="bob", role="operator"), by="root")
    async with database.write() as conn:
        await sessions.begin(conn, "ann")
    async with database.write() as conn:
        secret = await tokens.issue(conn, tokens.NewToken(name="ci", scopes=["runs:write"]), by="root")
    async with database.write() as conn:
        token = await tokens.find(conn, secret)
        assert token is not None
        wanted = WantedGrant(pattern=GrantPattern(tool="pay"), scope="everyone", max_uses=9)
        grant = await grants.create(conn, wanted, grants.Origin(created_by="root"), key="k")
        payload = {"grant_id": grant.id, "by": "root", "tool": "pay", "scope": "everyone", "max_uses": 9}
        await events.append(conn, events.SYSTEM, [("grant.created", payload)])
        timetable = Timetable(every_seconds=60).model_dump_json()
        nightly = Schedule(
            id="sch_1", name="nightly", agent="agent", input="Pay.", workspace=None, model=None, conversation_id=None,
            unattended_asks="park", timetable=timetable, overlap="skip", catch_up_seconds=86_400, notes="", created_by="root",
        )  # fmt: skip
        await schedules.create(conn, nightly)
        await events.append(conn, events.SYSTEM, [("schedule.created", {"schedule_id": "sch_1", "name": "nightly"})])
        at = as_text(now())
        waits = deliveries.Delivery(
            id="ntf_1",
            channel="chat",
            first_seq=1,
            last_seq=1,
            payload="{}",
            status="waiting",
            next_attempt_at=at,
            created_at=at,
        )
        await deliveries.add(conn, [waits])
        await deliveries.begin(conn, "chat", 1)
    await database.close()
    return token.id, grant.id


async def take_rights(data: Path, token: str, grant: str) -> None:
    """Take all of that away, as people do after a backup."""
    database = Database(f"sqlite:///{data}/turngate.db")
    async with database.write() as conn:
        await users.set_disabled(conn, "ann", disabled=True, by="root")
    async with database.write() as conn:
        await users.set_role(conn, "bob", "viewer", by="root")
    async with database.write() as conn:
        await tokens.revoke(conn, by="root", token_id=token)
    async with database.write() as conn:
        assert await grants.revoke(conn, grant, by="root")
        await events.append(conn, events.SYSTEM, [("grant.revoked", {"grant_id": grant, "by": "root"})])
    async with database.write() as conn:
        schedule = await schedules.get(conn, "sch_1", hold=True)
        assert schedule is not None
        await schedules.change(conn, schedule, deleted_at=as_text(now()), deleted_by="root")
        deleted = {"schedule_id": "sch_1", "name": "nightly", "by": "root"}
        await events.append(conn, events.SYSTEM, [("schedule.deleted", deleted)])
    await database.close()


def rights(data: Path) -> dict[str, object]:
    """Read what a store lets whom do."""
    with closing(sqlite3.connect(data / "turngate.db")) as store:
        wanted = {
            "ann": "SELECT disabled_at IS NULL FROM users WHERE role = 'admin'",
            "bob": "SELECT role FROM users WHERE role != 'admin'",
            "sessions": "SELECT count(*) FROM sessions",
            "token": "SELECT revoked_at IS NULL FROM api_tokens WHERE name = 'ci'",
            "grant": "SELECT revoked_at IS NULL FROM grants",
            "schedule": "SELECT deleted_at IS NULL FROM schedules",
            "sent later": "SELECT count(*) FROM deliveries WHERE status = 'waiting'",
        }
        return {name: store.execute(sql).fetchone()[0] for name, sql in wanted.items()}


NOTHING_LEFT = {"ann": 0, "bob": "viewer", "sessions": 0, "token": 0, "grant": 0, "schedule": 0, "sent later": 0}


def test_i13_a_restore_brings_back_no_right_that_was_taken_away(tmp_path: Path) -> None:
    """What the replaced store's log, or an export of it, took away stays away; where neither is there, the command says so."""
    data, backup, log = tmp_path / "data", tmp_path / "backup.tar", tmp_path / "log.jsonl"
    data.mkdir(mode=0o700)
    here = ("--data-dir", str(data))
    typed("migrate", *here)
    token, grant = asyncio.run(with_rights(data))
    typed("backup", str(backup), *here)
    asyncio.run(take_rights(data, token, grant))
    typed("audit", "export", "--output", str(log), *here)
    output = typed("restore", str(backup), "--replace", *here)
    assert rights(data) == NOTHING_LEFT
    for each in (
        "user ann is disabled",
        "user bob is viewer",
        f"token ci ({token}) is revoked",
        f"grant {grant} is revoked",
    ):
        assert each in output
    typed("audit", "verify", *here)
    elsewhere = tmp_path / "elsewhere"
    output = typed("restore", str(backup), "--log", str(log), "--data-dir", str(elsewhere))
    assert rights(elsewhere) == NOTHING_LEFT
    unknown = tmp_path / "unknown"
    output = typed("restore", str(backup), "--revoke-tokens", "--revoke-grants", "--data-dir", str(unknown))
    assert "no log says what happened after" in output
    assert rights(unknown) == {**NOTHING_LEFT, "ann": 1, "bob": "operator", "schedule": 1}
    other = backed_up(tmp_path, "other")
    assert "not an export of the store" in typed(
        "restore", str(other), "--log", str(log), "--data-dir", str(tmp_path / "x"), code=2
    )
    assert not asyncio.run(fired(unknown, ago=1))


async def fired(data: Path, *, ago: int) -> bool:
    """Report a fire of the timetable, so many minutes before the last one, to a restored store; tell whether it counts."""
    with closing(sqlite3.connect(data / "turngate.db")) as store:  # made long before its newest fire
        store.execute("UPDATE schedules SET created_at = '2026-01-01'")
        store.commit()
    database = Database(f"sqlite:///{data}/turngate.db")
    async with database.write() as conn:
        agent = schedule_fires.AgentAtFire(version="1", model="m")
        minute = now().replace(second=0, microsecond=0)
        fire = await schedule_fires.settle(conn, "sch_1", minute - timedelta(minutes=ago), agent)
    await database.close()
    return fire is not None


def test_a_store_in_use_is_not_replaced(tmp_path: Path, backup: Path) -> None:
    data = tmp_path / "data"
    typed("restore", str(backup), "--data-dir", str(data))
    note = RunningStack(temporal_address="127.0.0.1:1", api_url="http://127.0.0.1:1")
    note.write(data)
    assert "Stop it and every worker" in typed("restore", str(backup), "--replace", "--data-dir", str(data), code=2)
    note.remove(data)
    typed("restore", str(backup), "--replace", "--data-dir", str(data))


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_i13_a_killed_restore_leaves_no_store_that_opens_half(tmp_path: Path, backup: Path, every: int) -> None:
    """Killed before a change of a file: the old store opens, or none, or the new one; the next restore finishes.

    ``every``: how many changes later the next one is killed.
    """
    backed_up(tmp_path, "old")
    places = (backup, tmp_path / "old", tmp_path / "scratch")
    program = [sys.executable, killed_restore.__file__, *map(str, places), str(every)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    tries = [json.loads(line) for line in done.stdout.splitlines()]
    met = [each["met"] for each in tries]
    assert met == [*["old"] * met.count("old"), *["refused"] * met.count("refused"), *["new"] * met.count("new")]
    assert min(met.count("old"), met.count("refused")) * every >= 4
    assert [each["ended"] for each in tries] == [*[-9] * (len(tries) - 1), 0]
    for each in tries:
        assert (each["again"], each["then"], each["temporal"]) == (0, "new", 2), each
        assert "old" in each["aside"], each
        assert each["files"] == tries[-1]["files"], each


def test_i13_a_restore_into_postgresql_that_was_cut_off_leaves_what_no_process_opens(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """It was loaded, and its runs are not held yet: the log that says what happened later is another store's."""
    source, target = (postgres.fresh_url().replace("+psycopg", "") for _ in range(2))
    data, backup = ("--data-dir", str(tmp_path / "data")), tmp_path / "backup.tar"
    (tmp_path / "data").mkdir(mode=0o700)
    typed("migrate", *data, env={"TURNGATE_DATABASE_URL": source})
    typed("token", "add", "new", "--scope", "requests:read", *data, env={"TURNGATE_DATABASE_URL": source})
    with_password = postgres.with_password(source)
    typed("backup", str(backup), *data, env={"TURNGATE_DATABASE_URL": with_password})

    other, log = ("--data-dir", str(tmp_path / "other")), str(tmp_path / "log.jsonl")
    (tmp_path / "other").mkdir(mode=0o700)
    typed("token", "add", "elsewhere", "--scope", "requests:read", *other)
    typed("audit", "export", "--output", log, *other)
    words = ("restore", str(backup), "--log", log, *data)
    assert "not an export of the store" in typed(*words, env={"TURNGATE_DATABASE_URL": target}, code=2)
    for words in (["migrate"], ["token", "list"], ["backup", str(tmp_path / "again.tar")], ["restore", str(backup)]):
        message = typed(*words, *data, env={"TURNGATE_DATABASE_URL": target}, code=2)
        assert "a restore into the database" in message, words
        assert "Drop this database" in message
    for url, works in ((target, False), (source, True)):
        assert asyncio.run(opens(url)) is works
    newer = postgres.with_password(postgres.fresh_url()).replace("+psycopg", "")
    assert "restored as of" in typed("restore", str(backup), *data, env={"TURNGATE_DATABASE_URL": newer})
    assert "new" in typed("token", "list", *data, env={"TURNGATE_DATABASE_URL": newer})


async def opens(url: str) -> bool:
    database = Database(url)
    try:
        await database.schema_revision()
    except UnfinishedRestoreError:
        return False
    finally:
        await database.close()
    return True


# Archives that no backup wrote.


def manifest_of(backup: Path, **changes: object) -> bytes:
    with tarfile.open(backup) as archive:
        member = archive.extractfile(MANIFEST)
        assert member is not None
        return json.dumps(json.load(member) | changes).encode()


def regular(name: str, content: bytes) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    return entry.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % 512)


def special(name: str, kind: bytes, link: str = "", size: int = 0) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def lying(name: str, size: int) -> bytes:
    """A header that promises ``size`` bytes, with none of them."""
    entry = tarfile.TarInfo(name)
    header = bytearray(entry.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (size % (1 << 96)).to_bytes(12, "big")
    header[124] = 0x80 if size >= 0 else 0xFF
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def stated(content: bytes) -> dict[str, object]:
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def forgeries(backup: Path) -> Iterator[tuple[str, bytes, str]]:
    """Yield name, archive, and what is answered."""
    whole = backup.read_bytes()
    manifest = regular(MANIFEST, manifest_of(backup))
    store = b"no database"

    def of(files: dict[str, bytes], **changes: object) -> bytes:
        described = {name: stated(content) for name, content in files.items()}
        head = regular(MANIFEST, manifest_of(backup, files=described, **changes))
        return head + b"".join(regular(name, content) for name, content in files.items()) + b"\0" * 1024

    yield "empty", b"", "no backup"
    yield "text", b"not a tar\n" * 200, "is no backup"
    yield "cut off", whole[: len(whole) // 2], "it is cut off"
    yield "cut off in a header", whole[:700], "is damaged"
    yield "no manifest", regular("store.db", store), "no backup"
    yield "manifest is no JSON", regular(MANIFEST, b"{"), "no backup"
    yield "manifest is deep", regular(MANIFEST, b"[" * 100_000), "no backup"
    yield "manifest is large", regular(MANIFEST, b" " * (1 << 20) + b"{}"), "no backup"
    yield "manifest of a newer version", of({"store.db": store}, turngate_backup=2), "newer version"
    yield "manifest has more to say", of({"store.db": store}, more=1), "newer version"
    yield "no files", of({}), "store.db is missing"
    yield "a file is missing", manifest, "is missing"
    yield "another backend", of({"store.dump": store}, backend="postgresql"), "the backup is of postgresql"
    yield "unknown schema", of({"store.db": store}, schema_revision="9999_x"), "which this version doesn't know"
    yield "no database", of({"store.db": store}), "cannot be used as a database"
    yield "an empty database", of({"store.db": b""}), "was changed"
    for name in ("../turngate.db", "/etc/passwd", "sub/store.db", "turngate.db", "with-0-../x", "with-0-"):
        yield f"names {name}", of({"store.db": store, name: b"x"}), "its manifest names"
    yield "has more than it names", of({"store.db": store})[:-1024] + regular("x", b"x"), "doesn't name 'x'"
    twice = regular("store.db", store)
    yield "a file twice", manifest + twice + twice, "one file too many"
    yield "many files", b"".join(regular(f"{n}", b"") for n in range(1_001)), "one file too many"
    kinds = {
        "symbolic link": tarfile.SYMTYPE,
        "hard link": tarfile.LNKTYPE,
        "device": tarfile.CHRTYPE,
        "pipe": tarfile.FIFOTYPE,
        "directory": tarfile.DIRTYPE,
        "sparse file": tarfile.GNUTYPE_SPARSE,
        "long name": tarfile.GNUTYPE_LONGNAME,
        "extended header": tarfile.XHDTYPE,
    }
    for what, kind in kinds.items():
        yield what, manifest + special("store.db", kind, "/etc/passwd", size=10), "is no regular file"
    for size in (-1, -512, 1 << 40, 1 << 80):
        yield f"size {size}", manifest + lying("store.db", size), "it is cut off"
    terminal = "\x1b]0;owned\x07"
    yield "a name for a terminal", of({"store.db": store, terminal: b""}), "its manifest names"


def test_i13_an_archive_that_no_backup_wrote_changes_nothing(tmp_path: Path, backup: Path) -> None:
    """Links, devices, sparse files, other paths, sizes that lie: each is refused with what is wrong, before any change."""
    data = tmp_path / "data"
    typed("restore", str(backup), "--data-dir", str(data))
    before, outside = everything_in(data), sorted(tmp_path.iterdir())
    for what, archive, answer in forgeries(backup):
        forged = tmp_path / "forged.tar"
        forged.write_bytes(archive)
        message = typed("restore", str(forged), "--replace", "--data-dir", str(data), code=2)
        assert answer in message, what
        assert "\x1b" not in message
        assert everything_in(data) == before, what
        forged.unlink()
    assert sorted(tmp_path.iterdir()) == outside


def test_a_changed_byte_is_refused(tmp_path: Path, backup: Path) -> None:
    content = bytearray(backup.read_bytes())
    content[content.index(b"SQLite format 3") + 5_000] ^= 1
    (tmp_path / "broken.tar").write_bytes(content)
    message = typed("restore", str(tmp_path / "broken.tar"), "--data-dir", str(tmp_path / "data"), code=2)
    assert "is not what was backed up" in message
    assert not (tmp_path / "data" / "turngate.db").exists()


def test_only_its_owner_reads_a_backup(backup: Path) -> None:
    assert backup.stat().st_mode & 0o077 == 0


# Encryption.


def test_an_encrypted_backup_needs_its_key(tmp_path: Path) -> None:
    """The key is not in it. Without it, or with another one, nothing is put in place."""
    data, backup, restored = tmp_path / "data", tmp_path / "backup.tar", tmp_path / "restored"
    data.mkdir(mode=0o700)
    keys = {name: tmp_path / name for name in ("own", "other")}
    for key in keys.values():
        typed("keys", "new", str(key))
    env: Environment = {"TURNGATE_KEY_FILE": str(keys["own"])}
    typed("keys", "init", "--data-dir", str(data), env=env)
    message = typed("backup", str(backup), "--data-dir", str(data), env=env)
    assert "key" in message
    content = backup.read_bytes()
    assert keys["own"].read_bytes().strip() not in content
    assert "no key is set" in typed("restore", str(backup), "--data-dir", str(restored), code=2)
    other: Environment = {"TURNGATE_KEY_FILE": str(keys["other"])}
    assert "configure that key" in typed("restore", str(backup), "--data-dir", str(restored), env=other, code=2)
    assert not (restored / "turngate.db").exists()
    assert "the same key" in typed("restore", str(backup), "--data-dir", str(restored), env=env)
    assert "encrypted with key:" in typed("keys", "status", "--data-dir", str(restored), env=env)


def test_what_was_erased_after_a_backup_comes_back_and_is_erased_again(tmp_path: Path) -> None:
    """An export of the log from before the restore names what was erased after the backup."""
    data, backup, log = tmp_path / "data", tmp_path / "backup.tar", tmp_path / "log.jsonl"
    data.mkdir(mode=0o700)
    here, words = ("--data-dir", str(data)), "her secret words"
    typed("migrate", *here)
    asyncio.run(an_ended_run(f"sqlite:///{data}/turngate.db", words))

    def is_stored() -> bool:
        with closing(sqlite3.connect(data / "turngate.db")) as store:
            return any(words in str(row) for row in store.execute("SELECT * FROM messages"))

    typed("backup", str(backup), *here)
    typed("erase", "conv_run_1", "--reason", "Ticket 812", "--yes", *here)
    assert not is_stored()
    typed("audit", "export", "--output", str(log), *here)
    typed("restore", str(backup), "--replace", *here)
    assert is_stored()
    erased = [event for event in map(json.loads, log.read_text().splitlines()) if event.get("type") == ERASED]
    assert len(erased) == 1
    typed("erase", erased[0]["run_id"], "--reason", "Ticket 812, again", "--yes", *here)
    assert not is_stored()
    assert "intact" in typed("audit", "verify", *here)


async def an_ended_run(url: str, words: str) -> None:
    database = Database(url)
    try:
        async with database.write() as conn:
            run = await live_run(conn, "run_1", task=words, logged=True)
            await runs.end(conn, run.id, runs.Ending(status="completed"))
            await events.append(conn, run.id, [("run.ended", {"status": "completed", "error_class": "", "reason": ""})])
    finally:
        await database.close()
