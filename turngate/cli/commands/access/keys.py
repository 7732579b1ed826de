"""``turngate keys``: encryption of what is stored. It writes the store, as any user who can read the data directory may."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from turngate.cli import stores
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError
from turngate.runtime.key_services import new_key, services_of
from turngate.runtime.locations import write_atomically
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.store.database import Database
from turngate.store.encryption import rewrite
from turngate.store.encryption.key_ring import KeyRing, ring_of

app = typer.Typer(no_args_is_help=True, help="Encryption of what is stored: keys, their rotation, what is encrypted.")


@app.command("new")
def new(file: Annotated[Path, typer.Argument(help="The file to write. It must not exist.")]) -> None:
    """Write a new random key to a file that only its owner can read."""
    if file.exists():
        raise ConfigurationError(f"{file} exists: a key that is overwritten can never be restored. Name another file")
    try:
        write_atomically(file, f"{new_key()}\n")
    except OSError as error:
        raise ConfigurationError(
            f"{file} can't be written: {error.strerror}. Name a file in a directory that you may write"
        ) from None
    typer.echo(
        f"Wrote a new key to {file}. Keep a copy elsewhere: without it, no one can read what is encrypted with it."
    )
    typer.echo(f"Use it: export TURNGATE_KEY_FILE={file}")


@app.command("init")
def init(data_dir: DataDir = None) -> None:
    """Begin to encrypt: make the database's keys, wrapped by the configured one."""
    settings = load_stack_settings(data_dir=data_dir)
    services = services_of(settings)
    if not services:
        raise ConfigurationError(
            "no key is configured: set TURNGATE_KEY_FILE (`turngate keys new FILE`) or TURNGATE_KEY_SERVICE"
        )

    async def create() -> None:
        database = await _opened(settings)
        try:
            async with database.write() as conn:
                await KeyRing(services).create(conn)
        finally:
            await database.close()

    asyncio.run(create())
    typer.echo(f"Content is encrypted from now on, with {services[0].name}.")
    typer.echo("Restart every process with the same setting: one that runs without it still writes plain text.")
    typer.echo("What is stored already stays as it is until you run `turngate keys encrypt`.")


@app.command("status")
def status(data_dir: DataDir = None) -> None:
    """Say with which key content is encrypted, and which tables still hold plain text. Exit code 1 if any does."""
    settings = load_stack_settings(data_dir=data_dir)

    async def read() -> tuple[list[str], list[rewrite.Unsealed]]:
        database = await _opened(settings)
        try:
            async with database.read() as conn:
                by = await ring_of(conn)
                return by, await rewrite.unsealed(conn) if by else []
        finally:
            await database.close()

    by, tables = asyncio.run(read())
    if not by:
        typer.echo("Content is not encrypted. See docs/howto/encrypt-what-is-stored.md.")
        return
    typer.echo(f"Content is encrypted with {by[-1]}.")
    for older in sorted(set(by[:-1]) - {by[-1]}):
        typer.echo(f"Some keys are still wrapped by {older}: run `turngate keys rotate`.")
    for each in tables:
        if each.plain or each.sealed:
            typer.echo(f"  {each.table}: {each.sealed:,} rows encrypted, {each.plain:,} rows with plain text")
    if any(each.plain for each in tables if each.table not in rewrite.UNCHANGEABLE):
        typer.echo("Run `turngate keys encrypt` to encrypt the rest.")
        raise typer.Exit(1)


@app.command("rotate")
def rotate(data_dir: DataDir = None) -> None:
    """Wrap every data key by a new key, while runs continue. Safe to stop and to run again."""
    settings = load_stack_settings(data_dir=data_dir)
    _require_key(settings)

    async def run() -> rewrite.Rotation:
        async with stores.opened_store(settings) as database:
            ring = KeyRing(services_of(settings))
            return await rewrite.rotate(database, ring, lambda done: typer.echo(f"{done:,} conversations …", err=True))

    done = asyncio.run(run())
    by = services_of(settings)[0].name
    if done.is_new:
        typer.echo(f"The keys of {done.wrapped:,} conversations are wrapped by a new key, which {by} wraps.")
        typer.echo("Restart every process, or its new conversations have keys that the key before wraps.")
    else:
        typer.echo(
            f"{done.wrapped:,} conversations had keys from before the last rotation: it was stopped, or a process still runs "
            f"from before it. They are wrapped now, by the key that it made and {by} wraps."
        )
        typer.echo("No new key was made. For one, restart every process and run `turngate keys rotate` again.")
    typer.echo("A former key isn't needed any more: unset it.")


@app.command("encrypt")
def encrypt(data_dir: DataDir = None) -> None:
    """Encrypt what is stored as plain text, while runs continue. Safe to stop and to run again."""
    settings = load_stack_settings(data_dir=data_dir)
    _require_key(settings)

    async def run() -> int:
        async with stores.opened_store(settings) as database:
            return await rewrite.encrypt(
                database, lambda table, done: typer.echo(f"{done:,} rows, now in {table} …", err=True)
            )

    count = asyncio.run(run())
    typer.echo(f"Encrypted {count:,} rows. Events that were stored before stay as they are: the log can't be changed.")
    typer.echo("Deleted plain text can stay in free pages of the database's files until it is compacted (VACUUM).")


def _require_key(settings: Settings) -> None:
    if not services_of(settings):
        raise ConfigurationError("no key is configured: set TURNGATE_KEY_FILE or TURNGATE_KEY_SERVICE")


async def _opened(settings: Settings) -> Database:
    """Open the store as it is, without its keys. Raises ConfigurationError unless its schema is the newest."""
    settings.ensure_data_dir()
    database = Database(settings.resolved_database_url)
    if settings.database_url is None:
        stores.close_new_database(settings)
        await database.migrate()
    else:
        await stores.require_current_schema(database)
    return database
