"""``turngate backup`` and ``restore``: the store in one file with a manifest, and back.

A backup is a tar of ``manifest.json`` and the files that it has digests of: the store as of one instant, the embedded Temporal's
database as of another, and what the settings name. It never holds the key that encrypts content, nor the one that signs the log.

A restored store has forgotten what happened after its backup, and no one knows what did. So every live run in it is held before
it is switched in: the door starts nothing in a held run, whichever worker asks. ``turngate reconcile --restored`` comes next.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy import text
from sqlalchemy.engine import make_url

from approvals_api.recovery.restored import RESTORED, hold_live_runs
from turngate.cli import stores, terminal
from turngate.cli.commands.events.audit import check_log
from turngate.cli.options import DataDir
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.runtime import locations, push_key
from turngate.runtime.data_dir_lock import DataDirLock
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store import schema
from turngate.store.clock import as_text, now
from turngate.store.connection import binding_of
from turngate.store.database import Connection, Database
from turngate.store.events import audit, events
from turngate.text.plain_text import plain

MANIFEST: Final = "manifest.json"
STORE: Final = {"sqlite": "store.db", "postgresql": "store.dump"}
TEMPORAL: Final = locations.TEMPORAL_DB
PUSH_KEY: Final = push_key.FILE
MAX_MANIFEST_BYTES: Final = 1024 * 1024
COPY_BYTES: Final = 1024 * 1024


class Manifest(BaseModel):
    """What a backup holds. ``files``: name → SHA-256. ``kept_apart``: what a restore needs and the backup doesn't hold."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    turngate_backup: Literal[1] = 1
    at: str
    version: str
    backend: Literal["sqlite", "postgresql"]
    schema_revision: str
    last_seq: int
    heads_digest: str
    encrypted: bool
    files: dict[str, str]
    kept_apart: list[str]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup to write. It must not exist.")],
    also: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="FILE", help="Also keep this file: your policy, the app, models.toml."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a backup of the store, while everything runs.

    SQLite is copied by its own online backup. PostgreSQL is dumped by pg_dump, in one snapshot. The embedded Temporal's database,
    the push key and the files of --with are in it, too. The keys that encrypt content and sign the log never are.
    """
    settings = _settings(data_dir)
    if file.exists():
        raise ConfigurationError(f"{file} exists: name another file")
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=file.parent) as name:
        manifest = asyncio.run(_collect(settings, Path(name), also or ()))
        _pack(Path(name), manifest, file)
    terminal.line(("✓ ", "bold"), f"{file}: {len(manifest.files)} file(s), the log up to event {manifest.last_seq:,}")
    for each in manifest.kept_apart:
        terminal.note(f"not in it, and needed for a restore: {each}")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the store that is there; its file gets another name.")
    ] = False,
    without_temporal: Annotated[
        bool, typer.Option("--without-temporal", help="Leave the embedded Temporal's database as it is.")
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Put a backup in place of the store, after it was verified, and hold its live runs.

    It refuses a store that isn't empty without --replace. Stop every API and worker before. Digests, schema and the whole log are
    verified before anything changes. Nothing runs in the restored store until you have used `turngate reconcile --restored`.
    """
    settings = _settings(data_dir)
    running = locations.RunningStack.read(settings.data_dir)
    if running is not None:
        raise ConfigurationError(
            f"Turngate runs on this data directory (process {running.pid}). Stop it and every worker, then restore"
        )
    with _unpacked(file, settings.ensure_data_dir()) as (directory, manifest):
        backend = make_url(settings.resolved_database_url).get_backend_name()
        if backend != manifest.backend:
            raise ConfigurationError(f"the backup is of {manifest.backend}, and TURNGATE_DATABASE_URL is of {backend}")
        held = asyncio.run(_restore(settings, directory, manifest, replace=replace, temporal=not without_temporal))
    terminal.line(("✓ ", "bold"), f"restored as of {manifest.at}: the log is intact up to event {manifest.last_seq:,}")
    terminal.note(f"{held:,} live run(s) are held: what they did after the backup isn't known")
    if manifest.encrypted:
        terminal.note("its content is encrypted: every process needs the same key as before (TURNGATE_KEY_FILE)")
    terminal.note("next: move the file of signed heads away and keep it, start Temporal and one worker,")
    terminal.note(
        "then `turngate reconcile --restored --fix`, check what it lists, and resume or interrupt each held run"
    )


def _settings(data_dir: Path | None) -> Settings:
    settings = load_stack_settings(data_dir=data_dir)
    bound = binding_of(settings.resolved_database_url)
    if bound is not None:
        raise ConfigurationError(
            f"the tenant {settings.tenant} has a schema of a PostgreSQL database. Back up that database as a whole with pg_dump, "
            f"or this tenant with `pg_dump --format=custom --schema={bound.schema}`; pg_restore brings it back"
        )
    return settings


# Writing a backup.


async def _collect(settings: Settings, directory: Path, also: tuple[Path, ...] | list[Path]) -> Manifest:
    url = make_url(settings.resolved_database_url)
    async with stores.opened_store(settings) as database:
        if url.get_backend_name() == "sqlite":
            copy = directory / STORE["sqlite"]
            await asyncio.to_thread(_copy_sqlite, Path(url.database or ""), copy)
            at = as_text(now())
            copied = Database(f"sqlite:///{copy}")
            try:
                head = await _head(copied)
            finally:
                await copied.close()
            revision = await database.schema_revision()
        else:
            at, head = await _dump(settings, database, directory / STORE["postgresql"])
            revision = await database.schema_revision()
        encrypted = database.is_encrypted
    for suffix in ("-wal", "-shm"):
        (directory / f"{STORE['sqlite']}{suffix}").unlink(missing_ok=True)
    temporal = settings.data_dir / TEMPORAL
    if settings.temporal_address is None and temporal.exists():
        await asyncio.to_thread(_copy_sqlite, temporal, directory / TEMPORAL)
    own_push_key = settings.data_dir / PUSH_KEY
    if own_push_key.exists():
        shutil.copyfile(own_push_key, directory / PUSH_KEY)
    for number, each in enumerate(also):
        try:
            shutil.copyfile(each, directory / f"with-{number}-{each.name}")
        except OSError as error:
            raise ConfigurationError(f"--with {each} cannot be read: {error.strerror}") from None
    return Manifest(
        at=at,
        version=version("turngate"),
        backend="sqlite" if url.get_backend_name() == "sqlite" else "postgresql",
        schema_revision=revision or "",
        last_seq=head[0],
        heads_digest=head[1],
        encrypted=encrypted,
        files=await asyncio.to_thread(_digests, directory),
        kept_apart=_kept_apart(settings, encrypted=encrypted),
    )


def _kept_apart(settings: Settings, *, encrypted: bool) -> list[str]:
    apart = ["the settings, the app and its secrets"]
    if encrypted:
        where = settings.key_service or "TURNGATE_KEY or TURNGATE_KEY_FILE"
        apart.append(f"the key that encrypts content ({plain(where)})")
    if settings.audit_key_file is not None:
        apart.append(f"the key that signs the log (TURNGATE_AUDIT_KEY_FILE={settings.audit_key_file})")
        apart.append(f"the signed heads (TURNGATE_AUDIT_HEADS={settings.audit_heads})")
    if settings.temporal_address is not None:
        apart.append(f"Temporal's own backup ({settings.temporal_address})")
    return apart


def _copy_sqlite(source: Path, target: Path) -> None:
    """Copy a database as of one instant while others write to it."""
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=30)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise UnavailableError(f"{source} cannot be copied: {error}") from None


async def _dump(settings: Settings, database: Database, target: Path) -> tuple[str, tuple[int, str]]:
    """Dump PostgreSQL and read the log's end in one snapshot."""
    async with database.read() as conn:
        snapshot = (await conn.execute(text("SELECT pg_export_snapshot()"))).scalar_one()
        at, head = as_text(now()), await _head_in(conn)
        command = [_program("pg_dump"), "--format=custom", "--no-owner", f"--snapshot={snapshot}", f"--file={target}"]
        await asyncio.to_thread(_run, command, settings)
    return at, head


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigurationError(
            f"{name} is not on this machine's PATH. Install PostgreSQL's client programs of the server's version or newer "
            "(Debian: postgresql-client)"
        )
    return path


def _run(command: list[str], settings: Settings) -> None:
    """Run a client program of PostgreSQL. The password goes by its environment, where no list of processes has it."""
    url = make_url(settings.resolved_database_url)
    plain_url = url.set(drivername="postgresql", password=None).render_as_string()
    environment: Mapping[str, str] = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    done = subprocess.run(
        [*command, f"--dbname={plain_url}"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError(f"{Path(command[0]).name} failed: {plain(done.stderr.strip()[-500:])}")


async def _head(database: Database) -> tuple[int, str]:
    async with database.read() as conn:
        return await _head_in(conn)


async def _head_in(conn: Connection) -> tuple[int, str]:
    heads = [f"{head.run_id}\t{head.length}\t{head.hash}" async for head in audit.stored_heads(conn)]
    return await events.last_seq(conn), framed_sha256(*heads)


def _pack(directory: Path, manifest: Manifest, target: Path) -> None:
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2))
    part = target.with_name(f".{target.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            with tarfile.open(fileobj=raw, mode="w") as archive:
                for name in (MANIFEST, *manifest.files):
                    archive.add(directory / name, arcname=name)
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from None


def _digests(directory: Path) -> dict[str, str]:
    return {each.name: _sha256_of(each) for each in sorted(directory.iterdir())}


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Reading one.


@contextmanager
def _unpacked(file: Path, beside: Path) -> Iterator[tuple[Path, Manifest]]:
    """Unpack a backup beside the store, each file compared with its digest. A name in it never chooses a place."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".restore-", dir=beside) as name,
            tarfile.open(file, mode="r:") as archive,
        ):
            directory = Path(name)
            members = {each.name: each for each in archive.getmembers() if each.isreg() and "/" not in each.name}
            manifest = _manifest(archive, members.get(MANIFEST), file)
            for each, digest in manifest.files.items():
                member = members.get(each)
                source = None if member is None or Path(each).name != each else archive.extractfile(member)
                if source is None:
                    raise ConfigurationError(f"{file} is damaged: {plain(each)} is missing")
                with (directory / each).open("xb") as target:
                    shutil.copyfileobj(source, target, COPY_BYTES)
                if _sha256_of(directory / each) != digest:
                    raise ConfigurationError(
                        f"{file} is damaged or was changed: {plain(each)} is not what was backed up"
                    )
            yield directory, manifest
    except (OSError, tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"{file} cannot be read as a backup: {error}") from None


def _manifest(archive: tarfile.TarFile, member: tarfile.TarInfo | None, file: Path) -> Manifest:
    source = None if member is None or member.size > MAX_MANIFEST_BYTES else archive.extractfile(member)
    try:
        return Manifest.model_validate_json(b"" if source is None else source.read())
    except ValidationError:
        raise ConfigurationError(f"{file} is no backup of `turngate backup`, or of a newer version") from None


async def _restore(settings: Settings, directory: Path, manifest: Manifest, *, replace: bool, temporal: bool) -> int:
    if manifest.schema_revision not in schema.revisions():
        raise ConfigurationError(
            f"the backup's schema is {plain(manifest.schema_revision)}, which this version doesn't know: it is of Turngate "
            f"{plain(manifest.version)}. Restore it with that version or a newer one"
        )
    if manifest.backend == "postgresql":
        return await _restore_postgresql(settings, directory, manifest)
    lock = DataDirLock(settings.data_dir / locations.TEMPORAL_LOCK)
    await lock.acquire()
    try:
        return await _restore_sqlite(settings, directory, manifest, replace=replace, temporal=temporal)
    finally:
        lock.release()


async def _restore_sqlite(
    settings: Settings, directory: Path, manifest: Manifest, *, replace: bool, temporal: bool
) -> int:
    [target] = settings.database_files
    is_empty = not target.exists() or await _is_empty(settings.resolved_database_url)
    if not is_empty and not replace:
        raise ConfigurationError(
            f"{target} has a log already: --replace puts the backup in its place, and keeps it aside"
        )
    new = directory / STORE["sqlite"]
    held = await _verify_and_hold(settings, f"sqlite:///{new}", manifest)
    with closing(sqlite3.connect(new)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # all of it in one file, which is moved
    new.chmod(0o600)
    aside = f"before-restore-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    moves = [(new, target)]
    if temporal and (directory / TEMPORAL).exists():
        moves.append((directory / TEMPORAL, settings.data_dir / TEMPORAL))
    if (directory / PUSH_KEY).exists() and not (settings.data_dir / PUSH_KEY).exists():
        moves.append((directory / PUSH_KEY, settings.data_dir / PUSH_KEY))
    for source, place in moves:
        for suffix in ("", "-wal", "-shm"):
            old = place.with_name(place.name + suffix)
            if old.exists():
                old.replace(place.with_name(f"{place.name}.{aside}{suffix}"))
        source.replace(place)
    return held


async def _restore_postgresql(settings: Settings, directory: Path, manifest: Manifest) -> int:
    url = settings.resolved_database_url
    if not await _is_empty(url):
        raise ConfigurationError(
            "the database isn't empty. Create a new one (`createdb`), let TURNGATE_DATABASE_URL name it, and restore into that: "
            "the old one stays as it is"
        )
    command = [_program("pg_restore"), "--no-owner", "--exit-on-error", "--single-transaction"]
    await asyncio.to_thread(_run, [*command, str(directory / STORE["postgresql"])], settings)
    return await _verify_and_hold(settings, url, manifest)


async def _is_empty(url: str) -> bool:
    """Tell whether a database holds no log."""
    database = Database(url)
    try:
        if await database.schema_revision() is None:
            return True
        return url.startswith("sqlite") and (await _head(database))[0] == 0
    finally:
        await database.close()


async def _verify_and_hold(settings: Settings, url: str, manifest: Manifest) -> int:
    """Verify a restored database against its manifest and its own log, and hold its live runs; returns how many."""
    database = Database(url)
    try:
        await database.migrate()
        await stores.open_keys(settings, database)
        async with database.read() as conn:
            checked = await check_log(conn)
            head = await _head_in(conn)
        if checked.broken is not None:
            raise ConfigurationError(f"the backup's log was changed or is damaged. {plain(checked.broken)}")
        if head != (manifest.last_seq, manifest.heads_digest):
            raise ConfigurationError("the backup's log does not end where its manifest says: it was changed")
        async with database.write() as conn:
            by = await stores.acting_as(conn)
            held = await hold_live_runs(conn, by=by, backup_at=manifest.at)
            payload = {"by": by, "backup_at": manifest.at, "last_seq": manifest.last_seq, "held": held}
            await events.append(conn, events.SYSTEM, [(RESTORED, payload)])
        return held
    finally:
        await database.close()
