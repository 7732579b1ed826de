"""``turngate audit``: take the event log out of the store, and check it, here or in an export, without any server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from turngate.cli import audit_format, terminal
from turngate.cli.audit_format import Checked, Header
from turngate.cli.failing import EXIT_WENT_WRONG
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError, NotFoundError
from turngate.domain.runs.event_chain import LogCheck
from turngate.runtime.settings import Settings, load_settings
from turngate.text.plain_text import plain

if TYPE_CHECKING:
    from turngate.store.database import Connection

STREAM: Final = "-"
TOLD_EACH: Final = 50_000
"""After so many events a line on stderr says how far it is."""

app = typer.Typer(no_args_is_help=True, help="Take the audit log out, and check that nobody has changed it.")


@app.command()
def export(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME", help="From this event's number on, or from this time on: ISO 8601, UTC unless it says."
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this run's chain; `system` for events of no run.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is the standard output.")
    ] = STREAM,
    data_dir: DataDir = None,
) -> None:
    """Write the audit log as JSON lines, with everything its hashes are made over.

    Reads the store itself; whatever runs goes on. A file is complete, or not there.
    """
    settings = load_settings(data_dir=data_dir)
    with _written(output) as write:
        events, chains = asyncio.run(_export(settings, since, run, write))
    terminal.note(f"exported {events:,} event(s) of {chains:,} chain(s)")


@app.command()
def verify(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="An export, - for the standard input; without it the store itself."),
    ] = None,
    heads: Annotated[
        bool,
        typer.Option(
            "--heads", help="Print each chain's run, length and newest hash, to be noted where nobody can change them."
        ),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Compute every hash anew and look for gaps, repeats, swapped and cut-off events.

    Exits with 1 and says where when something is wrong. An export is checked without any store.
    """
    checked = _check_file(file) if file is not None else asyncio.run(_check_store(load_settings(data_dir=data_dir)))
    if checked.broken is not None:
        terminal.error(plain(f"the log does not hold. {checked.broken}"))
        raise typer.Exit(EXIT_WENT_WRONG)
    if heads:
        for head in checked.heads:
            terminal.raw(f"{plain(head.run_id)}\t{head.length}\t{head.hash}")
    terminal.note(f"the log holds: {checked.events:,} event(s) in {len(checked.heads):,} chain(s)")


async def _export(
    settings: Settings, since: str | None, run: str | None, write: Callable[[str], object]
) -> tuple[int, int]:
    from turngate.cli import stores  # noqa: PLC0415 - slow to import
    from turngate.store.events import audit, events  # noqa: PLC0415 - slow to import

    counted, chains = 0, 0
    # One transaction, so that events and heads are of one moment.
    async with stores.opened_store(settings) as database, database.read() as conn:
        if run is not None and await events.chain_head(conn, run) is None:
            raise NotFoundError(f"there is no run {run!r}: `turngate runs` lists them")
        first = await _first_seq(conn, since)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        last = await events.last_seq(conn)
        write(audit_format.header_line(Header(since=first, only=run, last_seq=last, exported_at=at)))
        async for event in audit.every(conn, since=first, run_id=run):
            write(audit_format.event_line(event))
            counted += 1
            _tell(counted)
        async for head in _heads(conn, first, run):
            write(head)
            chains += 1
        write(audit_format.end_line(events=counted, chains=chains))
    return counted, chains


async def _heads(conn: Connection, first: int, run: str | None) -> AsyncIterator[str]:
    from turngate.store.events import audit, events  # noqa: PLC0415 - slow to import

    if run is None:
        async for head in audit.kept_heads(conn, since=first):
            yield audit_format.head_line(head)
        return
    own = await events.chain_head(conn, run)
    if own is not None:
        yield audit_format.head_line(own)


async def _first_seq(conn: Connection, since: str | None) -> int:
    from turngate.store.events import audit  # noqa: PLC0415 - slow to import

    if since is None:
        return 1
    if since.isascii() and since.isdecimal():
        return max(int(since), 1)
    try:
        instant = datetime.fromisoformat(since)
    except ValueError:
        raise ConfigurationError(
            f"--since: {since!r} is neither an event's number nor a time such as 2026-11-01 or 2026-11-01T08:00:00+01:00"
        ) from None
    return await audit.seq_at(conn, instant if instant.tzinfo else instant.replace(tzinfo=UTC))


def _check_file(name: str) -> Checked:
    if name == STREAM:
        return audit_format.check_lines(sys.stdin)
    try:
        with Path(name).open(encoding="utf-8", errors="surrogateescape") as lines:
            return audit_format.check_lines(lines)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None


async def _check_store(settings: Settings) -> Checked:
    from turngate.cli import stores  # noqa: PLC0415 - slow to import
    from turngate.store.events import audit, events  # noqa: PLC0415 - slow to import

    check = LogCheck()
    async with stores.opened_store(settings) as database, database.read() as conn:
        async for event in audit.every(conn):
            broken = check.add(event)
            if broken is not None:
                return Checked(events=check.events, heads=check.heads, broken=str(broken))
            _tell(check.events)
        async for head in audit.kept_heads(conn):
            broken = check.close(head)
            if broken is not None:
                return Checked(events=check.events, heads=check.heads, broken=str(broken))
        broken = check.end(last_seq=await events.last_seq(conn))
    return Checked(events=check.events, heads=check.heads, broken=None if broken is None else str(broken))


@contextmanager
def _written(output: str) -> Iterator[Callable[[str], object]]:
    """Give the function that writes; a file takes its name only when all of it is there."""
    if output == STREAM:
        yield sys.stdout.write
        sys.stdout.flush()
        return
    path = Path(output)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield file.write
        part.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _tell(counted: int) -> None:
    if counted % TOLD_EACH == 0:
        terminal.note(f"{counted:,} events …")
