"""What one confined process may reach, as a value; and what it is started as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from turngate.domain.policy.protected import HELD
from turngate.toolkits.confinement.held_places import HeldPlace
from turngate.toolkits.confinement.left_behind import OF_REPOSITORY

Backend = Literal["bubblewrap", "landlock", "user"]
"""How this machine confines. ``user``: by running as another user of the system."""

MIB: Final = 1024 * 1024
OBEYED: Final = (
    *(HeldPlace((name,), "read", "/") for name in sorted(HELD)),
    HeldPlace((".git",), "keep", "/"),
    HeldPlace(("commondir",), "read", "/"),
    HeldPlace(("refs",), "keep", "/"),
    *(each._replace(names=(".git", *each.names)) for each in OF_REPOSITORY),
)
"""Below a directory that can be changed: what other programs of the operator's would run or obey later, outside the sandbox.

An absent one is a directory while a command runs, because git commits no empty directory. The last two of the top keep it from
becoming a repository itself, which git would take for one once ``.git/HEAD`` is gone: afterwards it has no ``refs``, and
meanwhile git ends where ``commondir`` is a directory. So ``commondir`` is made first, and removed last.
"""


def is_repository(directory: Path) -> bool:
    """Whether git takes a directory for a repository itself, without a work tree, such as ``project.git``. Blocking."""
    return all((directory / name).exists() for name in ("HEAD", "objects", "refs"))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a confined process may use.

    Attributes:
        memory_bytes: of private memory, for each process.
        file_bytes: of each file that it writes.
        processes: processes and threads at once; all of them are killed when there are more.
    """

    memory_bytes: int = 4096 * MIB
    file_bytes: int = 4096 * MIB
    processes: int = 2048

    def resource_limits(self) -> dict[str, int]:
        """Return them as names of ``resource.RLIMIT_*`` → value."""
        return {"RLIMIT_DATA": self.memory_bytes, "RLIMIT_FSIZE": self.file_bytes, "RLIMIT_CORE": 0}


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What one process may reach besides the system's programs.

    Attributes:
        workspace: readable and writable; None: it has none.
        temporary: a directory of its own, readable and writable, which programs see as ``$TMPDIR`` and ``$HOME``.
        workspace_writable: False: the workspace is only read.
        readable: more files and directories that it may read, such as the program itself.
        writable: more files and directories that it may change.
        copies: names of files below its workspace → the copies that it sees there, and can't change; under bubblewrap only.
        network: whether it may reach other machines. Never this one.
        limits: what it may use.
    """

    workspace: Path | None
    temporary: Path
    workspace_writable: bool = True
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    copies: Mapping[tuple[str, ...], Path] = field(default_factory=dict)
    network: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def changeable(self) -> tuple[Path, ...]:
        """The directories and files that it may change, but for its temporary directory."""
        return (*([self.workspace] if self.workspace and self.workspace_writable else []), *self.writable)

    @property
    def places(self) -> tuple[Path, ...]:
        """What it sees besides the system's programs and its temporary directory."""
        workspace = () if self.workspace is None else (self.workspace,)
        return (*workspace, *self.readable, *self.writable)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A confined program as it is started.

    Attributes:
        argv: the launcher, its order, and the program.
        environment: all of it: nothing of the worker's is inherited.
        directory: where it starts.
        passes_on_signals: whether the process that is started passes SIGTERM on to the program and what that started.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]
    directory: Path
    passes_on_signals: bool = False
