"""``turngate backup``: the store in one file with a manifest.

A backup is a tar of ``manifest.json`` and the files that it has digests of: the store as of one instant, the embedded Temporal's
database as of another, and what the command line names. It never holds the key that encrypts content, nor the one that signs the
log. :mod:`turngate.cli.commands.recovery.restore` reads it.
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
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url

from turngate import __version__
from turngate.cli import stores, terminal
from turngate.cli.options import DataDir
from turngate.domain.digest import framed_sha256
from turngate.domain.errors import ConfigurationError, UnavailableError
from turngate.domain.text.sqlite_urls import sqlite_url
from turngate.runtime import locations
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.clock import as_text, now
from turngate.store.connection import binding_of
from turngate.store.database import Connection, Database
from turngate.store.events import audit, events
from turngate.text.plain_text import plain
from turngate.toolkits.confinement.system_paths import find_helper

MANIFEST: Final = "manifest.json"
STORE: Final = {"sqlite": "store.db", "postgresql": "store.dump"}
TEMPORAL: Final = locations.TEMPORAL_DB
WITH: Final = "with-"
"""How the names of the files of ``--with`` begin."""
MAX_NAME_BYTES: Final = 100
"""A longer one would need an extended header."""


class BackedUpFile(BaseModel):
    """A file of a backup. ``sha256``: in hexadecimal; ``size``: in bytes."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(BaseModel):
    """What a backup holds. ``files``: by name. ``kept_apart``: what a restore needs and the backup doesn't hold."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    turngate_backup: Literal[1] = 1
    at: str
    version: str
    backend: Literal["sqlite", "postgresql"]
    schema_revision: str
    last_seq: int
    heads_digest: str
    encrypted: bool
    files: dict[str, BackedUpFile]
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

    SQLite is copied by its own online backup. PostgreSQL is dumped by pg_dump, in one snapshot. The embedded Temporal's database
    and the files of --with are in it, too. The keys that encrypt content and sign the log never are.
    """
    settings = own_settings(data_dir)
    if file.exists():
        raise ConfigurationError(f"{file} exists: name another file")
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=file.parent) as name:
        manifest = asyncio.run(_collect(settings, Path(name), also or ()))
        _pack(Path(name), manifest, file)
    terminal.line(("✓ ", "bold"), f"{file}: {len(manifest.files)} file(s), the log up to event {manifest.last_seq:,}")
    for each in manifest.kept_apart:
        terminal.note(f"not in it, and needed for a restore: {each}")


def own_settings(data_dir: Path | None) -> Settings:
    """Return the settings. Raises ConfigurationError for one schema of a PostgreSQL database."""
    settings = load_stack_settings(data_dir=data_dir)
    bound = binding_of(settings.resolved_database_url)
    if bound is not None:
        raise ConfigurationError(
            f"the store is the schema {bound.schema} of a PostgreSQL database. Back up that database as a whole with pg_dump, or "
            f"this schema with `pg_dump --format=custom --schema={bound.schema}`; pg_restore brings it back"
        )
    return settings


# Writing a backup.


async def _collect(settings: Settings, directory: Path, also: tuple[Path, ...] | list[Path]) -> Manifest:
    url = make_url(settings.resolved_database_url)
    async with stores.opened_store(settings) as database:
        if url.get_backend_name() == "sqlite":
            copy = directory / STORE["sqlite"]
            await asyncio.to_thread(_copy_sqlite, settings.database_files[0], copy)
            at = as_text(now())
            copied = Database(sqlite_url(copy))
            try:
                async with copied.read() as conn:
                    head = await log_end(conn)
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
    for number, each in enumerate(also):
        name = f"{WITH}{number}-{each.name}"
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            raise ConfigurationError(f"--with {each}: its name is too long for a backup. Give a copy a shorter one")
        try:
            shutil.copyfile(each, directory / name)
        except OSError as error:
            raise ConfigurationError(f"--with {each} cannot be read: {error.strerror}") from None
    return Manifest(
        at=at,
        version=__version__,
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
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as live,
            closing(sqlite3.connect(target)) as copy,
        ):
            live.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise UnavailableError(f"{source} cannot be copied: {error}") from None


async def _dump(settings: Settings, database: Database, target: Path) -> tuple[str, tuple[int, str]]:
    """Dump PostgreSQL and read the log's end in one snapshot."""
    await database.require_own_sessions("run the backup")  # pg_dump leaves its settings in the session
    async with database.read() as conn:
        snapshot = (await conn.execute(text("SELECT pg_export_snapshot()"))).scalar_one()
        at, head = as_text(now()), await log_end(conn)
        options = ["--format=custom", "--no-owner", f"--snapshot={snapshot}", f"--file={target}"]
        await asyncio.to_thread(run, [program("pg_dump", settings), *options], settings)
    return at, head


def program(name: str, settings: Settings) -> str:
    """Return the path of a client program of PostgreSQL. Raises ConfigurationError when it is missing."""
    path = find_helper(name, settings.workspaces or ())
    if path is None:
        raise ConfigurationError(
            f"{name} is not on this machine's PATH, outside of the directories where runs work. Install PostgreSQL's client "
            "programs of the server's version or newer (Debian: postgresql-client)"
        )
    return path


def run(command: list[str], settings: Settings) -> None:
    """Run a client program of PostgreSQL. The password goes by its environment, where no list of processes has it.

    Raises UnavailableError when it fails.
    """
    url = make_url(settings.resolved_database_url)
    plain_url = URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database, query=url.query
    ).render_as_string()
    environment: Mapping[str, str] = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    done = subprocess.run(
        [*command, f"--dbname={plain_url}"], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise UnavailableError(f"{Path(command[0]).name} failed: {plain(done.stderr.strip()[-500:])}")


async def log_end(conn: Connection) -> tuple[int, str]:
    """Return the number of the newest event, and the digest of the newest hash of each chain."""
    heads = [f"{head.run_id}\t{head.length}\t{head.hash}" async for head in audit.stored_heads(conn)]
    return await events.last_seq(conn), framed_sha256(*heads)


def _pack(directory: Path, manifest: Manifest, target: Path) -> None:
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2))
    part = target.with_name(f".{target.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            # No extended headers: a reader that knows none can't be misled by any.
            with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for name in (MANIFEST, *manifest.files):
                    archive.add(directory / name, arcname=name)
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}") from None


def _digests(directory: Path) -> dict[str, BackedUpFile]:
    return {each.name: _file_of(each) for each in sorted(directory.iterdir())}


def _file_of(path: Path) -> BackedUpFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return BackedUpFile(sha256=digest, size=file.tell())
