"""``turngate restore``: a backup of ``turngate backup`` in place of the store.

A restored store has forgotten what happened after its backup, and no one knows what did. So every live run in it is held before
any process can open it: the door starts nothing in a held run, whichever worker asks. ``turngate reconcile --restored`` comes
next. SQLite's is held in a copy beside the store; on PostgreSQL, where ``pg_restore`` commits before that, the database has
:data:`turngate.store.schema.MARK` from before it to the end.

The archive is read here and not by :mod:`tarfile`, which knows links, devices, sparse files and headers of any size. A backup has
none of them: only regular files that its manifest names, with their sizes and digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import sqlalchemy
import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from turngate.approvals_api.recovery.restored import RESTORED, hold_live_runs
from turngate.approvals_api.recovery.since_backup import (
    SinceBackup,
    end_log_ins,
    forget_past,
    take_away_again,
    take_away_all,
)
from turngate.cli import stores, terminal
from turngate.cli.commands.events.audit import check_file, check_log, events_in
from turngate.cli.commands.recovery.backup import (
    MANIFEST,
    MAX_NAME_BYTES,
    STORE,
    TEMPORAL,
    WITH,
    Manifest,
    log_end,
    own_settings,
    program,
    run,
)
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError, TurngateError, UnavailableError
from turngate.domain.text.instants import in_utc
from turngate.domain.text.sqlite_urls import sqlite_url
from turngate.runtime import locations
from turngate.runtime.data_dir_lock import DataDirLock
from turngate.runtime.settings import Settings
from turngate.store import schema
from turngate.store.database import Database
from turngate.store.events import audit, events
from turngate.text.instants import second
from turngate.text.plain_text import plain

BLOCK: Final = tarfile.BLOCKSIZE
MAX_MANIFEST_BYTES: Final = 1024 * 1024
MAX_FILES: Final = 1_000
COPY_BYTES: Final = 1024 * 1024
REGULAR: Final = (tarfile.REGTYPE, tarfile.AREGTYPE)
WITH_NAME: Final = re.compile(r"with-[0-9]{1,4}-[^/\x00]+")
BESIDE: Final = ("-wal", "-journal", "-shm", "")
"""What SQLite adds to a database's name, the database last: without it, what is left of the others would count as its own."""


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the store that is there; its file gets another name.")
    ] = False,
    without_temporal: Annotated[
        bool, typer.Option("--without-temporal", help="Leave the embedded Temporal's database as it is.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="EXPORT",
            help="An export of the log from after the backup (`turngate audit export`): what it took away is taken away again.",
        ),
    ] = None,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Revoke every API token of the backup.")
    ] = False,
    revoke_grants: Annotated[bool, typer.Option("--revoke-grants", help="Revoke every grant of the backup.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Put a backup in place of the store, after it was verified, and hold its live runs.

    It refuses a store that isn't empty without --replace. Stop every API and worker before. Digests, schema and the whole log are
    verified before anything changes. Sessions of the backup end. Users who were disabled, tokens and grants that were revoked and
    schedules that were stopped after it stay so, as far as a later log says: of the store that is replaced, or of --log.

    If it is cut off, no process opens the store until you have run it again. Nothing runs in
    the restored store until you have used `turngate reconcile --restored`.
    """
    settings = own_settings(data_dir)
    running = locations.RunningStack.read(settings.data_dir)
    if running is not None:
        raise ConfigurationError(
            f"Turngate runs on this data directory (process {running.pid}). Stop it and every worker, then restore"
        )
    settings.ensure_data_dir()
    later = _Later(log=log, tokens=revoke_tokens, grants=revoke_grants)
    manifest, done = asyncio.run(_restore(settings, file, later, replace=replace, temporal=not without_temporal))
    terminal.line(
        ("✓ ", "bold"), f"restored as of {second(manifest.at)}: the log is intact up to event {manifest.last_seq:,}"
    )
    terminal.note(f"{done.held:,} live run(s) are held: what they did after the backup isn't known")
    _report_rights(manifest, later, done)
    also = sorted(each for each in manifest.files if each.startswith(WITH))
    if also:
        terminal.note(f"files of --with stay in the backup; `tar -xf` takes them out: {plain(', '.join(also))}")
    if manifest.encrypted:
        terminal.note("its content is encrypted: every process needs the same key as before (TURNGATE_KEY_FILE)")
    terminal.note("next: move the file of signed heads away and keep it, and start Temporal, but no worker yet;")
    terminal.note(
        "then `turngate reconcile --restored --fix`, check what it lists, start workers, and resume or interrupt each held run"
    )


def _report_rights(manifest: Manifest, later: _Later, done: _Done) -> None:
    """Say what happens to the backup's rights and messages."""
    terminal.note(f"{done.sessions:,} session(s) of the backup ended: everyone logs in again")
    if done.unsent:
        terminal.note(f"{done.unsent:,} notification(s) that waited in the backup are not sent: they may have been")
    for each in done.taken_away:
        terminal.note(f"since the backup, by {later.source}: {plain(each)}")
    for what, count in done.revoked.items():
        terminal.note(f"{count:,} {what} of the backup are revoked")
    if later.since is None:
        since = second(manifest.at)
        terminal.error(
            f"no log says what happened after {since}: users who were disabled, roles that were lowered, tokens and grants that "
            "were revoked, and schedules that were stopped since then are as they were. Compare `turngate user list`, "
            "`turngate token list` and the grants with what you know, or restore again with --log EXPORT, --revoke-tokens or "
            "--revoke-grants"
        )
    elif later.since.erasures:
        terminal.error(
            f"{later.since.erasures:,} erasure(s) after the backup have to be repeated: the how-to says how to find them"
        )


async def _restore(
    settings: Settings, file: Path, later: _Later, *, replace: bool, temporal: bool
) -> tuple[Manifest, _Done]:
    lock = DataDirLock(settings.data_dir / locations.TEMPORAL_LOCK)
    await lock.acquire()
    try:
        backend = make_url(settings.resolved_database_url).get_backend_name()
        store = settings.database_files[0] if backend == "sqlite" else settings.data_dir / STORE[backend]
        with _unpacked(file, store) as (directory, manifest):
            _require_usable(settings, manifest, backend)
            others = _others(settings, directory, temporal=temporal)
            try:
                if backend == "sqlite":
                    done = await _restore_sqlite(settings, directory, manifest, others, later, replace=replace)
                else:
                    done = await _restore_postgresql(settings, directory, manifest, others, later)
            except (SQLAlchemyError, sqlite3.Error) as error:
                problem = plain(str(getattr(error, "orig", None) or error))[:300]
                raise ConfigurationError(f"{file}: its store cannot be used as a database: {problem}") from None
        return manifest, done
    finally:
        lock.release()


def _require_usable(settings: Settings, manifest: Manifest, backend: str) -> None:
    """Raise ConfigurationError for a backup that these settings or this version can't use."""
    if backend != manifest.backend:
        raise ConfigurationError(f"the backup is of {manifest.backend}, and TURNGATE_DATABASE_URL is of {backend}")
    if manifest.schema_revision not in schema.revisions():
        raise ConfigurationError(
            f"the backup's schema is {plain(manifest.schema_revision)}, which this version doesn't know: it is of Turngate "
            f"{plain(manifest.version)}. Restore it with that version or a newer one"
        )
    if manifest.encrypted and not any((settings.key, settings.key_service)):
        raise ConfigurationError(
            "the backup's content is encrypted, and no key is set: set TURNGATE_KEY_FILE, or what named the key before"
        )


# The archive.


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A file of an archive. ``begin``: where its bytes are."""

    begin: int
    size: int


@contextmanager
def _unpacked(file: Path, store: Path) -> Iterator[tuple[Path, Manifest]]:
    """Unpack a backup into a directory beside the store, which goes when the block ends, and yield it with the manifest.

    Raises ConfigurationError, before anything else is changed, for whatever isn't a whole backup.
    """
    prefix, beside = f".restore-{store.name}-", store.parent
    try:
        for cut_off in beside.glob(f"{prefix}*"):  # of a restore that was killed: this one has the lock
            shutil.rmtree(cut_off)
        directory = tempfile.TemporaryDirectory(prefix=prefix, dir=beside)
    except OSError as error:
        raise ConfigurationError(f"{beside} cannot be written: {error.strerror}") from None
    with directory as name:
        try:
            with file.open("rb") as raw:
                manifest = _unpack(raw, Path(name), file)
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be read or unpacked: {error.strerror or error}") from None
        yield Path(name), manifest


def _unpack(raw: BinaryIO, directory: Path, file: Path) -> Manifest:
    members = _members(raw, file)
    manifest = _manifest(raw, members.pop(MANIFEST, None), file)
    wanted = {STORE[manifest.backend], TEMPORAL}
    if STORE[manifest.backend] not in manifest.files:
        raise ConfigurationError(f"{file} is damaged: {STORE[manifest.backend]} is missing")
    for name, stated in manifest.files.items():
        if name not in wanted and not WITH_NAME.fullmatch(name):
            raise ConfigurationError(f"{file} is damaged or was changed: its manifest names {plain(name)!r}")
        if name not in members:
            raise ConfigurationError(f"{file} is damaged: {plain(name)} is missing")
        if members[name].size != stated.size:
            raise ConfigurationError(f"{file} is damaged or was changed: {plain(name)} has another size")
    unnamed = sorted(members.keys() - manifest.files.keys())
    if unnamed:
        raise ConfigurationError(f"{file} is damaged or was changed: its manifest doesn't name {plain(unnamed[0])!r}")
    needed, free = sum(members[name].size for name in wanted & members.keys()), shutil.disk_usage(directory).free
    if needed > free:
        raise ConfigurationError(
            f"the backup needs {needed:,} bytes in {directory.parent}, and {free:,} are free: make room there"
        )
    for name, stated in manifest.files.items():
        target = directory / name if name in wanted else Path(os.devnull)
        if _copy(raw, members[name], target) != stated.sha256:
            raise ConfigurationError(f"{file} is damaged or was changed: {plain(name)} is not what was backed up")
    return manifest


def _members(raw: BinaryIO, file: Path) -> dict[str, _Member]:
    """Return the files of an archive by name. Anything but a regular file is an error, and so is a file that is cut off."""
    members: dict[str, _Member] = {}
    end = raw.seek(0, os.SEEK_END)
    raw.seek(0)
    while (header := raw.read(BLOCK)) and header.strip(b"\0"):
        try:
            entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise ConfigurationError(f"{file} is damaged, or is no backup of `turngate backup`") from None
        name, begin = entry.name, raw.tell()
        if entry.type not in REGULAR or len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise ConfigurationError(f"{file} was not written by `turngate backup`: {plain(name)!r} is no regular file")
        if name in members or len(members) >= MAX_FILES:
            raise ConfigurationError(
                f"{file} was not written by `turngate backup`: {plain(name)!r} is one file too many"
            )
        if not 0 <= entry.size <= end - begin:
            raise ConfigurationError(f"{file} is damaged: it is cut off in {plain(name)!r}")
        members[name] = _Member(begin=begin, size=entry.size)
        raw.seek(begin + -(-entry.size // BLOCK) * BLOCK)
    return members


def _manifest(raw: BinaryIO, member: _Member | None, file: Path) -> Manifest:
    if member is None or member.size > MAX_MANIFEST_BYTES:
        raise ConfigurationError(f"{file} is no backup of `turngate backup`")
    raw.seek(member.begin)
    try:
        return Manifest.model_validate_json(raw.read(member.size))
    except ValidationError:
        raise ConfigurationError(f"{file} is no backup of `turngate backup`, or of a newer version") from None


def _copy(raw: BinaryIO, member: _Member, target: Path) -> str:
    """Copy a member, and return its SHA-256."""
    digest, left = hashlib.sha256(), member.size
    raw.seek(member.begin)
    with target.open("wb") as copy:
        while left and (piece := raw.read(min(left, COPY_BYTES))):
            digest.update(piece)
            copy.write(piece)
            left -= len(piece)
    return digest.hexdigest()


# The store.


async def _restore_sqlite(
    settings: Settings, directory: Path, manifest: Manifest, others: list[_Move], later: _Later, *, replace: bool
) -> _Done:
    [target] = settings.database_files
    mark = schema.mark_file(target)
    if not replace and not mark.exists() and target.exists() and not await _is_without_log(settings):
        raise ConfigurationError(
            f"{target} has a log already: --replace puts the backup in its place, and keeps it aside"
        )
    new = directory / STORE["sqlite"]
    database = Database(sqlite_url(new))
    try:
        await _verify(settings, database, manifest)
        if target.exists():
            await later.read_replaced(target, database, manifest)
        done = await _hold(database, manifest, later)
    finally:
        await database.close()
    with closing(sqlite3.connect(new)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # all of it in one file, which is moved
    _put_in_place([_Move(new, target), *others], mark)
    return done


async def _restore_postgresql(
    settings: Settings, directory: Path, manifest: Manifest, others: list[_Move], later: _Later
) -> _Done:
    url = settings.resolved_database_url
    database = Database(url)
    try:
        await database.require_own_sessions("run the restore")
        async with database.write() as conn:
            if await conn.run_sync(_tables) - {schema.MARK}:
                await conn.run_sync(schema.require_no_mark)
                raise ConfigurationError(
                    "the database isn't empty. Create a new one (`createdb`), let TURNGATE_DATABASE_URL name it, and restore "
                    "into that: the old one stays as it is"
                )
            await conn.execute(sqlalchemy.text(f"CREATE TABLE IF NOT EXISTS {schema.MARK} ()"))
        command = [program("pg_restore", settings), "--no-owner", "--exit-on-error", "--single-transaction"]
        await asyncio.to_thread(run, [*command, str(directory / STORE["postgresql"])], settings)
        await _verify(settings, database, manifest)
        done = await _hold(database, manifest, later)
        _put_in_place(others, schema.mark_file(settings.data_dir / "turngate.db"))
        async with database.write() as conn:
            await conn.execute(sqlalchemy.text(f"DROP TABLE {schema.MARK}"))
        return done
    finally:
        await database.close()


def _tables(connection: sqlalchemy.Connection) -> set[str]:
    return set(sqlalchemy.inspect(connection).get_table_names())


async def _is_without_log(settings: Settings) -> bool:
    """Tell whether an SQLite store has no event yet."""
    database = Database(settings.resolved_database_url)
    try:
        if await database.schema_revision() is None:
            return True
        async with database.read() as conn:
            return await events.last_seq(conn) == 0
    finally:
        await database.close()


async def _verify(settings: Settings, database: Database, manifest: Manifest) -> None:
    """Verify a restored database against its manifest and its own log. Raises ConfigurationError."""
    await database.migrate(restoring=True)
    await stores.open_keys(settings, database)
    async with database.read() as conn:
        checked = await check_log(conn)
        head = await log_end(conn)
    if checked.broken is not None:
        raise ConfigurationError(f"the backup's log was changed or is damaged. {plain(checked.broken)}")
    if head != (manifest.last_seq, manifest.heads_digest):
        raise ConfigurationError("the backup's log does not end where its manifest says: it was changed")


@dataclass(kw_only=True)
class _Later:
    """What is known of the time after the backup, and what is to be revoked anyway. ``since`` None: nothing is known.

    ``source``: which log says it.
    """

    log: Path | None
    tokens: bool
    grants: bool
    since: SinceBackup | None = None
    source: str = ""

    async def read_replaced(self, file: Path, restored: Database, manifest: Manifest) -> None:
        """Read the log of the store that is replaced, if it is the backup's and can be read."""
        replaced = Database(sqlite_url(file))
        try:
            async with replaced.read() as old, restored.read() as new:
                last = manifest.last_seq
                if await audit.hashes(old, last, last) != await audit.hashes(new, last, last):
                    return
                since = SinceBackup()
                async for event in audit.every(old, since=last + 1):
                    since.add(event)
        except (TurngateError, SQLAlchemyError, sqlite3.Error):
            return  # it may be why the backup is restored
        finally:
            await replaced.close()
        self.since, self.source = since, "the store that was replaced"

    async def read_export(self, restored: Database, manifest: Manifest) -> None:
        """Read an export of the log. Raises ConfigurationError: it can't be read, or is not of this store."""
        if self.log is None:
            return
        since, last = SinceBackup(), manifest.last_seq
        async with restored.read() as conn:
            known = await audit.hashes(conn, last, last)
        checked = check_file(str(self.log))
        if checked.broken is not None:
            raise ConfigurationError(f"{self.log}: {plain(checked.broken)}")
        for event in events_in(self.log):
            if event.seq == last and [event.hash] != known:
                raise ConfigurationError(f"{self.log} is not an export of the store that this is a backup of")
            if event.seq > last:
                since.add(event)
        self.since, self.source = since, str(self.log)


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What a restore did beside putting files in place. ``taken_away``: in words. ``revoked``: tokens, grants → how many."""

    held: int
    sessions: int
    unsent: int
    taken_away: list[str]
    revoked: Mapping[str, int]


async def _hold(database: Database, manifest: Manifest, later: _Later) -> _Done:
    """Hold the live runs of a restored database, and take away what must not come back with it."""
    await later.read_export(database, manifest)
    by = await stores.actor(database)
    unsent = await forget_past(database)
    held = await hold_live_runs(database, by=by, backup_at=in_utc(manifest.at))
    done = _Done(
        held=held,
        sessions=await end_log_ins(database, by=by),
        unsent=unsent,
        taken_away=[] if later.since is None else await take_away_again(database, later.since, by=by),
        revoked=await take_away_all(database, tokens_too=later.tokens, grants_too=later.grants, by=by),
    )
    payload = {"by": by, "backup_at": manifest.at, "last_seq": manifest.last_seq, "held": held}
    async with database.write() as conn:
        await events.append(conn, events.SYSTEM, [(RESTORED, payload)])
    return done


# Putting files in place.


@dataclass(frozen=True)
class _Move:
    """A file of the backup, and the place that it goes to."""

    source: Path
    place: Path

    @property
    def staged(self) -> Path:
        """Where it waits, on the file system of its place."""
        return self.place.with_name(f".{self.place.name}.restored")


class _Record(BaseModel):
    """What the mark of an unfinished restore says: its places, what was there before, and what is added to those names."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    aside: str
    places: list[str]
    files: list[str]


def _others(settings: Settings, directory: Path, *, temporal: bool) -> list[_Move]:
    """Return the moves of what a backup has beside the store."""
    moves = []
    if temporal and (directory / TEMPORAL).exists():
        moves.append(_Move(directory / TEMPORAL, settings.data_dir / TEMPORAL))
    return moves


def _put_in_place(moves: Sequence[_Move], mark: Path) -> None:
    """Put files in their places, and keep those that are there under other names.

    From before the first step to after the last one the mark is on the disk, so that a power cut or a kill leaves nothing that
    starts. A restore that finds a mark does the rest: what was moved aside stays, and what is in its place now is not of before.
    """
    if not moves:
        return
    directories = {each.place.parent for each in moves} | {mark.parent}
    try:
        for move in moves:
            shutil.move(move.source, move.staged)
            move.staged.chmod(locations.OWNER_ONLY)
            _sync(move.staged)
        record = _recorded(mark, [each.place for each in moves])
        _sync_all(directories)
        for move in moves:
            for suffix in BESIDE:
                _move_aside(move.place.with_name(move.place.name + suffix), record, suffix)
            move.staged.replace(move.place)
        _sync_all(directories)
        mark.unlink()
        _sync_all(directories)
    except OSError as error:
        raise UnavailableError(
            f"the backup could not be put in place: {error.filename}: {error.strerror}. Fix that, and run the restore again"
        ) from None


def _recorded(mark: Path, places: Sequence[Path]) -> _Record:
    """Write the record of this restore to the disk, after what one that was cut off wrote, and return it."""
    record = _Record(aside=f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S}", places=[], files=[])
    if mark.exists():
        try:
            record = _Record.model_validate_json(mark.read_bytes())
        except ValidationError:
            raise ConfigurationError(
                f"{mark} is not what a restore wrote: look at the files beside it, then delete it"
            ) from None
    new = [each for each in places if str(each) not in record.places]
    there = [each.with_name(each.name + suffix) for each in new for suffix in BESIDE]
    record = _Record(
        aside=record.aside,
        places=[*record.places, *map(str, new)],
        files=[*record.files, *(str(each) for each in there if each.exists())],
    )
    part = mark.with_name(f"{mark.name}.part")
    part.write_text(record.model_dump_json())
    _sync(part)
    part.replace(mark)
    return record


def _move_aside(old: Path, record: _Record, suffix: str) -> None:
    """Give a file that was there before the restore its other name; one that came since is deleted."""
    aside = old.with_name(f"{old.name.removesuffix(suffix)}.{record.aside}{suffix}")
    if not old.exists():
        return
    if str(old) in record.files and not aside.exists():
        old.replace(aside)
    else:
        old.unlink()


def _sync_all(directories: set[Path]) -> None:
    for each in directories:
        _sync(each)


def _sync(path: Path) -> None:
    """Wait until a file, or a directory's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
