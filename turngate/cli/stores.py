"""The store as the command line opens it: its schema is checked, and this user's own token and links come from here."""

from __future__ import annotations

import getpass
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy

from turngate.cli.api_link import TOKEN_FILE, read_cli_token
from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.terms import OWNERS_PREFIX, Role
from turngate.runtime.locations import create_closed, write_atomically
from turngate.runtime.settings import Settings
from turngate.store import schema
from turngate.store.access import access, binding, people, tokens
from turngate.store.connection import unbound_url
from turngate.store.database import Connection, Database


@asynccontextmanager
async def opened_store(settings: Settings, *, migrate: bool | None = None) -> AsyncIterator[Database]:
    """Open the store, and require the schema of this version.

    ``migrate``: bring the schema up to date first. True also creates the PostgreSQL
    schema and role that the URL names. None does that for the embedded default only, which has no other owner.

    Raises:
        ConfigurationError: the data directory cannot be written, or the schema is not that of this version.
        UnavailableError: the database cannot be reached.
    """
    database = Database(settings.resolved_database_url)
    settings.ensure_data_dir()
    try:
        await _require_apart(database, creating=migrate is True)
        migrate = migrate or (migrate is None and settings.database_url is None)
        if migrate:
            close_new_database(settings)
            await database.migrate()
        else:
            await require_current_schema(database)
        await open_keys(settings, database)
        async with database.read() as conn:
            await people.learn(conn)
        yield database
    finally:
        await database.close()


async def _require_apart(database: Database, *, creating: bool) -> None:
    """Raise ConfigurationError unless the role of a store that is one schema reaches no other schema.

    ``creating``: create role and schema if they are missing.
    """
    if database.binding is None or database.binding.role is None:
        return
    owner = Database(unbound_url(database.url))
    try:
        if creating:
            async with owner.write() as conn:
                await binding.create(conn, database.binding)
            return
        async with owner.read() as conn:
            binding.require_apart(await binding.problems(conn, database.binding), database.binding)
    finally:
        await owner.close()


@asynccontextmanager
async def signing_log(settings: Settings, database: Database) -> AsyncIterator[None]:
    """Sign the log if the settings name a key: from before anything writes events until nothing does any more."""
    if settings.audit_key_file is None:
        yield
        return
    from turngate.runtime import signed_heads  # noqa: PLC0415 - cryptography is slow to import, and few sign

    async with signed_heads.signing_log(settings, database):
        yield


async def open_keys(settings: Settings, database: Database) -> None:
    """Let the database be read and written with the settings' keys. As :func:`turngate.runtime.key_services.open_keys`."""
    async with database.read() as conn:
        needed = await conn.run_sync(_has_ring)
    if not needed and not any((settings.key, settings.key_service, settings.former_key, settings.former_key_service)):
        return
    from turngate.runtime import key_services  # noqa: PLC0415 - cryptography is slow to import, and few encrypt

    await key_services.open_keys(settings, database)


def _has_ring(connection: sqlalchemy.Connection) -> bool:
    return connection.execute(sqlalchemy.text("SELECT 1 FROM key_ring LIMIT 1")).first() is not None


def close_new_database(settings: Settings) -> None:
    """Create SQLite's file so that only its owner can read it; SQLite itself goes by the umask. One that exists stays.

    Its ``-wal`` and ``-shm`` get the mode of the file. Raises ConfigurationError when it cannot be created.
    """
    for file in settings.database_files:
        try:
            create_closed(file)
        except OSError as error:
            raise ConfigurationError(
                f"the database {file} cannot be written ({error.strerror}): check TURNGATE_DATABASE_URL, or the data "
                "directory's owner"
            ) from None


async def require_current_schema(database: Database) -> None:
    """Raise ConfigurationError unless the schema is the newest that this version knows."""
    revision, newest = await database.schema_revision(), schema.newest_revision()
    if revision != newest:
        raise ConfigurationError(
            f"the database's schema is at {revision or 'nothing'}, and this version of Turngate needs {newest}: "
            "run `turngate migrate`"
        )


def local_user() -> str:
    """Return the operating system's user; ``uid`` and its number when it has no name (a container's user)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"


async def ensure_cli_token(database: Database, data_dir: Path) -> None:
    """Write an API token for this user's own commands into the data directory, unless a valid one is there.

    Only its owner can read the file. The token may do anything, as ``cli:USER``: a user who can read the directory can write
    the store too.
    """
    token = read_cli_token(data_dir)
    if token is not None:
        async with database.read() as conn:
            holder = await tokens.find(conn, token)
        if holder is not None and not holder.machine and "admin" in holder.scopes:
            (data_dir / TOKEN_FILE).chmod(0o600)
            return
    async with database.write() as conn:
        secret = await tokens.issue_owner_token(conn, local_user())
    write_atomically(data_dir / TOKEN_FILE, f"{secret}\n")


async def acting_as(conn: Connection) -> str:
    """Return what the audit log calls this machine's user when commands change the store. In a write transaction."""
    return f"{OWNERS_PREFIX}{await people.take_id(conn, local_user())}"


async def actor(database: Database) -> str:
    """Return :func:`acting_as` for a command that has no transaction open."""
    async with database.write() as conn:
        return await acting_as(conn)


async def owners_login_link(database: Database, url: str) -> str:
    """Return a login link for the user who runs this stack: as an admin, or as the stored user of that name.

    ``url``: where people's browsers reach the pages.
    """
    async with database.write() as conn:
        person = await people.take_id(conn, local_user())
        secret = await access.issue_link(conn, person, role="admin")
    return _link_address(url, secret)


async def new_login_link(database: Database, url: str, operator: str, role: Role | None = None) -> str:
    """Return the address of a page that logs one browser in, once, within 24 hours.

    ``role``: of a visitor who is no stored user; None means operator. Raises as ``turngate.store.access.access.checked_visitor``.
    """
    async with database.write() as conn:
        visitor = await access.checked_visitor(conn, operator, role)
        secret = await access.issue_link(conn, visitor.name, role=visitor.role)
    return _link_address(url, secret)


def _link_address(url: str, secret: str) -> str:
    return f"{url}/login?link={secret}"
