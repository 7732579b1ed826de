"""How this machine confines a tool's processes: found out once, by confining a program that does nothing."""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final

from turngate.domain.errors import ConfigurationError
from turngate.domain.policy.protected import WATCHED
from turngate.domain.tools.tool import ProcessConfinement
from turngate.toolkits.confinement import bubblewrap, descriptors, held_places, launcher, seccomp, system_paths
from turngate.toolkits.confinement.held_places import HeldPlace
from turngate.toolkits.confinement.sandbox import OBEYED, Backend, Command, Sandbox
from turngate.toolkits.http_client.safe_connect import closed_networks

# Confinement by Landlock: the machine is there, and the kernel refuses what isn't allowed.
#
# Weaker than bubblewrap in what a process may know: it sees that other processes and files exist, and command lines. It can't
# read processes' memory or environment, signal them or make any socket. Weaker in what it may do, too: change permissions and
# times of any file that belongs to its user, which Landlock doesn't handle. Source: landlock(7).


NEEDED_VERSION: Final = 4
"""Linux 6.7: the first that keeps a process from TCP."""
SIGNALS_VERSION: Final = 6
"""Linux 6.12: the first that keeps a process from signalling others. On an older one, it can't signal its own either."""
_CREATE_RULESET: Final = 444

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_WRITABLE_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
_ABOUT_THE_MACHINE = ("/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup")
"""How many processors there are, and a process's own files in /proc: those of others Landlock refuses."""


def landlock_version() -> int:
    """Return the version of Landlock that this kernel has; 0: none."""
    number: int = ctypes.CDLL(None, use_errno=True).syscall(
        _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1)
    )
    return max(number, 0)


def _keeps_signals() -> bool:
    return landlock_version() >= SIGNALS_VERSION


def landlock_rules(sandbox: Sandbox) -> dict[str, list[str]]:
    """Return what the launcher allows: paths to read and run, and paths to change."""
    readable = [
        *system_paths.public_programs(),
        *system_paths.configuration().public,
        *_DEVICES,
        *_ABOUT_THE_MACHINE,
        *map(str, sandbox.readable),
    ]
    writable = [str(sandbox.temporary), *map(str, sandbox.writable), *_WRITABLE_DEVICES]
    if sandbox.workspace is not None:
        (writable if sandbox.workspace_writable else readable).append(str(sandbox.workspace))
    return {"readable": readable, "writable": writable}


PROBE_SECONDS: Final = 20.0
_NO_BUBBLEWRAP: Final = "the program bwrap is not installed, or only where agents write"
_PR_SET_DUMPABLE: Final = 4
_LAUNCHER: Final = Path(launcher.__file__)


class UnconfinedError(ConfigurationError):
    """This machine can't confine a process as a tool needs it, and no one has allowed it to run unconfined."""


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """How processes are confined here.

    Attributes:
        backend: None: this machine can't, or it is to be found out.
        why: what was tried, and why it does not work; of a machine that can, why no stronger way is used.
        hidden: files and directories that no confined process sees: the data directory first of all.
        notes: the directory of the files that list what is made in workspaces so that it can be held.
        readable: what every confined process may read besides the system's programs.
        loaded: what this process runs from, as of each start of a process, which can't change it; under bubblewrap only.
        networks: the private networks that a process with the network reaches, such as ``10.1.2.3/32``.
        agents_write: below these directories no link is followed.
        tool_user: the user to become, with the backend ``user``.
        allow_unconfined: start processes without confinement where there is no backend.
    """

    backend: Backend | None = None
    why: tuple[str, ...] = ()
    hidden: tuple[Path, ...] = ()
    notes: Path = field(default_factory=lambda: Path(tempfile.gettempdir(), f"turngate-held-{os.getuid()}"))
    readable: tuple[Path, ...] = ()
    loaded: Iterable[Path] = ()
    networks: tuple[str, ...] = ()
    agents_write: tuple[Path, ...] = ()
    tool_user: str | None = None
    allow_unconfined: bool = False

    def _helper(self, name: str, sandbox: Sandbox) -> str | None:
        return system_paths.find_helper(name, (*self.agents_write, *sandbox.changeable))

    def command(self, argv: Sequence[str], sandbox: Sandbox, environment: Mapping[str, str]) -> Command:
        """Return how a program is started confined. It inherits nothing but ``environment``.

        Raises UnconfinedError: this machine can't, and ``allow_unconfined`` is not set.
        """
        try:
            sandbox = self._with_real_places(sandbox, environment)
        except OSError as error:
            raise UnconfinedError(f"a place of the process can't be opened: {error.strerror}") from error
        for place in sandbox.places:
            if any(place.is_relative_to(hidden) for hidden in self.hidden):
                raise UnconfinedError(f"{place} is among what no confined process may see: name another place")
        inside = {**system_paths.toolchain_variables(), **environment}
        inside |= {"HOME": str(sandbox.temporary), "TMPDIR": str(sandbox.temporary)}
        start = sandbox.temporary if sandbox.workspace is None else sandbox.workspace
        if self.backend is None:
            if not self.allow_unconfined:
                raise UnconfinedError(
                    f"this machine can't confine processes ({'; '.join(self.why)}), so none is started without --allow-unconfined"
                )
            return Command(argv=tuple(argv), environment=dict(environment), directory=start)
        self._refuse_own_places_that_agents_write(sandbox)
        order: dict[str, object] = {
            "limits": sandbox.limits.resource_limits(),
            "processes": sandbox.limits.processes,
            "landlock": None,
            "exact": [str(sandbox.temporary), *map(str, sandbox.places)],
            "directory": None,
            "user": None,
            "bubblewrap": self.backend == "bubblewrap",
            "network": self._network(sandbox) if sandbox.network else None,
            "held": {},
            "held_folder": str(self.notes),
            "changeable": list(map(str, sandbox.changeable)),
            "obeyed": sorted(WATCHED),
        }
        program = list(argv)
        namespaces = self.backend == "bubblewrap"
        if namespaces:
            inside |= {"HOME": "/tmp", "TMPDIR": "/tmp"}  # noqa: S108 - the sandbox's own
            if (bwrap := self._helper("bwrap", sandbox)) is None:
                raise UnconfinedError(_NO_BUBBLEWRAP)
            program = bubblewrap.arguments(bwrap, sandbox, self.hidden, argv, root=os.getuid() == 0)
            order["held"] = held = bubblewrap.held(sandbox, self.hidden, tuple(self.loaded))
            _refuse_links(held)
        elif self.backend == "landlock":
            order["landlock"] = rules = landlock_rules(sandbox)
            self._refuse_to_show_hidden([*rules["readable"], *rules["writable"]])
        else:
            entry = pwd.getpwnam(self.tool_user or "")
            order["user"] = [entry.pw_uid, entry.pw_gid]
        if not namespaces:
            order["directory"] = str(start)
        order["filter"] = seccomp.program(
            os.uname().machine, namespaces=namespaces, signals=self.backend != "landlock" or _keeps_signals()
        ).hex()
        return Command(
            argv=(sys.executable, "-I", "-S", str(_LAUNCHER), *launcher.order_words(order), *program),
            environment=inside,
            directory=Path("/"),
            passes_on_signals=True,
        )

    def mounts_copies(self, directory: Path) -> bool:
        """Whether copies of a workspace's files, in a directory, can be mounted over them and run there."""
        return self.backend == "bubblewrap" and not os.statvfs(directory).f_flag & os.ST_NOEXEC

    def _with_real_places(self, sandbox: Sandbox, environment: Mapping[str, str]) -> Sandbox:
        """Return the sandbox with all that it reads, each place where it really is: what is hidden is compared with these."""
        # What the process may change, it could have changed when it ran before, as an MCP server does.
        agents_write = descriptors.inodes([*map(str, (*self.agents_write, *sandbox.changeable))])
        more = (*self.readable, *map(Path, system_paths.more_programs(environment, agents_write)))

        def real(path: Path) -> Path:
            return Path(descriptors.real_path(str(path.expanduser().absolute()), agents_write))

        return replace(
            sandbox,
            workspace=None if sandbox.workspace is None else real(sandbox.workspace),
            temporary=real(sandbox.temporary),
            readable=tuple(map(real, (*sandbox.readable, *more))),
            writable=tuple(map(real, sandbox.writable)),
        )

    def _network(self, sandbox: Sandbox) -> dict[str, object]:
        """Return what leads a sandbox to other machines, and neither to this one nor to private networks that aren't listed."""
        slirp4netns = self._helper("slirp4netns", sandbox) if self.backend == "bubblewrap" else None
        if slirp4netns is None:
            raise UnconfinedError(
                "this machine can't give a confined process the network without its own loopback: "
                "install bubblewrap and slirp4netns"
            )
        return {"program": slirp4netns, "closed": closed_networks(), "open": list(self.networks)}

    def _refuse_own_places_that_agents_write(self, sandbox: Sandbox) -> None:
        """What is noted is removed outside of the sandbox, and scripts are copied beside the temporary directory."""
        writable = [*(each.resolve() for each in self.agents_write), *sandbox.changeable]
        for own in (self.notes.resolve(), sandbox.temporary):
            place = next((each for each in writable if own.is_relative_to(each)), None)
            if place is not None and not any(own.is_relative_to(hidden) for hidden in self.hidden):
                raise UnconfinedError(
                    f"{own}, which Turngate has to rely on, lies in {place}, which agents may change: set TMPDIR to a directory "
                    "outside of all workspaces"
                )

    def _refuse_to_show_hidden(self, places: Sequence[str]) -> None:
        """Landlock only allows: what lies below an allowed directory can't be hidden."""
        for hidden in self.hidden:
            for place in places:
                if hidden.is_relative_to(place):
                    raise UnconfinedError(
                        f"{hidden} lies in {place}, which the command may read, and Landlock can't hide it: install bubblewrap, "
                        "or move one of them"
                    )

    def described(self, *, network: bool = False, network_asked: bool = False) -> ProcessConfinement:
        """Say how a process is confined, for the person who decides its call.

        Args:
            network: whether it gets the network.
            network_asked: whether it gets it because the call asks for it.
        """
        reach = "no network"
        if network or network_asked:
            also = f"; of these it reaches {', '.join(self.networks)}" if self.networks else ""
            reach = f"the internet, but neither this machine nor private networks{also}"
        if self.backend is None and not self.allow_unconfined:
            text = "Can't be started: this machine can't confine it, and the worker runs without --allow-unconfined."
        elif self.backend is None:
            text = "Runs unconfined: it can reach everything that the worker can, this inbox included."
        elif self.backend == "user":
            text = f"Runs as the system's user {self.tool_user}: it reaches what that user may, and {reach}."
        else:
            text = f"Runs confined ({self.backend}): it reads the system's programs, changes its workspace, and has {reach}."
        return ProcessConfinement(confined=self.backend is not None, text=text, network_asked=network_asked)

    def works(self) -> str | None:
        """Start a program that does nothing; returns why that failed, or None."""
        with tempfile.TemporaryDirectory(prefix="turngate-") as place:
            workspace, temporary = Path(place) / "workspace", Path(place) / "temporary"
            workspace.mkdir()
            temporary.mkdir()
            sandbox = Sandbox(workspace=workspace, temporary=temporary)
            command = self.command(["true"], sandbox, {"PATH": os.defpath})
            try:
                done = subprocess.run(
                    command.argv,
                    env=command.environment,
                    cwd=command.directory,
                    capture_output=True,
                    text=True,
                    timeout=PROBE_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.SubprocessError) as error:
                return str(error)
        if "bind-fd" in done.stderr:
            return "this version of bwrap has no --bind-fd: install bubblewrap 0.10, or an older one with its security updates"
        return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")[-300:]


def _refuse_links(held: Mapping[str, Sequence[HeldPlace]]) -> None:
    """Refuse a sandbox some of whose places are links. The launcher looks again; this refusal says more."""
    for directory, places in held.items():
        if (problem := linked_places(directory, places)) is not None:
            raise UnconfinedError(problem)


def linked_places(directory: str, places: Sequence[HeldPlace] = OBEYED) -> str | None:
    """Say which places can't be held because they are links, with the fix; None: none is. Raises OSError: it can't be opened.

    Nothing can be mounted over a link, and a process can replace it.
    """
    opened = descriptors.open_place(directory)
    try:
        links = held_places.find_links(opened, places)
    finally:
        os.close(opened)
    if not links:
        return None
    return (
        f"{', '.join(links)} in {directory} is a link, and programs outside of the confinement would obey what it leads to: "
        "replace it by what it leads to, or remove it"
    )


def find(wanted: Confinement) -> Confinement:
    """Find out how this machine confines as wanted: bubblewrap, else Landlock, else by the tool user; takes some 0.1 s each.

    Raises UnconfinedError: Turngate's temporary files would lie where agents write.
    """
    wanted = replace(wanted, hidden=tuple(path.resolve() for path in wanted.hidden))
    why: list[str] = []
    for backend, missing in _candidates(wanted):
        confinement = replace(wanted, backend=backend, why=tuple(why))
        problem = missing or confinement.works()
        if problem is None:
            return confinement
        why.append(f"{backend}: {problem}")
    return replace(wanted, backend=None, why=tuple(why))


def _candidates(wanted: Confinement) -> list[tuple[Backend, str | None]]:
    """Return the ways to confine, the strongest first, and of each what this machine lacks for it."""
    if not sys.platform.startswith("linux"):
        return [("bubblewrap", "needs Linux"), ("landlock", "needs Linux")]
    if os.uname().machine not in seccomp.AUDIT_ARCHITECTURES:
        unknown = f"no list of system calls for {os.uname().machine}"
        return [("bubblewrap", unknown), ("landlock", unknown)]
    version = landlock_version()
    old = f"this kernel has Landlock {version or 'off'}, and {NEEDED_VERSION} is needed (Linux 6.7)"
    bwrap = system_paths.find_helper("bwrap", wanted.agents_write)
    ways: list[tuple[Backend, str | None]] = [
        ("bubblewrap", None if bwrap else _NO_BUBBLEWRAP),
        ("landlock", None if version >= NEEDED_VERSION else old),
    ]
    return ways if wanted.tool_user is None else [*ways, ("user", _cannot_become(wanted.tool_user))]


def _cannot_become(tool_user: str) -> str | None:
    try:
        entry = pwd.getpwnam(tool_user)
    except KeyError:
        return f"there is no user {tool_user!r}"
    if entry.pw_uid == os.getuid():
        return f"{tool_user!r} is the worker's own user"
    return None


_chosen: list[Confinement] = []
_ways: list[Callable[[], Confinement]] = [lambda: find(Confinement())]


def use(confinement: Confinement) -> None:
    """Confine this process's tools like this from now on; for composition roots."""
    _chosen[:] = [confinement]


def find_when_needed(way: Callable[[], Confinement]) -> None:
    """Find out by ``way`` how to confine once a process is started, until :func:`use` says it; for composition roots."""
    _ways[:] = [way]
    _chosen.clear()
    _detected.cache_clear()


def current() -> Confinement:
    """Return how this process's tools are confined: as the composition root says, else as this machine can."""
    return _chosen[0] if _chosen else _detected()


def agents_write() -> frozenset[descriptors.Inode]:
    """Return the directories below which agents write, as the composition root said; without one there are none."""
    return descriptors.inodes([str(each) for chosen in _chosen for each in chosen.agents_write])


@cache
def _detected() -> Confinement:
    return _ways[0]()


def keep_memory_private() -> None:
    """Make this process one that others of its user can't trace, nor read in /proc (prctl(2), PR_SET_DUMPABLE). Linux only.

    It leaves no core dump any more. Processes that it starts are not affected: exec makes them dumpable again.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


@asynccontextmanager
async def temporary_directory() -> AsyncIterator[Path]:
    """Yield a directory for one process; what the process left there is removed, on a thread of its own."""
    path = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="turngate-tool-"))
    try:
        yield path
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))
