"""Signed heads: what the log held at some moment, signed with a key that the database does not know (I15).

Anyone who can write the database can rewrite a chain of events and the head stored beside it. They cannot sign, so they cannot
change a file of signed heads. It holds one line of JSON for each span of events: the SHA-256 over the hashes of these events
in their order, the SHA-256 of the line before, and an Ed25519 signature (RFC 8032) over the rest of the line. A span joins
the one before it, so the lines together cover the whole log; no line can be dropped or swapped, except the newest ones.

A key hands over to the next with a line of its own that names it. From there on only the next key counts.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.errors import ConfigurationError, TurngateError
from turngate.domain.runs.event_chain import ChainBreak, ChainedEvent
from turngate.runtime.settings import Settings
from turngate.store.clock import as_text, now
from turngate.store.database import Connection, Database
from turngate.store.events import audit, events
from turngate.text_files import NotTextError, read_text
from turngate.toolkits.confinement.system_paths import find_helper

logger = logging.getLogger(__name__)

LOOK_EVERY: Final = timedelta(seconds=1)
SIGN_AFTER: Final = timedelta(minutes=1)
"""A few events are signed after this time, however many are wanted at once."""
SIGNED_AT_ONCE: Final = 10_000
"""The longest span of one line."""
COMMAND_SECONDS: Final = 10.0
MAX_LINE_BYTES: Final = 4_096
CLOCKS_APART: Final = timedelta(minutes=5)
"""Between the machine that signs and the one that exports."""

PUBLIC_PREFIX: Final = "ed25519:"
_PURPOSE: Final = b"turngate signed head 1\n"
"""Signed along with each line, so that a signature for another purpose is none for this one."""
_PEM_END: Final = "-----END PRIVATE KEY-----"


class SignedHeadsError(TurngateError):
    """A file of signed heads is damaged or was changed, or does not belong to this log."""


class SignedHead(BaseModel):
    """One line. ``key``, ``next_key``: public keys as :func:`public_text` writes them.

    ``first_seq`` to ``last_seq``: the span of events that ``events`` is over; a line that hands over has an empty one.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    turngate_signed_head: Literal[1] = 1
    number: int = Field(ge=1)
    first_seq: int = Field(ge=1)
    last_seq: int = Field(ge=0)
    events: str
    at: Annotated[AwareDatetime, Field(strict=False)]
    previous: str
    key: str
    next_key: str | None = None
    signature: str = ""

    @property
    def line(self) -> str:
        """The line in its only spelling, without its end."""
        members = self.model_dump() | {"at": as_text(self.at)}
        return json.dumps(members, sort_keys=True, separators=(",", ":"))

    @property
    def signed_bytes(self) -> bytes:
        """What the signature is over."""
        return _PURPOSE + self.model_copy(update={"signature": ""}).line.encode()

    @property
    def key_after(self) -> str:
        """The key that signs the next line."""
        return self.next_key or self.key

    def is_signed_by(self, key: str) -> bool:
        """Tell whether the signature is by this public key."""
        try:
            signature = base64.b64decode(self.signature, validate=True)
            _public_key(key).verify(signature, self.signed_bytes)
        except (InvalidSignature, ValueError):
            return False
        return True


# Keys.


def public_text(key: Ed25519PrivateKey) -> str:
    """Return the public key of a private one, as it is written in files and on the command line."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return PUBLIC_PREFIX + base64.b64encode(raw).decode()


def _public_key(text: str) -> Ed25519PublicKey:
    if not text.startswith(PUBLIC_PREFIX):
        raise ValueError("it does not begin with ed25519:")
    return Ed25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix(PUBLIC_PREFIX), validate=True))


def public_keys(text: str) -> list[str]:
    """Return the public key in ``text``, or those in the file of this name, one a line.

    Raises ConfigurationError when there is none.
    """
    lines = [text]
    if not text.startswith(PUBLIC_PREFIX):
        try:
            lines = read_text(Path(text)).split()
        except (OSError, NotTextError) as error:
            raise ConfigurationError(f"the public key {text} cannot be read: {error}") from None
    try:
        for line in lines:
            _public_key(line)
    except ValueError:
        lines = []
    if not lines:
        raise ConfigurationError(
            f"{text} holds no public key, which looks like {PUBLIC_PREFIX}… (turngate audit keygen)"
        )
    return lines


def read_keys(path: Path, *, apart_from: Path | None = None) -> list[Ed25519PrivateKey]:
    """Return the private keys of a file, oldest first: the last one signs, those before it hand over to the next.

    ``apart_from``: a directory that the file must not lie in.

    Raises ConfigurationError when it cannot be read, is open to others, or holds something else.
    """
    where = f"TURNGATE_AUDIT_KEY_FILE={path}"
    if apart_from is not None and path.resolve().is_relative_to(apart_from.resolve()):
        raise ConfigurationError(
            f"{where} lies in the data directory: who can change the log there could sign it too. Keep the key elsewhere"
        )
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(64 * 1024)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where} cannot be read: {error}. `turngate audit keygen {path}` makes one") from None
    if mode & 0o027:
        raise ConfigurationError(
            f"{where} can be read by others or changed by its group: run `chmod 600 {path}` "
            "(for a secret in Kubernetes: defaultMode 0440)"
        )
    blocks = [block + _PEM_END for block in text.split(_PEM_END)[:-1]]
    try:
        keys = [load_pem_private_key(block.strip().encode(), password=None) for block in blocks]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        keys = []
    signing = [key for key in keys if isinstance(key, Ed25519PrivateKey)]
    if not signing or len(signing) != len(keys):
        raise ConfigurationError(f"{where} holds no Ed25519 key in PEM: `turngate audit keygen FILE` makes one")
    return signing


def sign(key: Ed25519PrivateKey, purpose: str, content: bytes) -> str:
    """Return the signature of something else than a head. ``purpose``: what, so that it is a signature of nothing else."""
    return base64.b64encode(key.sign(_of_purpose(purpose, content))).decode()


def is_signed(key: str, purpose: str, content: bytes, signature: str) -> bool:
    """Tell whether this public key made this signature of :func:`sign`."""
    try:
        _public_key(key).verify(base64.b64decode(signature, validate=True), _of_purpose(purpose, content))
    except (InvalidSignature, ValueError):
        return False
    return True


def _of_purpose(purpose: str, content: bytes) -> bytes:
    return f"turngate {purpose} 1\n".encode() + content


def private_text(keys: Iterable[Ed25519PrivateKey]) -> str:
    """Return the text of a file of private keys."""
    return "".join(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode() for key in keys)


# A file of signed heads, and the log beside it.


def read_heads(lines: Iterable[str], trusted: Sequence[str]) -> Iterator[SignedHead]:
    """Yield the heads of a file, each checked: its signature, its key, and that it follows the one before.

    ``trusted``: public keys that the file may begin with.

    Raises SignedHeadsError at the first line that is wrong.
    """
    previous: SignedHead | None = None
    for number, text in enumerate(lines, start=1):
        if previous is not None and text == f"{previous.line}\n":
            continue  # a command may get a line twice
        head = _parsed(text)
        problem = "this is not a signed head, or is cut off" if head is None else _problem(head, previous, trusted)
        if head is None or problem is not None:
            raise SignedHeadsError(f"line {number}: {problem}")
        yield head
        previous = head


def _parsed(text: str) -> SignedHead | None:
    if not text.endswith("\n"):
        return None
    try:
        head = SignedHead.model_validate_json(text)
    except ValidationError:
        return None
    return head if head.line == text[:-1] else None  # one spelling only: the next line names its hash


def _problem(head: SignedHead, previous: SignedHead | None, trusted: Sequence[str]) -> str | None:
    if previous is None and head.key not in trusted:
        return f"its key is {head.key}, which is none of those you trust (--key)"
    if previous is not None and head.key != previous.key_after:
        return f"its key is {head.key}; {previous.key_after} should sign here"
    if not head.is_signed_by(head.key):
        return "its signature is wrong"
    number, line, seq = (0, "", 0) if previous is None else (previous.number, _sha256(previous.line), previous.last_seq)
    if head.number != number + 1 or head.previous != line:
        return f"it is not the line after line {number} of the file that was signed"
    if head.first_seq != seq + 1 or head.last_seq < seq:
        return f"it does not begin at event {seq + 1}"
    return None


def heads_over(path: Path, first: int, last: int) -> list[str]:
    """Return the lines of a file of signed heads that are about these events, and those that hand over; none are checked."""
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            heads = [head for head in map(_parsed, lines) if head is not None]
    except OSError as error:
        raise ConfigurationError(f"TURNGATE_AUDIT_HEADS={path} cannot be read: {error.strerror}") from None
    overlapping = (head.line for head in heads if head.next_key or (head.first_seq <= last and head.last_seq >= first))
    return list(overlapping)


def heads_problem(lines: Sequence[str], trusted: Sequence[str]) -> tuple[str | None, list[SignedHead], set[str]]:
    """Check some lines of a file of signed heads, in order, by themselves.

    ``trusted``: public keys. Returns what is wrong, or None; the heads; and the keys that count, with those handed over to.
    """
    keys, heads = set(trusted), list[SignedHead]()
    for number, line in enumerate(lines, start=1):
        head = _parsed(f"{line}\n")
        if head is None or head.key not in keys or not head.is_signed_by(head.key):
            return f"signed head {number} is damaged, or not signed with a key that you trust", heads, keys
        joined = not heads or head.number > heads[-1].number + 1 or head.previous == _sha256(heads[-1].line)
        if not joined or (heads and head.number <= heads[-1].number):
            return f"signed head {number} does not follow the one before it", heads, keys
        keys.add(head.key_after)
        heads.append(head)
    return None, heads, keys


class HeadsCheck:
    """Compares a log, event by event in order of ``seq`` and without gaps, with the signed heads of a file.

    A log may begin later than the file: what was signed before is passed over.
    """

    def __init__(self, heads: Iterator[SignedHead]) -> None:
        self._heads = heads
        self._hash = hashlib.sha256()
        self._head: SignedHead | None = None
        self._began = False
        self.newest: SignedHead | None = None
        self.compared_to = 0
        """The last event that a compared head covers; 0: none."""

    def add(self, event: ChainedEvent) -> ChainBreak | None:
        """Take the next event; returns what is wrong with the span that it ends. Raises SignedHeadsError."""
        self._begin(event.seq)
        if self._head is None or event.seq < self._head.first_seq:
            return None
        self._hash.update(event.hash.encode())
        if event.seq < self._head.last_seq:
            return None
        span = self._head
        if self._hash.hexdigest() != span.events:
            problem = (
                f"the events numbered {span.first_seq} to {span.last_seq} are not those signed at {as_text(span.at)}"
            )
            return ChainBreak(run_id="", run_seq=0, problem=problem)
        self.compared_to = span.last_seq
        self._hash = hashlib.sha256()
        self._head = self._next()
        return None

    def end(self, last_seq: int, *, until: datetime | None = None) -> ChainBreak | None:
        """Say that no event comes after ``last_seq``. Raises SignedHeadsError.

        ``until``: when the log was exported: it need not hold what was signed later. None: it is the store itself.
        """
        self._begin(1)
        if self.newest is None:
            return ChainBreak(run_id="", run_seq=0, problem="it is empty")
        while self._head is not None:
            if self._head.last_seq > last_seq and (until is None or self._head.at < until - CLOCKS_APART):
                problem = f"the log ends with event {last_seq}; events up to {self._head.last_seq} were signed at "
                return ChainBreak(run_id="", run_seq=0, problem=problem + as_text(self._head.at))
            self._head = self._next()
        return None

    def _begin(self, seq: int) -> None:
        if self._began:
            return
        self._began, self._head = True, self._next()
        while self._head is not None and self._head.first_seq < seq:
            self._head = self._next()

    def _next(self) -> SignedHead | None:
        for head in self._heads:
            self.newest = head
            if head.last_seq >= head.first_seq:
                return head
        return None


@dataclass(frozen=True, kw_only=True)
class SigningOptions:
    """How a deployment signs. ``keys``: oldest first. ``command``: gets each line on stdin, empty: none."""

    keys: Sequence[Ed25519PrivateKey]
    file: Path
    command: Sequence[str]
    every: int

    @classmethod
    def of(cls, settings: Settings) -> SigningOptions | None:
        """Return how the settings want it; None when they don't. Raises ConfigurationError when it cannot work."""
        if settings.audit_key_file is None or settings.audit_heads is None:
            return None
        command = settings.heads_command
        if command and "/" not in command[0]:
            program = find_helper(command[0], settings.workspaces or ())
            if program is None:
                raise ConfigurationError(
                    f"TURNGATE_AUDIT_HEADS_COMMAND: the program {command[0]!r} is not on PATH, outside of the directories where "
                    "runs work: install it, or name it by its path"
                )
            command = (program, *command[1:])
        keys = read_keys(settings.audit_key_file, apart_from=settings.data_dir)
        signing = cls(keys=keys, file=settings.audit_heads, command=command, every=settings.audit_every)
        with _HeadsFile.locked(signing.file) as file:
            if file is not None:
                signing.key_after(file.newest())
        return signing

    def key_after(self, newest: SignedHead | None) -> Ed25519PrivateKey:
        """Return the key that must sign the next line. Raises ConfigurationError when it is none of these."""
        if newest is None:
            return self.keys[-1]
        key = next((key for key in self.keys if public_text(key) == newest.key_after), None)
        if key is None or not newest.is_signed_by(newest.key):
            raise ConfigurationError(
                f"TURNGATE_AUDIT_HEADS={self.file} ends with a line that the keys in TURNGATE_AUDIT_KEY_FILE cannot follow: "
                f"its key is {newest.key_after}. Put that key first in the key file, or move the file of heads away"
            )
        return key


async def newest_head(settings: Settings, conn: Connection) -> SignedHead | None:
    """Return the newest signed line, after comparing it with the log; None: nothing is signed yet. Writes nothing.

    Raises ConfigurationError when the key or the file cannot be used, or the settings name none, and SignedHeadsError when
    the line is not about this log.
    """
    if settings.audit_key_file is None or settings.audit_heads is None:
        raise ConfigurationError("TURNGATE_AUDIT_KEY_FILE and TURNGATE_AUDIT_HEADS are not set")
    file = settings.audit_heads
    signing = SigningOptions(
        keys=read_keys(settings.audit_key_file, apart_from=settings.data_dir), file=file, command=(), every=0
    )
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigurationError(
            f"TURNGATE_AUDIT_HEADS={file} cannot be written: let the user who runs the API do that"
        )
    if not file.exists():
        return None
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = _HeadsFile(descriptor).newest(repair=False)
    finally:
        os.close(descriptor)
    signing.key_after(head)
    if head is None:
        return None
    last = await events.last_seq(conn)
    if last < head.last_seq:
        raise _cut_off(file, head.last_seq, last)
    hashes = await audit.hashes(conn, head.first_seq, head.last_seq) if head.first_seq <= head.last_seq else []
    if _sha256("".join(hashes)) != head.events:
        raise SignedHeadsError(
            f"the events numbered {head.first_seq} to {head.last_seq} are not those that {file} signed at {as_text(head.at)}: "
            f"run `turngate audit verify --against {file}`"
        )
    return head


def _cut_off(file: Path, signed: int, last: int) -> SignedHeadsError:
    return SignedHeadsError(
        f"{file} was signed up to event {signed}, and the log ends with event {last}: it was cut, or set back. After a backup "
        "was restored, move the file away and keep it"
    )


@asynccontextmanager
async def signing_log(settings: Settings, database: Database) -> AsyncIterator[None]:
    """Sign the log while this runs, and once more at its end, if the settings name a key.

    Enter it before what writes events, so that the last ones are signed too. Any number of processes may sign into one file;
    each moment one of them does. What cannot be signed is logged, and tried again.

    Raises ConfigurationError when the key or the file cannot be used.
    """
    signing = await asyncio.to_thread(SigningOptions.of, settings)
    if signing is None:
        yield
        return
    stop = asyncio.Event()
    task = asyncio.create_task(_Signer(database, signing).keep_signing(stop), name="sign-the-log")
    try:
        yield
    finally:
        stop.set()  # not cancelled: a thread may be writing
        await task


class _Signer:
    """Signs the log of one store into one file."""

    def __init__(self, database: Database, signing: SigningOptions) -> None:
        self._database = database
        self._signing = signing
        self._signed_to = 0
        self._delivered = ""
        self._waiting_since: datetime | None = None
        self._problem = ""

    async def keep_signing(self, stop: asyncio.Event) -> None:
        """Sign when enough events are there, or a few have waited long enough; what is left when ``stop`` is set."""
        while not stop.is_set():
            if await self._is_due():
                await self._try_to_sign()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_EVERY.total_seconds())
        await self._try_to_sign()

    async def _try_to_sign(self) -> None:
        """Sign everything up to the newest event, or log once why that is not possible."""
        problem = ""
        try:
            with _HeadsFile.locked(self._signing.file) as file:
                if file is not None:  # else another process signs
                    await self._sign(file)
                    self._waiting_since = None
        except (TurngateError, OSError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            logger.error("the log was not signed: %s", problem)
        self._problem = problem

    async def _is_due(self) -> bool:
        try:
            async with self._database.read() as conn:
                unsigned = await events.last_seq(conn) - self._signed_to
        except TurngateError:
            return False  # the store is away, and says so elsewhere
        if not unsigned:
            self._waiting_since = None
            return False
        self._waiting_since = self._waiting_since or now()
        return unsigned < 0 or unsigned >= self._signing.every or now() - self._waiting_since >= SIGN_AFTER

    async def _sign(self, file: _HeadsFile) -> None:
        newest = await asyncio.to_thread(file.newest)
        if newest is not None:
            await self._deliver(newest.line)  # the last process may have ended before it could
        while (head := await self._next(newest)) is not None:
            await asyncio.to_thread(file.append, head.line)
            newest = head
            await self._deliver(head.line)
        self._signed_to = 0 if newest is None else newest.last_seq

    async def _next(self, newest: SignedHead | None) -> SignedHead | None:
        """Return the line after the newest one; None when there is nothing to sign."""
        key, current = self._signing.key_after(newest), self._signing.keys[-1]
        hands_over = public_text(key) != public_text(current)
        first = 1 if newest is None else newest.last_seq + 1
        async with self._database.read() as conn:
            last = await events.last_seq(conn)
            if last < first - 1:
                raise _cut_off(self._signing.file, first - 1, last)
            last = first - 1 if hands_over else min(last, first + SIGNED_AT_ONCE - 1)
            hashes = [] if last < first else await audit.hashes(conn, first, last)
        if last < first and not hands_over:
            return None
        if len(hashes) != last - first + 1:
            raise SignedHeadsError(f"{len(hashes)} events are numbered {first} to {last}: see `turngate audit verify`")
        head = SignedHead(
            number=1 if newest is None else newest.number + 1,
            first_seq=first,
            last_seq=last,
            events=_sha256("".join(hashes)),
            at=now(),
            previous="" if newest is None else _sha256(newest.line),
            key=public_text(key),
            next_key=public_text(current) if hands_over else None,
        )
        return head.model_copy(update={"signature": base64.b64encode(key.sign(head.signed_bytes)).decode()})

    async def _deliver(self, line: str) -> None:
        """Hand a line to the command, unless it has it. A line may arrive twice, and none arrives before the one before it."""
        if not self._signing.command or line == self._delivered:
            return
        process = await asyncio.create_subprocess_exec(*self._signing.command, stdin=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                await process.communicate(f"{line}\n".encode())
        except TimeoutError:
            raise SignedHeadsError(f"TURNGATE_AUDIT_HEADS_COMMAND took longer than {COMMAND_SECONDS:.0f} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            raise SignedHeadsError(f"TURNGATE_AUDIT_HEADS_COMMAND failed with exit code {process.returncode}")
        self._delivered = line


class _HeadsFile:
    """The file that this machine signs into."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def locked(cls, path: Path) -> Iterator[_HeadsFile | None]:
        """Open the file for one signer, and create it if necessary; None when another process has it.

        Raises ConfigurationError when it cannot be written.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"TURNGATE_AUDIT_HEADS={path} cannot be written: {error.strerror}") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield cls(descriptor)
        finally:
            os.close(descriptor)

    def newest(self, *, repair: bool = True) -> SignedHead | None:
        """Return the last line, after removing what a crash left of one after it (``repair``); None when there is none.

        Raises SignedHeadsError when the file ends with something else.
        """
        size = os.fstat(self._descriptor).st_size
        tail = os.pread(self._descriptor, 2 * MAX_LINE_BYTES, max(size - 2 * MAX_LINE_BYTES, 0))
        whole = tail[: tail.rfind(b"\n") + 1]
        if repair and len(whole) < len(tail):
            os.ftruncate(self._descriptor, size - len(tail) + len(whole))
        if not whole:
            return None
        head = _parsed(whole.splitlines(keepends=True)[-1].decode(errors="replace"))
        if head is None:
            raise SignedHeadsError(
                "the file of signed heads ends with a line that is none: move it away and look at it"
            )
        return head

    def append(self, line: str) -> None:
        """Write one line, for good."""
        written = f"{line}\n".encode()
        if os.write(self._descriptor, written) != len(written):
            raise OSError("the disk is full")  # what was written of it is removed at the next attempt
        os.fsync(self._descriptor)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
