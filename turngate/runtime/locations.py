"""The data directory: its files, the proof that it can be written, and the note of a running stack.

    turngate.db        the store, unless TURNGATE_DATABASE_URL says otherwise
    temporal.db        the embedded Temporal server's state
    temporal.lock      held while an embedded server runs here
    temporal.port      the embedded server's port, used again after a restart
    logs/              the embedded server's log
    runtime.json       where the running stack (``turngate up``) listens; gone when it is down
    token              the API token of this user's own commands
    models.toml        model profiles, if the user put them here

Only its owner may enter the directory and read these files, whatever their modes were before.

A stack that runs from another data directory than its project's own is found by a link in a directory beside the data
directories: it leads to the data directory and holds nothing else.

Must not import Temporal, the store or settings.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngate.domain.errors import ConfigurationError

RUNTIME_FILE: Final = "runtime.json"
TEMPORAL_DB: Final = "temporal.db"
TEMPORAL_LOCK: Final = "temporal.lock"
TEMPORAL_PORT: Final = "temporal.port"
TEMPORAL_LOG: Final = Path("logs") / "temporal.log"

OWN_PREFIXES: Final = ("turngate.", "temporal.", RUNTIME_FILE, "token", "models.toml")
"""How the names of Turngate's files begin; SQLite adds ``-wal`` and ``-shm``, a log that is full ``.1``."""
OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
OWNER_ONLY: Final = 0o600


def state_home() -> Path:
    """Return the directory of this user's state (https://specifications.freedesktop.org/basedir-spec).

    Raises ConfigurationError when the user has no home directory.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        return named
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:
        raise ConfigurationError(
            "this user has no home directory to keep Turngate's data in: set TURNGATE_DATA_DIR to a directory for it"
        ) from None


def own_state() -> Path:
    """Return the directory of all that Turngate keeps for this user. Raises ConfigurationError as :func:`state_home`."""
    return state_home() / "turngate"


def default_data_dir() -> Path:
    """Return the data directory of the directory that this process runs in: a place of its own outside it (ADR 0031).

    Raises ConfigurationError as :func:`state_home`.
    """
    return own_state() / "data" / _name_of(Path.cwd())


def stack_links() -> Path:
    """Return the directory of the links to data directories. Raises ConfigurationError as :func:`state_home`."""
    return own_state() / "stacks"


def _name_of(directory: Path) -> str:
    project = directory.resolve()
    name = "".join(each if each.isascii() and each.isalnum() else "-" for each in project.name)[:40] or "root"
    return f"{name}-{hashlib.sha256(os.fsencode(project)).hexdigest()[:12]}"


def ensure_data_dir(path: Path) -> Path:
    """Create a directory, prove that it can be written, and close it and Turngate's files in it to other users.

    Safe to repeat. A directory of another user keeps its mode, which only that user may change: see :func:`open_to_others`.

    Raises ConfigurationError with the fix if it cannot be created or written, or is shared with something else: closing
    ``/tmp`` or ``/etc`` would break other programs.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # os.access answers yes to root on a read-only mount; only a real file is proof.
        with tempfile.TemporaryFile(dir=path):
            pass
        _close_to_others(path)
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {path} cannot be written ({error.strerror or error}): "
            "set TURNGATE_DATA_DIR to a directory this user may write",
            path=str(path),
        ) from error
    return path


def open_to_others(path: Path) -> list[Path]:
    """Return what other users may read or write: the directory, and Turngate's files in it. Empty: nothing, or no directory.

    Files of a directory that others cannot enter are out of their reach, whatever their modes are.
    """
    try:
        directory = path.stat()
        if directory.st_uid == os.geteuid() and not directory.st_mode & OTHERS:
            return []
        return [path, *(file for file in _own_files(path) if file.lstat().st_mode & OTHERS)]
    except OSError:
        return []


def create_closed(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it is there. For programs that go by the umask."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, OWNER_ONLY))


def _close_to_others(path: Path) -> None:
    mode, owner = path.stat().st_mode, path.stat().st_uid
    if owner == os.geteuid() and mode & OTHERS:
        if mode & stat.S_ISVTX or _is_of_something_else(path):
            raise ConfigurationError(
                f"the data directory {path} holds other files and is open to other users: set TURNGATE_DATA_DIR to a "
                f"directory for Turngate alone, or close this one with `chmod 700 {path}`",
                path=str(path),
            )
        path.chmod(stat.S_IRWXU)
    for file in _own_files(path):
        status = file.lstat()
        if status.st_uid == os.geteuid() and status.st_mode & OTHERS:
            file.chmod(OWNER_ONLY)


def _own_files(path: Path) -> Iterator[Path]:
    """Yield Turngate's regular files in a directory; a symbolic link's target may be anything, so links are left out."""
    for file in path.iterdir():
        if file.name.startswith(OWN_PREFIXES) and stat.S_ISREG(file.lstat().st_mode):
            yield file


def _is_of_something_else(path: Path) -> bool:
    names = {each.name for each in path.iterdir()} - {"lost+found", TEMPORAL_LOG.parent.name}
    return bool(names) and not any(name.startswith(OWN_PREFIXES) for name in names)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's content in one step, readable by its owner only; a reader sees the old text or the new."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def process_birth(pid: int) -> str | None:
    """Return a mark that tells this process from a later one with the same pid; None when it is gone or a zombie.

    On Linux the start time in clock ticks since boot (proc_pid_stat(5), field 22); elsewhere ``alive``.
    """
    if sys.platform != "linux":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            return "alive"
        return "alive"
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name, which may itself hold spaces and brackets.
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else rest[18]


@contextmanager
def linked_from_here(data_dir: Path) -> Iterator[None]:
    """Let commands in the current directory find the stack of another data directory, until the block ends.

    Nothing is done for the directory's own data directory. A link that can't be made is only missed by people: they name the
    data directory.
    """
    link = None
    with suppress(OSError, ConfigurationError):
        if data_dir != default_data_dir():
            folder = stack_links()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            link = folder / _name_of(Path.cwd())
            fresh = folder / f".{link.name}.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(data_dir)
            fresh.replace(link)
    try:
        yield
    finally:
        with suppress(OSError):
            if link is not None and link.readlink() == data_dir:
                link.unlink()


def data_dir_of_stack() -> Path:
    """Return the data directory of the stack that runs for the current directory; if none runs, the directory's own.

    Raises ConfigurationError as :func:`state_home`.
    """
    own = default_data_dir()
    if RunningStack.read(own) is not None:
        return own
    try:
        other = (stack_links() / _name_of(Path.cwd())).readlink()
    except OSError:
        return own
    return own if RunningStack.read(other) is None else other


class RunningStack(BaseModel):
    """Where the stack of one data directory listens, as its process noted it.

    ``public_url``: of its settings. ``birth``: see :func:`process_birth`; filled in by itself for the process that builds the
    note.
    """

    model_config = ConfigDict(frozen=True)

    temporal_address: str
    api_url: str
    public_url: str | None = None
    pid: int = Field(default_factory=os.getpid, ge=1)
    birth: str | None = Field(default_factory=lambda note: process_birth(note["pid"]))

    def write(self, data_dir: Path) -> Path:
        """Write the note, replacing an older one; return its path."""
        path = data_dir / RUNTIME_FILE
        write_atomically(path, self.model_dump_json(indent=2) + "\n")
        return path

    @classmethod
    def read(cls, data_dir: Path) -> RunningStack | None:
        """Return the note; None when there is none, it cannot be read, or its process is gone."""
        try:
            note = cls.model_validate_json((data_dir / RUNTIME_FILE).read_bytes())
        except (OSError, ValidationError):
            return None
        birth = process_birth(note.pid)
        return note if birth is not None and birth == note.birth else None

    def remove(self, data_dir: Path) -> None:
        """Remove the note if it is still this one; safe to repeat."""
        path = data_dir / RUNTIME_FILE
        try:
            written = RunningStack.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return
        if written == self:
            path.unlink(missing_ok=True)
