"""``turngate audit``: export the event log, verify the store or an export, make keys that sign. No server is needed.

An export is JSON lines, or CSV for spreadsheets. JSON lines begin with a header; then comes one line per event with all that
its hash is made over, ``payload`` as the exact text; then one line per chain with its length and newest hash; then one line
with the number of events and chains. So a file that was cut off anywhere is detected.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from turngate.approvals_api.events.audit import item_of
from turngate.approvals_api.events.export import csv_header, csv_lines
from turngate.approvals_api.events.story import sentences_of
from turngate.cli import stores, terminal
from turngate.cli.errors import EXIT_WENT_WRONG
from turngate.cli.options import DataDir
from turngate.domain.errors import ConfigurationError, NotFoundError, UnreadableContentError
from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent, ChainHead, LogCheck
from turngate.domain.text.instants import in_utc
from turngate.domain.text.json_text import without_repeats
from turngate.runtime import signed_heads
from turngate.runtime.locations import write_atomically
from turngate.runtime.settings import Settings, load_stack_settings
from turngate.runtime.signed_heads import HeadsCheck, SignedHeadsError
from turngate.store import evidence
from turngate.store.database import Connection
from turngate.store.events import audit, events
from turngate.text.plain_text import plain

STREAM: Final = "-"
CSV_AT_ONCE: Final = 500
NOTE_EACH: Final = 50_000
"""A line of progress goes to stderr after so many events."""

app = typer.Typer(no_args_is_help=True, help="The audit log: export it, and verify that no one has changed it.")


@app.command()
def export(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME",
            help="Begin at this event's number, or at this time: ISO 8601, UTC unless it has a zone.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option(metavar="ID", help="Export only this run's chain; `system` for events of no run.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - is stdout.")
    ] = STREAM,
    export_format: Annotated[
        Literal["jsonl", "csv"],
        typer.Option(
            "--format", help="jsonl: what `turngate audit verify` checks. csv: for spreadsheets, with sentences."
        ),
    ] = "jsonl",
    data_dir: DataDir = None,
) -> None:
    """Write the audit log as JSON lines, with everything that its hashes are made over, or as CSV.

    Reads the store directly; other processes may keep running. A file is complete, or not there.
    """
    settings = load_stack_settings(data_dir=data_dir)
    with _open_output(output) as write:
        if export_format == "csv":
            count = asyncio.run(_export_csv(settings, since, run, write))
            terminal.note(f"exported {count:,} event(s)")
            return
        events, chains = asyncio.run(_export(settings, since, run, write))
    terminal.note(f"exported {events:,} event(s) of {chains:,} chain(s)")


@app.command()
def verify(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="An export; - is stdin. Without it, the store itself."),
    ] = None,
    heads: Annotated[
        bool,
        typer.Option(
            "--heads", help="Print each chain's run, length and newest hash. Keep them where no one can change them."
        ),
    ] = False,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIGNED",
            help="Compare the log with this file of signed heads (TURNGATE_AUDIT_HEADS, or a copy kept elsewhere), too.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PUBLIC",
            help="A public key that such a file may begin with, or a file that holds it.",
            show_default="those in TURNGATE_AUDIT_KEY_FILE",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Compute every hash again, look for gaps, repeats, swapped and cut-off events, and compare the store with the log.

    Of the store, the rows of runs, requests, calls, messages, decisions, comments, grants, users, tokens, sessions and rules must
    be as the log says; the first that differs is named with its column. An export is checked without a store, so for its chains
    only.

    With `--against`, a log that was rewritten as a whole is found, too: it is not the one that was signed.

    Exit code: 0, or 1 when something is wrong; the message says where.
    """
    with _opened_heads(against or (), key, data_dir) as signed:
        if file is not None:
            checked = check_file(file, signed)
        else:
            checked = asyncio.run(_check_store(load_stack_settings(data_dir=data_dir), signed))
    if checked.broken is not None:
        terminal.error(plain(f"the log was changed or is damaged. {checked.broken}"))
        raise typer.Exit(EXIT_WENT_WRONG)
    if heads:
        for head in checked.heads:
            terminal.raw(f"{plain(head.run_id)}\t{head.length}\t{head.hash}")
    for each in signed:
        terminal.note(each.summary(checked.last_seq))
    terminal.note(f"the log is intact: {checked.events:,} event(s) in {len(checked.heads):,} chain(s)")


@app.command()
def keygen(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file of the private key, outside the data directory.")
    ],
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Add a new key to FILE. The one that signs now hands over to it at the next start."
        ),
    ] = False,
) -> None:
    """Make a key that signs the audit log (Ed25519), and print its public half.

    Set TURNGATE_AUDIT_KEY_FILE to the file. Keep the public half where those who can write the database can't change it.
    """
    keys = [Ed25519PrivateKey.generate()]
    if rotate:
        keys = [signed_heads.read_keys(file)[-1], *keys]
    elif file.exists():
        raise ConfigurationError(f"{file} exists: `turngate audit keygen --rotate {file}` adds a new key to it")
    try:
        write_atomically(file, signed_heads.private_text(keys))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from None
    terminal.raw(signed_heads.public_text(keys[-1]))


async def _export(
    settings: Settings, since: str | None, run: str | None, write: Callable[[str], object]
) -> tuple[int, int]:
    counted, chains = 0, 0
    # One transaction, so that events and heads are from the same moment.
    async with stores.opened_store(settings) as database, database.read() as conn:
        if run is not None and await events.chain_head(conn, run) is None:
            raise NotFoundError(f"there is no run {run!r}: `turngate runs` lists them")
        first = await _first_seq(conn, since)
        last = await events.last_seq(conn)
        write(header_line(Header(since=first, only=run, last_seq=last, exported_at=datetime.now(UTC))))
        async for event in audit.every(conn, since=first, run_id=run):
            write(event_line(event))
            counted += 1
            _note_progress(counted)
        async for head in _heads(conn, first, run):
            write(head)
            chains += 1
        write(end_line(events=counted, chains=chains))
    return counted, chains


async def _export_csv(settings: Settings, since: str | None, run: str | None, write: Callable[[str], object]) -> int:
    """Write events as the page's file in CSV has them, but oldest first and without a limit. Returns how many."""
    counted = 0
    batch: list[ChainedEvent] = []
    async with stores.opened_store(settings) as database, database.read() as conn:

        async def write_batch() -> None:
            write(csv_lines(await sentences_of(conn, [item_of(_as_event(each)) for each in batch])))
            batch.clear()

        if run is not None and await events.chain_head(conn, run) is None:
            raise NotFoundError(f"there is no run {run!r}: `turngate runs` lists them")
        write(csv_header())
        async for event in audit.every(conn, since=await _first_seq(conn, since), run_id=run):
            batch.append(event)
            counted += 1
            _note_progress(counted)
            if len(batch) == CSV_AT_ONCE:
                await write_batch()
        await write_batch()
    return counted


def _as_event(event: ChainedEvent) -> events.Event:
    """Return an event with its payload read; one that was changed into something else is empty."""
    try:
        return events.loaded(vars(event))
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return events.loaded({**vars(event), "payload": "{}"})


async def _heads(conn: Connection, first: int, run: str | None) -> AsyncIterator[str]:
    if run is None:
        async for head in audit.stored_heads(conn, since=first):
            yield head_line(head)
        return
    own = await events.chain_head(conn, run)
    if own is not None:
        yield head_line(own)


async def _first_seq(conn: Connection, since: str | None) -> int:
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


@dataclass(kw_only=True)
class _SignedFile:
    """A file of signed heads while the log is compared with it."""

    name: str
    check: HeadsCheck

    def add(self, event: ChainedEvent) -> str | None:
        """Take the log's next event, and return what is wrong, or None."""
        return self._sentence(lambda: self.check.add(event))

    def end(self, last_seq: int, *, until: datetime | None = None) -> str | None:
        """End the log, as :meth:`HeadsCheck.end` does."""
        return self._sentence(lambda: self.check.end(last_seq, until=until))

    def summary(self, last_seq: int) -> str:
        """Say how much of the log the file covers."""
        newest = self.check.newest
        if newest is None:  # pragma: no cover - an empty file is an error before
            return f"{self.name} is empty"
        last = in_utc(newest.at, "seconds")
        covered = f"{self.name} signs it up to event {self.check.compared_to:,} of {last_seq:,}, last at {last}"
        return f"{covered}, by {newest.key_after}"

    def _sentence(self, compare: Callable[[], ChainBreak | None]) -> str | None:
        try:
            different = compare()
        except SignedHeadsError as error:
            return f"{self.name}, {error.message}"
        return None if different is None else f"{self.name}: {different}"


@contextmanager
def _opened_heads(
    names: Sequence[str], keys: Sequence[str] | None, data_dir: Path | None
) -> Iterator[list[_SignedFile]]:
    """Open files of signed heads, to be read while the log is."""
    trusted = [key for text in keys or () for key in signed_heads.public_keys(text)]
    if names and not trusted:
        own = load_stack_settings(data_dir=data_dir).audit_key_file
        if own is None:
            raise ConfigurationError("--against needs --key: the public key that the file begins with")
        trusted = [signed_heads.public_text(key) for key in signed_heads.read_keys(own)]
    with ExitStack() as open_files:
        signed = []
        for name in names:
            try:
                lines = open_files.enter_context(Path(name).open(encoding="utf-8", errors="surrogateescape"))
            except OSError as error:
                raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None
            signed.append(_SignedFile(name=name, check=HeadsCheck(signed_heads.read_heads(lines, trusted))))
        yield signed


def check_file(name: str, signed: Sequence[_SignedFile] = ()) -> Checked:
    """Check an export. Raises ConfigurationError: it can't be read."""
    if name == STREAM:
        return check_lines(sys.stdin, signed)
    try:
        with Path(name).open(encoding="utf-8", errors="surrogateescape") as lines:
            return check_lines(lines, signed)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from None


async def _check_store(settings: Settings, signed: Sequence[_SignedFile]) -> Checked:
    async with stores.opened_store(settings) as database, database.read() as conn:
        return await check_log(conn, signed)


async def check_log(conn: Connection, signed: Sequence[_SignedFile] = ()) -> Checked:
    """Check a store: its whole log, and its rows. ``conn``: one consistent view. ``signed``: to compare it with."""
    check, ledger = LogCheck(), evidence.Ledger()

    async def first_problem(last_seq: int) -> ChainBreak | str | None:
        async for event in audit.every(conn):
            broken = check.add(event) or _first(each.add(event) for each in signed)
            if broken is not None:
                return broken
            ledger.add(event)
            _note_progress(check.events)
        async for head in audit.stored_heads(conn):
            broken = check.close(head)
            if broken is not None:
                return broken
        ended = check.end(last_seq=last_seq) or _first(each.end(last_seq) for each in signed)
        return ended or await evidence.first_in_store(conn, ledger)

    last_seq = await events.last_seq(conn)
    try:
        broken = await first_problem(last_seq)
    except UnreadableContentError as unreadable:
        broken = str(unreadable)
    return Checked.of(check, broken, last_seq)


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


@contextmanager
def _open_output(output: str) -> Iterator[Callable[[str], object]]:
    """Yield the function that writes. A file gets its name when all of it is written."""
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


def _note_progress(count: int) -> None:
    if count % NOTE_EACH == 0:
        terminal.note(f"{count:,} events …")


VERSION: Final = 1
_MEMBERS: Final = {
    "seq": int,
    "run_id": str,
    "run_seq": int,
    "type": str,
    "payload": str,
    "created_at": str,
    "previous_hash": str,
    "hash": str,
}


@dataclass(frozen=True, kw_only=True)
class Header:
    """What an export holds. ``since``: its first number; ``only``: its only chain; ``last_seq``: the newest number."""

    since: int
    only: str | None
    last_seq: int
    exported_at: datetime


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check. ``broken``: the first thing that is wrong, in a sentence; None when nothing is."""

    events: int
    heads: list[ChainHead]
    broken: str | None
    last_seq: int

    @classmethod
    def of(cls, check: LogCheck, broken: ChainBreak | str | None, last_seq: int) -> Checked:
        """Return the result of a check that ended here."""
        return cls(
            events=check.events,
            heads=check.heads,
            broken=None if broken is None else str(broken),
            last_seq=last_seq,
        )


def header_line(header: Header) -> str:
    """Return the first line."""
    at = header.exported_at.isoformat(timespec="seconds")
    return _line({"turngate_audit": VERSION, **asdict(header), "exported_at": at})


def event_line(event: ChainedEvent) -> str:
    """Return the line of one event."""
    members = asdict(event)
    if event.words is None:
        del members["words"]
    return _line(members)


def head_line(head: ChainHead) -> str:
    """Return the closing line of one chain."""
    return _line({"chain": head.run_id, "length": head.length, "head": head.hash})


def end_line(*, events: int, chains: int) -> str:
    """Return the last line."""
    return _line({"end": {"events": events, "chains": chains}})


def check_lines(lines: Iterable[str], signed: Sequence[_SignedFile] = ()) -> Checked:
    """Check an export line by line. Memory grows with the number of chains only. ``signed``: to compare it with."""
    check = _FileCheck(signed)
    for number, line in enumerate(lines, start=1):
        broken = check.take(number, line)
        if broken is not None:
            return check.outcome(broken)
    return check.outcome(check.finish())


def events_in(log: Path) -> Iterator[ChainedEvent]:
    """Yield the events of an export that was checked."""
    with log.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            members = json.loads(line)
            if "seq" in members and "hash" in members:
                yield ChainedEvent(**members)


class _FileCheck:
    """The state of the check of a file."""

    def __init__(self, signed: Sequence[_SignedFile]) -> None:
        self._signed = signed
        self._header: Header | None = None
        self._check = LogCheck()
        self._chains = 0
        self._ended = False

    def outcome(self, broken: str | None) -> Checked:
        return Checked.of(self._check, broken, self._header.last_seq if self._header else 0)

    def take(self, number: int, line: str) -> str | None:
        """Take the next line, and return what is wrong with it, or None."""
        where = f"line {number}"
        if not line.endswith("\n"):
            return f"{where}: the file is cut off in the middle of this line"
        try:
            read = json.loads(line, object_pairs_hook=without_repeats)
        except (ValueError, RecursionError):
            return f"{where}: this is not JSON, or has a member twice"
        if not isinstance(read, dict):
            return f"{where}: this is not a line of an audit export"
        if self._ended:
            return f"{where}: this comes after the line that ends the export"
        if self._header is None:
            return self._begin(where, read)
        if "end" in read:
            return self._end(where, read["end"])
        broken = self._close(read) if "chain" in read else self._event(read)
        return None if broken is None else f"{where}: {broken}"

    def finish(self) -> str | None:
        """End the file, and return what is missing, or None."""
        if self._header is None:
            return "the file is empty: an audit export begins with a header"
        if not self._ended:
            return "the file is cut off: the line that ends an audit export is missing"
        last = self._header.last_seq
        broken = self._check.end(last_seq=last if self._header.only is None else None)
        if broken is not None:
            return str(broken)
        at = self._header.exported_at
        return _first(each.end(last, until=at) for each in self._signed)

    def _begin(self, where: str, read: Mapping[str, Any]) -> str | None:
        version, since, only, last = (read.get(name) for name in ("turngate_audit", "since", "only", "last_seq"))
        if version is None:
            return f"{where}: this is not the header of an audit export"
        if version != VERSION:
            return f"{where}: the export's format is {version!r}, and this version of Turngate reads {VERSION}"
        at = _instant(read.get("exported_at"))
        if not (isinstance(since, int) and isinstance(last, int) and (only is None or isinstance(only, str)) and at):
            return f"{where}: the header does not say what the export holds"
        if self._signed and only is not None:
            return f"{where}: one run's events can't be compared with signed heads: export the whole log"
        self._header = Header(since=since, only=only, last_seq=last, exported_at=at)
        self._check = LogCheck(since=since, only=only)
        return None

    def _event(self, read: Mapping[str, Any]) -> ChainBreak | str | None:
        if self._chains:
            return "an event comes after the closing lines"
        members = {name: value for name, value in read.items() if name != "words"}
        if set(members) != set(_MEMBERS) or any(type(read[name]) is not kind for name, kind in _MEMBERS.items()):
            return "this is neither an event nor a closing line"
        if not isinstance(read.get("words", ""), str):
            return "this is neither an event nor a closing line"
        event = ChainedEvent(**read)
        return self._check.add(event) or _first(each.add(event) for each in self._signed)

    def _close(self, read: Mapping[str, Any]) -> ChainBreak | str | None:
        run_id, length, head = (read.get(name) for name in ("chain", "length", "head"))
        if not (isinstance(run_id, str) and isinstance(length, int) and isinstance(head, str)):
            return "this is not a closing line"
        self._chains += 1
        return self._check.close(ChainHead(run_id=run_id, length=length, hash=head))

    def _end(self, where: str, counts: Any) -> str | None:
        self._ended = True
        here = {"events": self._check.events, "chains": self._chains}
        if counts != here:
            return f"{where}: the export should hold {counts}, but holds {here}"
        return None


def _line(members: Mapping[str, Any]) -> str:
    # ASCII: so no stream's encoding can change a character, and with it a hash.
    return json.dumps(members, separators=(",", ":")) + "\n"


def _instant(text: object) -> datetime | None:
    """Return the aware instant that a text names, or None."""
    try:
        instant = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return instant if instant is not None and instant.tzinfo is not None else None
