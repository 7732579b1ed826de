"""What of the system a confined process may read: its programs and libraries, and what any user may read of /etc."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from turngate.toolkits.confinement import descriptors

PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/snap")
TOOLCHAINS: Final = (
    ".pyenv",
    ".rbenv",
    ".nodenv",
    ".asdf",
    ".nvm",
    ".volta",
    ".rustup",
    ".sdkman",
    ".local/share/mise",
)
"""Below the worker's home directory: where version managers keep programs, and nothing else."""
CONFIGURATION: Final = Path("/etc")
OF_DEPLOYMENTS: Final = (Path("/opt"), Path("/usr/local"))
"""Places of programs where deployments keep their own files, too: a data directory, an application with its secrets."""
_EVERYONE_READS, _EVERYONE_ENTERS = stat.S_IROTH, stat.S_IROTH | stat.S_IXOTH


@dataclass(frozen=True)
class Readable:
    """What of a directory may be read.

    Attributes:
        public: paths below which everything may be read by any user; none lies below another.
        private: the files and directories that not every user may read, the topmost of each.
    """

    public: tuple[str, ...]
    private: tuple[str, ...]


def programs() -> tuple[str, ...]:
    """Return where programs and libraries are, as far as this machine has it; links too."""
    return tuple(path for path in PROGRAMS if os.path.lexists(path))


def more_programs(environment: Mapping[str, str], agents_write: Collection[descriptors.Inode]) -> tuple[str, ...]:
    """Return what else has to be readable for programs on the PATH and for this Python, outside the system's own places.

    The directories on the PATH, this Python's prefixes, and what version managers have installed; not those that a link below
    a directory of ``agents_write`` leads to.
    """
    home = Path("~").expanduser()
    places: dict[str, None] = {}
    for each in (
        *(home / name for name in TOOLCHAINS),
        Path(sys.prefix),
        Path(sys.base_prefix),
        *_on_path(environment),
    ):
        with suppress(OSError):  # it is not there, or a link that an agent may have made
            path = descriptors.real_path(str(each), agents_write)
            if path != "/" and Path(path).is_dir() and not is_below(path, (*PROGRAMS, *places)):
                places[path] = None
    return tuple(places)


def find_helper(name: str, agents_write: Iterable[Path]) -> str | None:
    """Return a program that Turngate itself starts, unconfined, or None: the one beside this Python, else one on the PATH.

    On the PATH, what the system has comes first. None counts that an agent can have put there, by its name or where that leads:
    none in ``agents_write`` or below, but for what is held there of this Python, none that a link there leads to, and no relative
    directory. Blocking: looks at the file system.
    """
    roots = real_roots(agents_write)
    guarded = descriptors.inodes(roots)
    beside = Path(sys.executable).parent / name
    if _is_program(beside):
        of_python = tuple(map(os.path.realpath, python_directories(roots)))
        if is_below(os.path.realpath(beside), of_python):
            return str(beside)
    on_path = sorted(_on_path(os.environ), key=lambda place: not is_below(str(place), PROGRAMS))
    for file in (beside, *(place / name for place in on_path)):
        with suppress(OSError):  # as above
            if _is_program(file) and not is_below(descriptors.real_path(str(file), guarded), roots):
                return str(file)
    return None


def python_directories(agents_write: Iterable[Path | str]) -> list[Path]:
    """Return where this Python and its libraries are, as far as a tool could change them.

    That is its environment, and what lies below a directory of ``agents_write``. Each can be held as a whole: where agents work
    at the top of an environment, that isn't, and its programs and libraries are.
    """
    roots = real_roots(agents_write)
    environment = "" if sys.prefix == sys.base_prefix else sys.prefix
    libraries = [sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    listed: list[str] = []
    for each in (sys.prefix, sys.base_prefix, str(Path(sys.executable).parent), *libraries):
        real = os.path.realpath(each)
        holds_a_root = any(is_below(root, (real,)) for root in roots)
        if not holds_a_root and (each == environment or is_below(real, roots)):
            listed.append(each)
    return [Path(each) for each in dict.fromkeys(listed) if not any(is_below(each, (o,)) for o in listed if o != each)]


def _on_path(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the absolute directories on the PATH: what a relative one is depends on where a program was started.

    What ``..`` means depends on what is before it, which may be a link by the time the name is used.
    """
    places = (Path(each) for each in environment.get("PATH", "").split(os.pathsep) if each.startswith("/"))
    return (each for each in places if ".." not in each.parts)


def real_roots(agents_write: Iterable[Path | str]) -> tuple[str, ...]:
    """Return the real paths of directories that agents write, without the root of all: nothing could be trusted then."""
    return tuple(real for each in agents_write if (real := os.path.realpath(each)) != "/")


def _is_program(file: Path) -> bool:
    return file.is_file() and os.access(file, os.X_OK)


def toolchain_variables() -> dict[str, str]:
    """Return the variables by which programs find their toolchain once $HOME is another directory."""
    rust = Path("~/.rustup").expanduser()
    return {"RUSTUP_HOME": str(rust)} if rust.is_dir() else {}


def is_below(path: str | Path, places: Iterable[str | Path]) -> bool:
    """Tell whether a path is one of these places or lies below one, as it is spelled."""
    spelled = str(path)
    return any(spelled == place or spelled.startswith(f"{place.rstrip('/')}/") for place in map(str, places))


def configuration() -> Readable:
    """Return what of /etc may be read."""
    return open_to_all(CONFIGURATION)


def public_programs() -> tuple[str, ...]:
    """Return where programs and libraries are without what is private there, for those that can only allow."""
    public: list[str] = []
    for path in programs():
        of_deployments = [
            place for place in OF_DEPLOYMENTS if place.is_relative_to(path) and open_to_all(place).private
        ]
        if not of_deployments:
            public.append(path)
            continue
        if Path(path) not in of_deployments:
            public += [entry.path for entry in os.scandir(path) if Path(entry.path) not in of_deployments]
        public += [each for place in of_deployments for each in open_to_all(place).public]
    return tuple(public)


def private_programs() -> tuple[str, ...]:
    """Return what not every user may read of the places where deployments keep their files."""
    return tuple(path for place in OF_DEPLOYMENTS if place.is_dir() for path in open_to_all(place).private)


@cache
def open_to_all(folder: Path) -> Readable:
    """Return what any user may read of a directory. Read once: its owner, or root, would read what others may not."""
    public: list[str] = []
    private: list[str] = []
    if _sort(folder, public, private):
        public = [str(folder)]
    return Readable(tuple(public), tuple(private))


def _sort(folder: Path, public: list[str], private: list[str]) -> bool:
    """Sort the entries of a folder; returns whether all of it is public. Then ``public`` has the folder alone."""
    mine: list[str] = []
    whole = True
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        private.append(str(folder))
        return False
    for entry in entries:
        if entry.is_symlink():  # what it leads to is public or not in its own place
            continue
        if entry.is_dir(follow_symlinks=False):
            if not _is_open(entry, _EVERYONE_ENTERS):
                private.append(entry.path)
                whole = False
            elif _sort(Path(entry.path), mine, private):
                mine.append(entry.path)
            else:
                whole = False
        elif _is_open(entry, _EVERYONE_READS):
            mine.append(entry.path)
        else:
            private.append(entry.path)
            whole = False
    if not whole:
        public.extend(mine)
    return whole


def _is_open(entry: os.DirEntry[str], bits: int) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mode & bits == bits
    except OSError:
        return False
