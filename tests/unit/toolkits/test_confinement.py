"""I13: what an approved, hostile command can reach, under each way this machine has to confine it.

The worker is this process: it has a secret in its environment and in its memory, a data directory with a token, and servers
on loopback, on an abstract socket and on a socket in a file. Each test is a strategy of an agent that wants one of them.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import pytest

from turngate.cli.parts.confinement import tool_confinement
from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import load_settings
from turngate.toolkits.confinement import bubblewrap, machine, seccomp, system_paths
from turngate.toolkits.confinement.launcher import END_ALL, order_words
from turngate.toolkits.confinement.machine import Confinement, UnconfinedError
from turngate.toolkits.confinement.sandbox import MIB, OBEYED, Backend, Command, Limits, Sandbox
from turngate.toolkits.confinement.system_paths import find_helper
from turngate.toolkits.http_client.safe_connect import open_networks
from turngate.toolkits.loaded_files import LoadedFiles

SECRET = "tgt_the-token-of-ann"
BUBBLEWRAP = Confinement(backend="bubblewrap")
Ended = subprocess.CompletedProcess[str]
Run = Callable[..., Ended]
WHAT_RUNS = ("/usr", "/opt", "/proc", sys.base_prefix, sys.prefix)
"""Where a search for a token would take long."""
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every way is proved: `scripts/system-packages` installs bubblewrap, and kernels since 6.7 have Landlock."""
    return request.param


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    place = tmp_path / "data"
    place.mkdir(mode=0o700)
    (place / "token").write_text(SECRET)
    return place


@pytest.fixture
def run(
    backend: Backend, workspace: Path, data_dir: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Return what runs a bash command confined, and returns its end; the worker's environment holds the secret."""
    monkeypatch.setenv("TURNGATE_DATABASE_URL", f"postgresql://turngate:{SECRET}@127.0.0.1/turngate")
    confinement = Confinement(backend=backend, hidden=(data_dir,))
    sandbox = Sandbox(
        workspace=workspace, temporary=temporary, limits=Limits(memory_bytes=512 * MIB, file_bytes=8 * MIB)
    )
    path = f"{sys.base_prefix}/bin:{os.defpath}"
    return lambda text, **changes: end_of(confinement, text, replace(sandbox, **changes), path)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    place = tmp_path / "temporary"
    place.mkdir()
    return place


def finished(command: Command) -> Ended:
    """Run a confined command to its end."""
    return subprocess.run(
        command.argv,
        env=command.environment,
        cwd=command.directory,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        start_new_session=True,
    )


def end_of(confinement: Confinement, text: str, sandbox: Sandbox, path: str = os.defpath) -> Ended:
    """Run a bash command confined, to its end."""
    return finished(confinement.command(["bash", "-c", text], sandbox, {"PATH": path}))


def held(ended: subprocess.CompletedProcess[str]) -> bool:
    """Whether neither output has the secret. The launcher's own failure would prove nothing."""
    assert ended.returncode != 126, ended.stderr
    return SECRET not in ended.stdout + ended.stderr


def test_it_works(run: Run, workspace: Path) -> None:
    """A confined command runs the system's programs, changes its workspace and has a temporary directory.

    Python with threads, and git with a commit, work confined.
    """
    ended = run(
        'echo one > made; cat made; f=$(mktemp); echo two > "$f"; cat "$f"; cat <(echo three);'
        "python3 -c 'import multiprocessing, threading; threading.Thread(target=print, args=(4,)).start()' &&"
        "git init -q sub && cd sub && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first &&"
        "git log --oneline | wc -l; exit 3"
    )
    assert (ended.stdout, ended.returncode) == ("one\ntwo\nthree\n4\n1\n", 3), ended.stderr
    assert (workspace / "made").read_text() == "one\n"


def test_i13_files(run: Run, data_dir: Path) -> None:
    """I13: the data directory, and what only its user may read, can't be read, listed or changed."""
    ended = run(
        f"cat {data_dir}/token; ls -la {data_dir}; echo forged > {data_dir}/token; ln {data_dir}/token stolen; cat stolen;"
        f"ln -s {data_dir} way; cat way/token; cat /proc/self/cwd/../data/token; mv {data_dir} {data_dir}.old;"
        "cat /etc/shadow /root/.bash_history; ls /root/.ssh;"
        f"find / '(' {' -o '.join(f'-path {each}' for each in WHAT_RUNS)} ')' -prune -o -name token -exec cat {{}} +"
    )
    assert held(ended)
    assert "root:" not in ended.stdout
    assert (data_dir / "token").read_text() == SECRET


def test_i13_no_place_is_a_hidden_one(backend: Backend, data_dir: Path, tmp_path: Path) -> None:
    """I13: a server that is given the data directory, or a part of it, by name isn't started."""
    (data_dir / "logs").mkdir()
    for place in (data_dir, data_dir / "logs"):
        for kind in ({"workspace": place}, {"workspace": None, "readable": (place,)}):
            with pytest.raises(UnconfinedError, match="no confined process may see"):
                Confinement(backend=backend, hidden=(data_dir,)).command(
                    ["true"], Sandbox(temporary=tmp_path, **kind), {}
                )


def test_i13_files_inside_the_workspace(backend: Backend, workspace: Path, temporary: Path) -> None:
    """I13: a data directory inside the workspace is not there, by whatever link what it lies in is named.

    Landlock can't hide it, so nothing is started.
    """
    inside, link = workspace / ".turngate", temporary.parent / "link"
    inside.mkdir()
    (inside / "token").write_text(SECRET)
    link.symlink_to(workspace)
    confinement = Confinement(backend=backend, hidden=(inside,))
    for place in (
        {"workspace": workspace},
        {"workspace": link},
        {"workspace": None, "writable": (link,)},
        {"workspace": None, "readable": (link,)},
    ):
        sandbox = Sandbox(temporary=temporary, **place)
        if backend == "landlock":
            with pytest.raises(UnconfinedError, match="install bubblewrap"):
                confinement.command(["true"], sandbox, {})
            continue
        ended = end_of(confinement, f"cat {inside}/token {link}/.turngate/token; ls -A {inside}", sandbox)
        assert ended.stdout == ""
        assert held(ended)


@ROOT_ONLY
def test_i13_what_deployments_keep_among_programs(backend: Backend, workspace: Path, temporary: Path) -> None:
    """I13: a data directory below /opt or /usr/local, and what only its owner may read there, can't be read."""
    for place in system_paths.OF_DEPLOYMENTS:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            data, application = Path(folder) / "data", Path(folder) / "app"
            data.mkdir(mode=0o700)
            application.mkdir(mode=0o755)
            (data / "token").write_text(SECRET)
            (application / ".env").touch(mode=0o600)
            (application / ".env").write_text(SECRET)
            (application / "program").write_text("echo runs")
            Path(folder).chmod(0o755)
            system_paths.open_to_all.cache_clear()
            ended = end_of(
                Confinement(backend=backend, hidden=(data,)),
                f"cat {data}/token {application}/.env; sh {application}/program; python3 -c 'print(1)'",
                Sandbox(workspace=workspace, temporary=temporary),
            )
            assert held(ended)
            assert ended.stdout == "runs\n1\n", ended.stderr
    system_paths.open_to_all.cache_clear()


def test_i13_a_hidden_place_among_programs_that_anyone_may_read(
    backend: Backend, workspace: Path, tmp_path: Path
) -> None:
    """I13: whatever its permissions, what is hidden isn't seen below the system's programs: there bubblewrap covers it."""
    hidden = Path("/usr/share")
    confinement = Confinement(backend=backend, hidden=(hidden,))
    sandbox = Sandbox(workspace=workspace, temporary=tmp_path)
    if backend == "landlock":
        with pytest.raises(UnconfinedError, match="install bubblewrap"):
            confinement.command(["true"], sandbox, {})
        return
    assert ["--tmpfs", str(hidden)] in [
        list(pair) for pair in itertools.pairwise(confinement.command(["true"], sandbox, {"PATH": os.defpath}).argv)
    ]


def test_i13_what_is_hidden_keeps_its_name(workspace: Path, temporary: Path) -> None:
    """I13: a directory around a hidden one can't be renamed, so that a second command would see it under another name."""
    inside = workspace / "one" / "two" / ".turngate"
    inside.mkdir(parents=True)
    (inside / "token").write_text(SECRET)
    beside = workspace / "one" / "two" / "store.sqlite"
    beside.write_text(SECRET)
    confinement = Confinement(backend="bubblewrap", hidden=(inside, inside / "token", beside))
    text = f"cd {workspace}; mv one other; mv one/two one/three; mv one/two/.turngate data; cat */*/.turngate/* */*/*"
    for place in ({"workspace": workspace}, {"workspace": None, "writable": (workspace,)}):
        for _again in range(2):
            assert held(end_of(confinement, text, Sandbox(temporary=temporary, **place)))
        assert (inside / "token").read_text() == SECRET


def test_i13_processes(run: Run) -> None:
    """I13: no environment, memory, files or root directory of another process can be read through /proc."""
    worker = os.getpid()
    ended = run(
        f"cat /proc/{worker}/environ; cat /proc/*/environ; cat /proc/{worker}/mem | head -c 9; ls -l /proc/{worker}/fd;"
        f"cat /proc/{worker}/root/etc/shadow; head -c 99 /proc/kcore; cat /proc/{worker}/maps; ls /proc/{worker}/root/"
    )
    assert held(ended)
    assert "root:" not in ended.stdout
    if Path(f"/proc/{worker}/comm").read_text().strip():
        assert "rw-p" not in ended.stdout


def test_i13_ptrace(run: Run) -> None:
    """I13: no other process can be traced, and none of its memory or open files taken."""
    ended = run(
        f"""python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for parent in ({os.getpid()}, os.getppid(), 1):
    print(libc.ptrace(16, parent, 0, 0), libc.ptrace(0x4206, parent, 0, 0))
    buffer = ctypes.create_string_buffer(8)
    print(libc.syscall(310, parent, buffer, 1, buffer, 1, 0))
    try:
        held = os.pidfd_open(parent)
    except OSError as error:
        print(-1)
    else:
        print(libc.syscall(438, held, 0, 0))
END"""
    )
    assert held(ended)
    assert set(ended.stdout.split()) == {"-1"}, ended.stdout + ended.stderr


@contextmanager
def up(confinement: Confinement, text: str, sandbox: Sandbox) -> Iterator[subprocess.Popen[str]]:
    """Start a bash command confined, which says that it is up and then may wait for a line."""
    command = confinement.command(["bash", "-c", text], sandbox, {"PATH": os.defpath})
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command.argv, env=command.environment, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        yield started


@contextmanager
def listening(family: socket.AddressFamily, address: object) -> Iterator[socket.socket]:
    with socket.socket(family) as server:
        server.bind(address)
        server.listen()
        server.setblocking(False)
        yield server


def was_reached(server: socket.socket) -> bool:
    try:
        connection, _address = server.accept()
    except BlockingIOError:
        return False
    connection.close()
    return True


CONNECT = """python3 - <<'END'
import socket
for family, address in {targets!r}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as s:
                s.settimeout(1)
                s.connect(address)
                s.send(b"x")
        except OSError as error:
            print("refused", error.errno)
        else:
            print("reached", family, address) if kind == socket.SOCK_STREAM else None
END"""


def test_i13_sockets(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I13: nothing that listens on this machine is reached: loopback, its own addresses, abstract sockets, socket files.

    The session's D-Bus, by which systemd would start a program outside, is not known either.
    """
    path, bus = str(tmp_path / "server.sock"), str(tmp_path / "bus")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={bus}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
        listening(socket.AF_INET, ("0.0.0.0", 0)) as everywhere,  # noqa: S104 - that is the attack
        listening(socket.AF_UNIX, f"\0turngate-{os.getpid()}") as abstract,
        listening(socket.AF_UNIX, path) as file,
        listening(socket.AF_UNIX, bus) as session,
    ):
        here = socket.gethostbyname(socket.gethostname())
        targets = [
            (2, loopback.getsockname()),
            (2, (here, everywhere.getsockname()[1])),
            (1, f"\0turngate-{os.getpid()}"),
            (1, path),
            (1, bus),
            (1, "/run/dbus/system_bus_socket"),
            (1, "/var/run/postgresql/.s.PGSQL.5432"),
        ]
        ended = run(
            'env | grep -e ^DBUS -e ^XDG; systemd-run --user touch forged; busctl --user list; echo "asked"\n'
            + CONNECT.format(targets=targets)
        )
        assert ended.stdout.startswith("asked\nrefused"), ended.stdout + ended.stderr
        assert "reached" not in ended.stdout
        assert not any(map(was_reached, (loopback, everywhere, abstract, file, session)))


def test_i13_other_socket_families(run: Run) -> None:
    """I13: families that know no namespaces (vsock, packet, alg) can't be opened, by io_uring neither."""
    ended = run(
        """python3 - <<'END'
import ctypes, socket
for family in (40, 17, 38, 15, 44):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM if family != 38 else 5)
        print("open", family)
    except OSError:
        print("refused")
print("refused" if ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) < 0 else "ring")
END"""
    )
    assert ended.stdout.split() == ["refused"] * 6, ended.stdout + ended.stderr


def test_i13_files_that_cannot_be_opened_are_not_watched_or_marked(run: Run, workspace: Path, tmp_path: Path) -> None:
    """I13: of a file outside, no watch tells names, attributes are neither read nor changed, nor are flags, and no one waits."""
    (secret := tmp_path / "secret").mkdir(mode=0o700)
    (file := secret / "file").write_text(SECRET)
    os.setxattr(file, "user.note", SECRET.encode())
    (workspace / "own").write_text("own\n")
    ended = run(
        f"""cp -a --reflink=auto own copy && tail -n 1 copy; python3 - <<'END'
import ctypes, fcntl, os, struct, termios
libc = ctypes.CDLL(None, use_errno=True)
for watch in (libc.inotify_init(), libc.inotify_init1(0), libc.syscall(300, 0x200, 0)):
    print("watched" if watch >= 0 and libc.inotify_add_watch(watch, b"{secret}", 0xfff) >= 0 else "refused")
number = 8 if os.uname().machine == "aarch64" else 191
note = ctypes.create_string_buffer(99)
print("read" if libc.syscall(number, b"{file}", b"user.note", note, 99) > 0 else "refused", note.value)
for change in (
    lambda: os.setxattr("{file}", "user.other", b"1"),
    lambda: os.removexattr("{file}", "user.note", follow_symlinks=False),
    *(lambda change=change: fcntl.ioctl(os.open("/etc/hostname", os.O_RDONLY), change, bytes(64))
      for change in (0x40086602, 0x401C5820, 0x40806685, 0x5000940E)),  # flags (two ways), verity, a subvolume
    lambda: fcntl.fcntl(os.open("/etc/hostname", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
):
    try:
        change()
        print("changed")
    except OSError:
        print("refused")
print(*struct.unpack("i", fcntl.ioctl(os.open("own", os.O_RDONLY), termios.FIONREAD, bytes(4))))
END"""
    )
    assert held(ended)
    assert ended.stdout == "own\n" + "refused\n" * 3 + "refused b''\n" + "refused\n" * 7 + "4\n", ended.stderr
    assert os.listxattr(file) == ["user.note"]


def test_i13_shared_memory(run: Run) -> None:
    """I13: shared memory of other processes, System V's and POSIX's, is not there."""
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o1600)
    assert segment >= 0
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(segment, None, 0)
    ctypes.memmove(place, SECRET.encode(), len(SECRET))
    memory = shared_memory.SharedMemory(create=True, size=4096)
    try:
        memory.buf[: len(SECRET)] = SECRET.encode()
        ended = run(
            f"""cat /dev/shm/*; ls -A /dev/shm; python3 - <<'END'
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
place = libc.shmat({segment}, None, 0o10000)
print(place if place in (None, 2**64 - 1) else ctypes.string_at(place, 99))
END"""
        )
        assert held(ended)
        assert memory.name not in ended.stdout
    finally:
        memory.close()
        memory.unlink()
        libc.shmdt(ctypes.c_void_p(place))
        libc.shmctl(segment, 0, None)


def test_i13_signals(run: Run) -> None:
    """I13: no process outside can be signalled, neither the worker nor all there are, nor starved.

    Its limits, priority and processors can't be changed.
    """
    if machine.landlock_version() < machine.SIGNALS_VERSION:
        pytest.fail("this kernel is too old to prove it")
    with subprocess.Popen(["sleep", "60"]) as bystander:
        before = resource.prlimit(bystander.pid, resource.RLIMIT_NOFILE)
        ended = run(
            f"for who in {bystander.pid} $PPID; do prlimit --pid $who --nofile=7:7 --cpu=1:1; renice 19 -p $who;"
            "chrt -i -p 0 $who; taskset -p 1 $who; ionice -c 3 -p $who; done; renice 19 -u $(id -u);"
            f"kill -9 {bystander.pid} {os.getpid()}; kill -9 -- -{os.getpgid(0)}; (kill -9 -1); echo alive"
        )
        assert held(ended)
        assert bystander.poll() is None
        assert resource.prlimit(bystander.pid, resource.RLIMIT_NOFILE) == before
        assert os.getpriority(os.PRIO_PROCESS, bystander.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        assert os.sched_getscheduler(bystander.pid) == os.SCHED_OTHER
        bystander.kill()


def order_of(command: Command) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the launcher's order, and the program that it starts."""
    end = 5 + int(command.argv[4])
    return json.loads("".join(command.argv[5:end])), command.argv[end:]


def test_i13_signals_on_an_older_kernel(tmp_path: Path) -> None:
    """I13: where Landlock doesn't know signals (before Linux 6.12), none can be sent at all: directly or as SIGIO."""
    command = Confinement(backend="landlock").command(
        ["bash", "-c", ATTACK_BY_SIGNALS], Sandbox(workspace=None, temporary=tmp_path), {"PATH": os.defpath}
    )
    order, program = order_of(command)
    filter_code = seccomp.program(os.uname().machine, namespaces=False, signals=False).hex()
    words = order_words(order | {"landlock": None, "filter": filter_code})
    with subprocess.Popen(["sleep", "60"]) as bystander:
        ended = finished(replace(command, argv=(*command.argv[:4], *words, *program, str(bystander.pid))))
        assert ended.stdout == "alive\n", ended.stderr
        assert bystander.poll() is None
        bystander.kill()


ATTACK_BY_SIGNALS = """
kill -9 $0; kill -9 $PPID; kill -9 -1
python3 - $0 <<'END'
import fcntl, os, signal, sys
other = int(sys.argv[1])
reading, writing = os.pipe()
for attack in (
    lambda: signal.pidfd_send_signal(os.pidfd_open(other), 9),
    lambda: (fcntl.fcntl(reading, fcntl.F_SETOWN, other), fcntl.fcntl(reading, 10, 9),
             fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC), os.write(writing, b"x")),
):
    try:
        attack()
        print("sent")
    except OSError:
        pass
END
echo alive
"""


def test_i13_settings_of_the_machine(run: Run) -> None:
    """I13: nothing in /proc/sys can be changed, not by root: the kernel would run `core_pattern` outside the sandbox."""
    ended = run(
        'v=$(cat /proc/sys/kernel/core_pattern); echo "$v" > /proc/sys/kernel/core_pattern && echo changed;'
        "find /proc/sys /proc/bus /proc/irq /proc/fs /proc/*trigger /proc/mtrr -type f -perm -200 -exec "
        "sh -c 'for f; do : >> $f && echo $f; done' sh {} +"
    )
    assert ended.stdout == ""


def test_i13_memory_that_looks_like_files_is_bounded(run: Run) -> None:
    """A command fills no memory by files: outside its workspace and temporary directory only /dev/shm takes some."""
    ended = run(
        "for d in / /dev /etc /usr /var /run; do echo x > $d/filled && echo $d; done; df --output=size -k /dev/shm"
    )
    assert "/" not in ended.stdout.split("\n")[:-2]
    assert not Path("/filled").exists()


def test_i13_setuid_programs(run: Run) -> None:
    """I13: programs that would make more of their caller (su, mount, a setuid copy) don't, and root is no one special."""
    ended = run(
        "cp /bin/bash mine; chmod 755 mine; chmod u+s mine; ./mine -p -c 'cat /etc/shadow';"
        "su -c 'cat /etc/shadow'; mount -t tmpfs x /etc;"
        "unshare -Urm true && echo namespace; chroot / true && echo chroot; nsenter -t 1 -m true && echo entered;"
        "mknod disk b 8 0 && echo device; grep -h Cap /proc/self/status"
    )
    assert held(ended)
    assert not {"namespace", "chroot", "entered", "device"} & set(ended.stdout.split())
    assert "root:" not in ended.stdout
    assert {line.split()[1] for line in ended.stdout.splitlines() if line.startswith("Cap")} == {"0" * 16}


def test_i13_no_file_becomes_setuid(run: Run, workspace: Path) -> None:
    """I13: a command leaves no setuid or setgid file, by which another user of the machine would become the worker's."""
    ended = run(
        """cp /bin/sh first; chmod 4755 first; chmod g+s first; mkdir folder; chmod 2755 folder
python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None)
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o4755, 0)
for attack in (
    lambda: os.open("second", os.O_CREAT | os.O_WRONLY, 0o6755),
    lambda: os.mknod("third", 0o104755),
    lambda: os.fchmod(os.open("fourth", os.O_CREAT | os.O_WRONLY, 0o755), 0o4755),
    lambda: libc.syscall(437, -100, b"fifth", how, 24),
    lambda: libc.syscall(452, -100, b"fourth", 0o4755, 0),
    lambda: libc.syscall(85, b"sixth", 0o4755) if os.uname().machine == "x86_64" else None,
    lambda: os.link(f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)}", "seventh"),
):
    try:
        attack()
    except OSError:
        pass
print("done", oct(os.stat("fourth").st_mode))
END"""
    )
    assert ended.stdout == "done 0o100755\n", ended.stderr
    assert not [path.name for path in workspace.iterdir() if path.stat().st_mode & 0o6000]


def test_i13_cron_and_the_like(run: Run, workspace: Path) -> None:
    """I13: nothing can be left to be run later by someone else: cron, profiles, units, the user's own start files.

    No directory on the worker's PATH can be changed, so the worker runs no program of the agent's.
    """
    places = [
        "/etc/cron.d/agent",
        "/var/spool/cron/crontabs/root",
        "/etc/profile.d/agent.sh",
        "/etc/systemd/system/agent.service",
        "/root/.bashrc.agent",
        "/usr/local/bin/agent",
        "/tmp/../etc/agent",  # noqa: S108 - that is the attack
        *(f"{each}/git-agent" for each in [f"{sys.base_prefix}/bin", *os.defpath.split(":")]),
    ]
    ended = run("; ".join(f"echo forged > {place}" for place in places) + "; echo forged | crontab -; echo done")
    assert held(ended)
    assert ended.stdout == "done\n"
    assert not any(Path(place).exists() for place in places)


def test_i13_git_hooks(workspace: Path, temporary: Path) -> None:
    """I13: bubblewrap keeps a repository's hooks and settings, which the operator's own git would run, as they are.

    Likewise a `.git` that is a file and says where the repository is. Landlock can't: docs/security.md says so.
    """
    text = (
        "echo 'touch forged' > .git/hooks/pre-commit; git config core.fsmonitor 'touch forged'; rm -rf .git/hooks;"
        "mv .git old && cp -r old .git && git config core.fsmonitor 'touch forged'; rm -rf .git;"
        "cd ../tree; echo 'gitdir: forged' > .git; rm -f .git; mv .git old"
    )
    (tree := temporary.parent / "tree").mkdir()
    (tree / ".git").write_text("gitdir: /elsewhere\n")
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    before = (workspace / ".git/config").read_text()
    end_of(BUBBLEWRAP, text, Sandbox(workspace=workspace, temporary=temporary, writable=(tree,)))
    assert (workspace / ".git/config").read_text() == before
    assert (workspace / ".git/hooks").is_dir()
    assert not (workspace / ".git/hooks/pre-commit").exists()
    assert (tree / ".git").read_text() == "gitdir: /elsewhere\n"


def test_i13_git_hooks_wherever_a_process_may_write(workspace: Path, temporary: Path) -> None:
    """I13: likewise in every other directory that an operator lets a server change, and in a repository without files."""
    bare = temporary.parent / "bare"
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    before = (bare / "config").read_text()
    text = f"echo forged | tee {workspace}/.git/hooks/pre-commit {bare}/hooks/pre-push {bare}/config {bare}/refs/made"
    end_of(BUBBLEWRAP, text, Sandbox(workspace=None, temporary=temporary, writable=(workspace, bare)))
    assert not (workspace / ".git/hooks/pre-commit").exists()
    assert not (bare / "hooks/pre-push").exists()
    assert (bare / "config").read_text() == before
    assert (bare / "refs/made").exists()


@pytest.mark.parametrize(
    ("is_repository", "place"),
    [
        (False, "."),
        (True, "elsewhere"),
        pytest.param(False, "elsewhere", marks=pytest.mark.exhaustive),
        pytest.param(True, ".", marks=pytest.mark.exhaustive),
    ],
)
def test_i13_the_top_becomes_no_repository(workspace: Path, temporary: Path, is_repository: bool, place: str) -> None:
    """I13: no command makes the top a bare repository, whose settings the operator's git obeys, now or afterwards."""
    if is_repository:
        subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    text = (
        f"rm -f .git/HEAD; mkdir -p {place}/objects {place}/refs; echo ref: refs/heads/x > HEAD; "
        f"[ {place} = . ] || echo {place} > commondir; echo up; read -r _"
    )
    operators_git = ["git", "-C", str(workspace), "rev-parse", "--git-dir"]
    with up(BUBBLEWRAP, text, Sandbox(workspace=workspace, temporary=temporary)) as started:
        assert subprocess.run(operators_git, capture_output=True, check=False).returncode == 128
        started.communicate("\n")
    assert (workspace / "HEAD").exists()
    assert subprocess.run(operators_git, capture_output=True, check=False).returncode == 128


def test_i13_tokens_of_other_stacks(
    workspace: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: no process sees the data directory of another stack of this user, though it may read what that lies in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    other = tmp_path / "state/turngate/data/other"
    other.mkdir(parents=True)
    (other / "token").write_text(SECRET)
    settings = load_settings(data_dir=tmp_path / "own")
    settings.ensure_data_dir()
    sandbox = Sandbox(workspace=workspace, temporary=temporary, readable=(tmp_path / "state",))
    ended = end_of(tool_confinement(settings), f"cat {other}/token; ls {tmp_path}/state", sandbox)
    assert held(ended)
    assert ended.stdout == "turngate\n"


def obeyed_places() -> list[str]:
    return ["/".join(place.names) for place in OBEYED]


@pytest.mark.parametrize("target", ["..", "../..", "/", "a-file", "loop", "nowhere"])
def test_i13_a_link_at_a_kept_place_leads_nowhere(
    backend: Backend, run: Run, workspace: Path, data_dir: Path, target: str
) -> None:
    """I13: with a link in place of what is kept, no command starts under bubblewrap; Landlock refuses what it leads to."""
    (workspace / "a-file").write_text("text")
    for name in sorted(obeyed_places(), key=len, reverse=True):
        place = workspace / name
        place.parent.mkdir(exist_ok=True)
        if place.is_dir():
            shutil.rmtree(place)
        place.symlink_to(name.rpartition("/")[2] if target == "loop" else target)
        if backend == "bubblewrap":
            with pytest.raises(UnconfinedError, match=f"{name} in .* is a link.*replace it"):
                run("true")
            place.unlink()
    if backend == "landlock":
        reads = (f"cat {name}/data/token {name}/../data/token {name}{data_dir}/token" for name in obeyed_places())
        assert held(run("; ".join([*reads, "ls */data .*/data; true"])))


def test_i13_a_command_leaves_no_link_for_the_next(backend: Backend, run: Run, workspace: Path, data_dir: Path) -> None:
    """I13: a command can't make a link of a kept place, absent or not; the next one reads nothing outside by it."""
    layouts = [[], [".git/"], [".git/", ".git/hooks/", ".git/config", ".vscode/", ".envrc"]]
    names = sorted(obeyed_places(), key=len, reverse=True)
    for number, layout in enumerate(layouts):
        (top := workspace / str(number)).mkdir()
        for each in layout:
            (top / each).mkdir() if each.endswith("/") else (top / each).write_text("")
        changes = (
            f"mv {name} moved; rm -rf {name}; mkdir -p .git; ln -sfn ../.. {name}; ln -sfn {data_dir} {name}"
            for name in names
        )
        run("; ".join(changes), workspace=top)
        if backend == "bubblewrap":
            assert not [name for name in names if (top / name).is_symlink()]
        assert held(run("; ".join(f"cat {name}/token {name}/*/token" for name in names) + "; true", workspace=top))


def test_i13_a_place_that_changes_after_the_check_is_not_reached(
    backend: Backend, workspace: Path, data_dir: Path, temporary: Path
) -> None:
    """I13: a workspace, a directory of a server or a kept place that becomes a link before the start: nothing is started."""
    outer = workspace / "outer"
    (outer / "inner").mkdir(parents=True)
    confinement = Confinement(backend=backend)
    sandboxes = [Sandbox(workspace=outer / "inner", temporary=temporary)]
    sandboxes += [
        Sandbox(workspace=None, temporary=temporary, **{kind: (outer / "inner",)}) for kind in ("readable", "writable")
    ]
    text = f"cat token {outer}/inner/token {data_dir}/token; ls; echo started"
    for sandbox in sandboxes:
        for swapped in (outer / "inner", outer):
            command = confinement.command(["bash", "-c", text], sandbox, {"PATH": os.defpath})
            swapped.rename(workspace / "old")
            (data_dir / "inner").symlink_to(".")
            swapped.symlink_to(data_dir)
            ended = finished(command)
            (data_dir / "inner").unlink()
            swapped.unlink()
            (workspace / "old").rename(swapped)
            assert ended.returncode == 126, ended.stderr
            assert "is a link" in ended.stderr
            assert SECRET not in ended.stdout
    if backend == "bubblewrap":
        command = confinement.command(["bash", "-c", "cat .git/*"], sandboxes[0], {"PATH": os.defpath})
        (outer / "inner/.git").symlink_to(data_dir)
        ended = finished(command)
        assert ended.returncode == 126
        assert SECRET not in ended.stdout


def test_i13_configured_places_follow_no_link_that_an_agent_made(
    backend: Backend, workspace: Path, data_dir: Path, temporary: Path, tmp_path: Path
) -> None:
    """I13: an MCP server's directory below a workspace isn't taken from a link there; a link of the operator's is followed."""
    link = tmp_path / "link"
    (workspace / "server").symlink_to(data_dir)
    (workspace / "deep").mkdir()
    link.symlink_to(workspace / "deep")
    confinement = Confinement(backend=backend, agents_write=(workspace,))
    for place in (
        workspace / "server",
        workspace / "deep/../server",
        tmp_path / "link/../server",
    ):
        for kind in ("readable", "writable"):
            with pytest.raises(UnconfinedError, match="link"):
                confinement.command(["true"], Sandbox(workspace=None, temporary=temporary, **{kind: (place,)}), {})
    own = Sandbox(workspace=workspace / "server", temporary=temporary, writable=(workspace,))
    with pytest.raises(UnconfinedError, match="link"):  # nor from what an earlier process with the same places has made
        Confinement(backend=backend).command(["true"], own, {})
    assert end_of(confinement, "touch made", Sandbox(workspace=link, temporary=temporary)).returncode == 0
    assert (workspace / "deep/made").exists()


def test_i13_a_link_on_the_path_leads_nowhere_if_an_agent_can_have_made_it(
    backend: Backend, workspace: Path, data_dir: Path, temporary: Path, tmp_path: Path
) -> None:
    """I13: a directory of the workspace on the PATH, itself or one that it lies in, shows nothing else once it is a link."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tool").write_text("ours")
    (tmp_path / "link").symlink_to(programs)
    (workspace / "bin").symlink_to(data_dir)
    (workspace / "env").symlink_to(tmp_path)
    path = [workspace / "bin", workspace / "env/data", workspace / "bin/../env/data", tmp_path / "link", os.defpath]
    confinement = Confinement(backend=backend, agents_write=(workspace,))
    for own in (Sandbox(workspace=workspace, temporary=temporary), Sandbox(workspace=None, temporary=temporary)):
        text = f"cat {data_dir}/token {workspace}/bin/token; cat {tmp_path}/programs/tool"
        ended = end_of(confinement, text, own, os.pathsep.join(map(str, path)))
        assert held(ended)
        assert ended.stdout == "ours", ended.stderr


def test_i13_no_program_that_starts_unconfined_is_one_that_agents_can_write(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: neither from the workspace, by any way that leads there or through it, nor from a directory relative to it."""
    outside = tmp_path / "outside"
    for place in (workspace / "bin", outside):
        place.mkdir()
        for name in ("bwrap", "slirp4netns", "of-agents"):
            (place / name).write_text("#!/bin/sh\nexit 1\n")
            (place / name).chmod(0o755)
    (tmp_path / "link").symlink_to(workspace / "bin")
    (workspace / "through").symlink_to(outside)
    (tmp_path / "file").mkdir()
    (tmp_path / "file/of-agents").symlink_to(workspace / "bin/of-agents")
    monkeypatch.chdir(workspace)
    ways = [
        workspace / "bin",
        tmp_path / "link",
        workspace / "through",
        workspace / "../link",
        "bin",
        "",
        tmp_path / "file",
    ]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (*ways, os.defpath))))
    assert find_helper("of-agents", (workspace,)) is None
    confinement = machine.find(Confinement(agents_write=(workspace,)))
    sandbox = Sandbox(workspace=None, temporary=tmp_path / "file", network=True)
    started = " ".join(confinement.command(["true"], sandbox, {"PATH": os.defpath}).argv)
    assert ("/bin/bwrap" in started, "/bin/slirp4netns" in started, str(tmp_path / "work") in started) == (
        True,
        True,
        False,
    )
    monkeypatch.setenv("PATH", f"{workspace}/bin{os.pathsep}{outside}")
    assert find_helper("of-agents", (workspace,)) == str(outside / "of-agents")
    changeable = Sandbox(workspace=outside, temporary=tmp_path / "file")
    with pytest.raises(UnconfinedError, match="only where agents write"):
        Confinement(backend="bubblewrap", agents_write=(workspace,)).command(["true"], changeable, {})
    monkeypatch.setenv("PATH", f"{outside}{os.pathsep}{os.defpath}")
    assert str(find_helper("bwrap", ())).endswith("bin/bwrap"), "the system's own, before one of a place not known yet"
    assert not str(find_helper("bwrap", ())).startswith(str(outside))


@pytest.mark.parametrize("kind", ["environment", "prefix", "top", "link"])
def test_i13_a_python_below_a_workspace_is_held(
    workspace: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """I13: an environment, one of conda or pixi (a prefix of its own), one whose top is the workspace, a link to a Python.

    The programs beside it start unconfined, so that of a name which is not held is none.
    """
    prefix = {"environment": workspace / ".venv", "prefix": workspace / ".pixi/envs/default"}.get(kind, workspace)
    packages = prefix / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin/helper").touch(mode=0o755)
    (prefix / "bin/python").symlink_to(sys.executable)
    (packages / "lib.py").write_text("ours")
    if kind != "link":
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(sys, "base_prefix", str(prefix) if kind == "prefix" else "/usr")
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(prefix / "bin" if name == "scripts" else packages))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    assert find_helper("helper", (workspace,)) == str(prefix / "bin/helper")
    loaded = LoadedFiles()
    loaded.begin((), (workspace,))
    confinement = Confinement(backend="bubblewrap", loaded=tuple(loaded)[:9])  # the thousands of modules here take long
    texts = (f"echo theirs > {prefix}/{each}/lib.py" for each in ("bin", packages.relative_to(prefix)))
    end_of(confinement, "; ".join([*texts, "touch made"]), Sandbox(workspace=workspace, temporary=temporary))
    assert (workspace / "made").exists()
    assert not (prefix / "bin/lib.py").exists()
    assert (packages / "lib.py").read_text() == ("theirs\n" if kind == "link" else "ours")
    (workspace / "helper").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(workspace / "python"))
    assert find_helper("helper", (workspace,)) is None


def test_i13_a_directory_that_is_only_read_keeps_its_name(workspace: Path, temporary: Path) -> None:
    """I13: one of the PATH below a workspace, for example: something else could have its name when a program is started next."""
    programs = workspace / "node_modules/.bin"
    programs.mkdir(parents=True)
    (programs / "tool").write_text("ours")
    text = "mv node_modules moved; mkdir -p node_modules/.bin; echo theirs > node_modules/.bin/tool; touch node_modules/made"
    end_of(BUBBLEWRAP, text, Sandbox(workspace=workspace, temporary=temporary), f"{os.defpath}:{programs}")
    assert (programs / "tool").read_text() == "ours"
    assert sorted(each.name for each in workspace.rglob("*")) == [".bin", "made", "node_modules", "tool"]


def test_i13_what_the_worker_runs_from_is_only_read(workspace: Path, temporary: Path, tmp_path: Path) -> None:
    """I13: modules, compiled ones too, policy and environment below a workspace keep content and name; others change."""
    environment = workspace / ".venv"
    (workspace / "pkg/deep").mkdir(parents=True)
    (environment / "lib").mkdir(parents=True)
    (tmp_path / "link").symlink_to(workspace)
    loaded = [workspace / "pkg/deep/tools.py", tmp_path / "link/policy.toml", environment]
    for file in (*loaded[:2], environment / "lib/a.pth"):
        file.write_text("ours")
    changes = ["echo theirs >", "rm -f", "ln -f made", "sed -i s/ours/theirs/", "cp made", "mv -f made", "truncate -s0"]
    tries = [f"{how} {file}" for how in changes for file in ("pkg/deep/tools.py", "policy.toml", ".venv/lib/a.pth")]
    directories = ["pkg", "pkg/deep", ".venv", ".venv/lib"]
    tries += [f"mv {place} moved; mkdir -p {place}; echo theirs > {place}/tools.py" for place in directories]
    tries += ["ln pkg/deep/tools.py other && echo theirs > other", "echo theirs > .venv/lib/sitecustomize.py"]
    tries += ["mkdir -p pkg/deep/__pycache__; echo theirs > pkg/deep/__pycache__/tools.cpython-311.pyc"]
    ended = end_of(
        Confinement(backend="bubblewrap", loaded=tuple(loaded)),
        "; ".join(["echo made > made", *tries, "echo new > pkg/deep/new.py; cat pkg/deep/tools.py"]),
        Sandbox(workspace=workspace, temporary=temporary),
    )
    assert ended.stdout == "ours", ended.stderr
    assert (workspace / "pkg/deep/new.py").read_text() == "new\n"
    assert [file.read_text() for file in (*loaded[:2], environment / "lib/a.pth")] == ["ours"] * 3
    assert sorted(each.name for each in environment.rglob("*")) == ["a.pth", "lib"]
    assert not (workspace / "pkg/deep/__pycache__").exists()


def test_i13_a_copy_stays_over_its_file_whatever_the_command_renames(
    workspace: Path, temporary: Path, tmp_path: Path
) -> None:
    """I13: neither the file nor a directory above it can be renamed or removed from within, so the approved bytes run."""
    for directory in (tmp_path / "copies", workspace / "a", workspace / "a/b"):
        directory.mkdir()
    (workspace / "a/b/x.sh").write_text("echo approved")
    (tmp_path / "copies/0").write_text("echo approved")
    again = "mkdir -p a/b; echo echo theirs > a/b/x.sh; sh a/b/x.sh"
    ended = end_of(
        BUBBLEWRAP,
        "; ".join(f"{how}; {again}" for how in ("mv a o", "mv a/b o", "mv a/b/x.sh o", "rm -rf a", "ln -sfT . a")),
        Sandbox(
            workspace=workspace,
            temporary=temporary,
            readable=(tmp_path / "copies",),
            copies={("a", "b", "x.sh"): tmp_path / "copies/0"},
        ),
    )
    assert ended.stdout == "approved\n" * 5, ended.stderr


def test_i13_a_link_to_what_the_worker_runs_from_starts_nothing(workspace: Path, tmp_path: Path) -> None:
    """I13: a link can't be held, and its name would lead elsewhere the next time."""
    (tmp_path / "app.py").write_text("ours")
    (workspace / "app.py").symlink_to(tmp_path / "app.py")
    confinement = Confinement(backend="bubblewrap", loaded=(workspace / "app.py",))
    with pytest.raises(UnconfinedError, match=r"app\.py .* is a link"):
        confinement.command(["true"], Sandbox(workspace=workspace, temporary=tmp_path), {})


def test_i13_what_operators_programs_obey(workspace: Path, temporary: Path) -> None:
    """I13: no command adds or changes what a person's git, editor or shell obeys; a commit still works, and nothing is left.

    Only bubblewrap can keep it so: docs/security.md says so.
    """
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    shutil.rmtree(workspace / ".git/hooks")
    before = sorted(map(str, workspace.rglob("*")))
    writes = [f"echo forged > {name} || echo forged > {name}/x" for name in obeyed_places() if name != ".git"]
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m m && git gc -q && git status -s"
    ended = end_of(BUBBLEWRAP, "; ".join([*writes, commit]), Sandbox(workspace=workspace, temporary=temporary))
    assert (ended.stdout, ended.returncode) == ("", 0), ended.stderr
    after = sorted(map(str, workspace.rglob("*")))
    assert [each for each in after if each not in before and "/.git/" not in each] == []
    assert not {str(workspace / name) for name in obeyed_places()} & set(after) - set(before)
    log = subprocess.run(["git", "-C", str(workspace), "log", "--oneline"], capture_output=True, text=True, check=True)
    assert log.stdout.count("\n") == 1


def test_i13_commands_at_once_hold_their_places_to_the_end(workspace: Path, tmp_path: Path) -> None:
    """I13: what bubblewrap made to hold an absent place stays until the last command that needs it has ended."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    text = "echo up; read -r _; mkdir .vscode/x || ln -s / .envrc; true"
    with (
        up(BUBBLEWRAP, text, Sandbox(workspace=workspace, temporary=tmp_path / "one")) as one,
        up(BUBBLEWRAP, text, Sandbox(workspace=workspace, temporary=tmp_path / "two")) as two,
    ):
        for each in (one, two):
            assert (workspace / ".vscode").is_dir()
            each.communicate("\n")
    assert not list(workspace.iterdir())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("app", "."),
        ("app/deep", "app"),
        pytest.param(".", "app", marks=pytest.mark.exhaustive),
        pytest.param("app", "app/deep", marks=pytest.mark.exhaustive),
    ],
)
def test_i13_what_is_held_for_a_run_stays_when_a_nested_one_ends(tmp_path: Path, first: str, second: str) -> None:
    """I13: where a run's workspace lies in another's, neither's end takes a place away that the other holds."""
    project, modules = tmp_path / "project", []
    for module in (project / "app/my_app.py", project / "app/deep/tools.py"):
        module.parent.mkdir(parents=True)
        module.touch()
        modules.append(module)
    confinement = Confinement(backend="bubblewrap", loaded=tuple(modules))
    text = f"""echo up; read -r _; for d in {project}/app {project}/app/deep; do mkdir -p $d/__pycache__
echo forged > $d/__pycache__/my_app.cpython-311.pyc; done 2>/dev/null; echo tried; read -r _"""
    with ExitStack() as stack:
        running = []
        for name in (first, second):
            (temporary := tmp_path / f"temporary-{len(running)}").mkdir()
            sandbox = Sandbox(workspace=project / name, temporary=temporary)
            running.append(stack.enter_context(up(confinement, text, sandbox)))
        for each in running:
            each.communicate("\n\n")
    assert not list(project.rglob("*.pyc"))
    assert not list(project.rglob("__pycache__"))


def modules_of_packages(workspace: Path, many: int) -> list[Path]:
    modules = [workspace / f"{'a_package_of_the_app_' * 10}{number}/module.py" for number in range(many)]
    for module in modules:
        module.parent.mkdir()
        module.touch()
    return modules


def test_an_app_of_many_packages_needs_no_higher_limit_of_open_files(workspace: Path, temporary: Path) -> None:
    """The launcher holds two files open for each; the command keeps the limit that the worker has."""
    modules = modules_of_packages(workspace, 100)
    command = Confinement(backend="bubblewrap", loaded=tuple(modules)).command(
        ["bash", "-c", "ulimit -n; ls -d */__pycache__ | wc -l"],
        Sandbox(workspace=workspace, temporary=temporary),
        {"PATH": os.defpath},
    )
    ended = finished(replace(command, argv=("prlimit", "--nofile=128:1024", *command.argv)))
    assert ended.stdout == "128\n100\n", ended.stderr


def test_i13_an_app_of_more_packages_than_fit_into_one_argument_is_held(workspace: Path, temporary: Path) -> None:
    """I13: what is held is listed for the launcher in as many arguments as that takes (128 KiB each, at most)."""
    modules = modules_of_packages(workspace, 200)
    command = Confinement(backend="bubblewrap", loaded=tuple(modules)).command(
        ["bash", "-c", f"echo forged > {modules[0]}; echo forged > {modules[-1]}; echo ended"],
        Sandbox(workspace=workspace, temporary=temporary),
        {"PATH": os.defpath},
    )
    assert sum(map(len, command.argv)) > 128 * 1024
    ended = finished(command)
    assert ended.stdout == "ended\n", ended.stderr
    assert [module.read_text() for module in (modules[0], modules[-1])] == ["", ""]


def test_held_places_that_are_replaced_from_outside_are_named(workspace: Path, temporary: Path) -> None:
    """The hold is of what was there when the command started; its output says what else, or which directory, is there now."""
    for path in (workspace / "env", workspace / "env/lib"):
        path.mkdir()
    for name in ("app.py", "other.py"):
        (workspace / name).write_text("ours")
    loaded = tuple(workspace / name for name in ("app.py", "other.py", "env"))
    text = "echo up; read -r _; echo theirs > app.py; mkdir .vscode env; echo theirs > env/x; ln -s / .claude"
    confinement = Confinement(backend="bubblewrap", loaded=loaded)
    with up(confinement, text, Sandbox(workspace=workspace, temporary=temporary)) as started:
        (workspace / "new").write_text("mine")
        (workspace / "new").rename(workspace / "app.py")
        shutil.rmtree(workspace / "env")
        for absent in (".vscode", ".claude", ".idea"):
            (workspace / absent).rmdir()
        _output, errors = started.communicate("\n")
    named, _, _ = errors.removeprefix("turngate: ").partition(
        " was replaced or removed from outside while this command ran"
    )
    assert sorted(named.split(", ")) == [".claude", ".vscode", "app.py", "env"]


def test_i13_turngates_own_places_lie_in_no_workspace(backend: Backend, workspace: Path, tmp_path: Path) -> None:
    """I13: where agents write, nothing is noted that is removed outside of the sandbox, nor is there a temporary directory."""
    inside, outside = workspace / "tmp", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    for notes, temporary, agents_write in (
        (inside, outside, ()),
        (outside, inside, ()),
        (outside, outside, (tmp_path,)),
    ):
        confinement = Confinement(backend=backend, notes=notes / "notes", agents_write=agents_write)
        with pytest.raises(UnconfinedError, match="set TMPDIR to a directory outside of all workspaces"):
            confinement.command(["true"], Sandbox(workspace=workspace, temporary=temporary), {})
    with pytest.raises(UnconfinedError, match="set TMPDIR"):  # when the worker starts
        machine.find(Confinement(agents_write=(Path(tempfile.gettempdir()),)))
    hidden = Confinement(backend="bubblewrap", notes=inside / "notes", hidden=(inside,))
    assert end_of(hidden, "true", Sandbox(workspace=workspace, temporary=outside)).returncode == 0


def test_i13_no_note_leads_out_of_the_directory_it_is_of(workspace: Path, temporary: Path, tmp_path: Path) -> None:
    """I13: whatever a list of what was made says, nothing outside of that directory is removed."""
    victim, notes = tmp_path / "victim", tmp_path / "notes"
    victim.write_text("kept")
    (workspace / "below").mkdir()
    (workspace / "below/victim").write_text("kept")
    confinement = Confinement(backend="bubblewrap", notes=notes)
    with up(confinement, "echo up; read -r _", Sandbox(workspace=workspace, temporary=temporary)) as started:
        [listed] = notes.iterdir()
        with listed.open("a") as file:
            for name in ("../victim", "below/victim", str(victim), ".."):
                file.write(json.dumps([name, "kept"]) + "\n" + json.dumps([name, "/"]) + "\n")
        started.communicate("\n")
    assert victim.exists()
    assert sorted(str(each.relative_to(workspace)) for each in workspace.rglob("*")) == ["below", "below/victim"]
    assert not list(notes.iterdir())


def test_i13_only_what_is_given_is_inherited(run: Run) -> None:
    """I13: of the worker's environment and open files nothing reaches the command, nor the process that confines it."""
    with open(os.devnull) as opened:  # noqa: PTH123 - a descriptor to leak
        os.set_inheritable(opened.fileno(), True)
        ended = run("env; cat /proc/1/environ; echo; ls /proc/self/fd | wc -l")
    assert held(ended)
    assert "TURNGATE" not in ended.stdout
    assert int(ended.stdout.split()[-1]) <= 5


def test_memory_and_file_size_are_limited(run: Run) -> None:
    """A command gets neither more memory nor larger files than its limits say."""
    ended = run(
        "python3 -c 'x = bytearray(2**30); print(len(x))'; head -c 100000000 /dev/zero > large; stat -c %s large"
    )
    assert "MemoryError" in ended.stderr
    assert int(ended.stdout.split()[-1]) <= 8 * MIB


@pytest.mark.exhaustive
def test_the_number_of_processes_is_limited(run: Run) -> None:
    """A command that starts more processes, or threads, than its limit is killed whole, and stderr says why."""
    bomb = "sleep 7.25 & " * 80 + "wait"
    scattered = "for i in $(seq 80); do (setsid sleep 7.25 &); done; sleep 7.25"
    threads = "python3 -c 'import threading, time\nfor _ in range(80): threading.Thread(target=time.sleep, args=(7,)).start()'"
    limits = Limits(processes=60)
    assert run("sleep 0.5 & " * 40 + "wait; echo done", limits=limits).stdout == "done\n"
    for command in (bomb, scattered, threads):
        ended = run(command, limits=limits)
        assert ended.returncode == 137
        assert "more than 60 processes and threads" in ended.stderr
    assert run("true").returncode == 0
    assert not [process for process in commands() if "sleep 7.25" in process]


@pytest.mark.exhaustive
def test_a_fork_bomb_ends(run: Run) -> None:
    """Processes that double again and again are killed in a moment, all of them."""
    bomb = "bomb() { [ $1 -gt 10 ] || { bomb $(($1 + 1)) & bomb $(($1 + 1)) & }; sleep 610.25; }; bomb 0"
    began = time.monotonic()
    ended = run(bomb, limits=Limits(processes=300))
    assert (ended.returncode, "more than 300 processes" in ended.stderr) == (137, True)
    assert time.monotonic() - began < 120
    assert not [process for process in commands() if "sleep 610.25" in process]


def test_i13_nothing_beside_the_launcher_takes_a_modules_place(
    workspace: Path, temporary: Path, tmp_path: Path
) -> None:
    """I13: a directory that an agent makes in a checkout that Turngate runs from isn't run outside with the next command."""
    command = BUBBLEWRAP.command(
        ["echo", "up"], Sandbox(workspace=workspace, temporary=temporary), {"PATH": os.defpath}
    )
    checkout = tmp_path / "checkout"
    shutil.copytree(Path(command.argv[3]).parent, checkout)
    for name in ("descriptors", "held_places", "left_behind", "json", "turngate", "struct"):
        (checkout / name).mkdir()
        (checkout / name / "__init__.py").write_text(f"open('{tmp_path}/theirs', 'w')")
    launcher = [*command.argv[:3], str(checkout / "launcher.py"), *command.argv[4:]]
    ended = finished(replace(command, argv=tuple(launcher), directory=checkout))
    assert ended.stdout == "up\n", ended.stderr
    assert not (tmp_path / "theirs").exists()


def run_as_nobody(
    argv: list[str], sandbox: Sandbox, place: Path, hidden: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command under bubblewrap as a worker that isn't root does; ``place``: the files of the test, which become its own."""
    command = Confinement(backend="bubblewrap", hidden=hidden).command(argv, sandbox, {"PATH": os.defpath})
    words = order_words(order_of(command)[0] | {"held_folder": str(place / "held")})
    program = bubblewrap.arguments("bwrap", sandbox, hidden, argv, root=False)  # without what root alone can read
    launcher = place / "launcher"
    shutil.copytree(Path(command.argv[3]).parent, launcher)
    for path in (place, *place.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    return subprocess.run(
        ["/usr/bin/python3", "-I", "-S", launcher / "launcher.py", *words, *program],
        env=command.environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        user=65534,
        group=65534,
        extra_groups=[],
    )


@pytest.fixture
def open_place() -> Iterator[Path]:
    """Return a directory that every user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


@ROOT_ONLY
def test_the_kernel_counts_the_processes_of_a_user(open_place: Path) -> None:
    """Under bubblewrap, a worker that is not root gets the limit from the kernel: no fork succeeds above it."""
    sandbox = Sandbox(workspace=None, temporary=open_place, limits=Limits(processes=30))
    forks = ["sh", "-c", "for i in $(seq 60); do sleep 3 & done; echo all"]
    ended = run_as_nobody(forks, sandbox, open_place)
    assert "annot fork" in ended.stderr, ended.stderr


@ROOT_ONLY
def test_i13_places_are_held_for_a_worker_that_is_not_root(open_place: Path) -> None:
    """I13: a worker without any capability hides the data directory and keeps the repository's settings, too."""
    workspace, temporary, data = open_place / "work", open_place / "temporary", open_place / "work/one/.turngate"
    temporary.mkdir()
    data.mkdir(parents=True)
    (data / "token").write_text(SECRET)
    subprocess.run(["git", "init", "-q", str(workspace)], check=True)
    text = (
        "cat one/.turngate/token; mv one two; mv .git old; echo forged > .git/hooks/pre-commit; mkdir .vscode/x; id -u"
    )
    sandbox = Sandbox(workspace=workspace, temporary=temporary)
    ended = run_as_nobody(["bash", "-c", text], sandbox, open_place, hidden=(data,))
    assert held(ended)
    assert ended.stdout == "65534\n", ended.stderr
    assert sorted(each.name for each in workspace.iterdir()) == [".git", "one"]
    assert not (workspace / ".git/hooks/pre-commit").exists()


def test_what_a_command_left_ends_with_it(run: Run) -> None:
    """Processes that the command left in the background, in sessions of their own too, end when it does."""
    assert run("sleep 8.25 & (setsid sleep 8.25 &) ; echo done").stdout == "done\n"
    assert not [process for process in commands() if "sleep 8.25" in process]


def test_nothing_outlives_its_launcher(run: Run) -> None:
    """A command can't get rid of what watches it, so a process that left its session and environment ends, too."""
    run("(env -i setsid sleep 611.25 >&- 2>&- &); sleep 0.1; kill -9 $PPID; kill -9 0")
    until_gone("sleep 611.25")


@pytest.mark.parametrize(
    "how", ["worker killed", pytest.param("asked to end", marks=pytest.mark.exhaustive), "told to end"]
)
def test_a_stubborn_command_ends_with_its_worker(backend: Backend, workspace: Path, tmp_path: Path, how: str) -> None:
    """A process that ignores SIGTERM in a session of its own ends soon after the worker died or asked it to."""
    stubborn = "trap '' TERM; env -i setsid bash -c \"trap '' TERM; sleep 612.25; sleep 612.25\" & echo up; wait; wait"
    command = Confinement(backend=backend).command(
        ["bash", "-c", stubborn], Sandbox(workspace=workspace, temporary=tmp_path), {"PATH": os.defpath}
    )
    worker = f"import subprocess; subprocess.run({command.argv!r}, env={command.environment!r})"
    with subprocess.Popen([sys.executable, "-ISc", worker], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        launcher = int(children.read_text().split()[0])
        if how == "worker killed":
            started.kill()
        else:
            os.kill(launcher, signal.SIGTERM if how == "asked to end" else END_ALL)
        until_gone("sleep 612.25")


def test_signals_to_end_are_passed_on(backend: Backend, workspace: Path, tmp_path: Path) -> None:
    """SIGTERM to the process that was started ends the program; it does not outlive it."""
    sandbox = Sandbox(workspace=workspace, temporary=tmp_path)
    with up(Confinement(backend=backend), "echo up; exec sleep 609.25", sandbox) as started:
        started.terminate()
        assert started.wait(60) == 143
    assert not [process for process in commands() if "sleep 609.25" in process]


def until_gone(command_line: str) -> None:
    """Wait until no process has this command line: the kernel ends what a killed launcher leaves soon after it."""
    deadline = time.monotonic() + 120
    while [process for process in commands() if process.startswith(command_line)]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commands() -> list[str]:
    """The command lines of this machine's processes."""
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines


def test_the_workspace_can_be_read_only(run: Run, workspace: Path) -> None:
    """A sandbox whose workspace is only read changes nothing there."""
    (workspace / "there").write_text("one\n")
    ended = run("cat there; echo two > there; echo three > new", workspace_writable=False)
    assert ended.stdout == "one\n"
    assert [path.name for path in workspace.iterdir()] == ["there"]


def test_i13_network_leads_to_other_machines_only(backend: Backend, run: Run, workspace: Path, temporary: Path) -> None:
    """I13: a process with the network reaches what isn't on loopback; where that can't be had, it isn't started."""
    if backend == "landlock":
        with pytest.raises(UnconfinedError, match="slirp4netns"):
            run("true", network=True)
        return
    with (
        listening(socket.AF_INET, ("127.0.0.1", 0)) as loopback,
        listening(socket.AF_INET, (own_address(), 0)) as outside,
    ):
        port = loopback.getsockname()[1]
        targets = [
            (2, ("127.0.0.1", port)),
            (2, ("10.0.2.2", port)),
            (2, ("localhost", port)),
            (2, outside.getsockname()),
        ]
        private = ["169.254.169.254", "10.1.2.3", "192.168.9.9", "100.64.0.1", "172.17.255.1", "198.18.0.1"]
        targets += [(2, (each, 9)) for each in private] + [(10, (f"::ffff:{each}", 9)) for each in private]
        targets += [(10, (each, 53)) for each in ("::1", "fd00::2", "fd00::3", "2001:db8::1", "64:ff9b::a01:203")]
        targets += [(10, ("fe80::2", 53, 0, 2))]  # a network of IPv6 has no route, and nothing answers at the link
        change = "ip route add 10.1.2.3/32 via 10.0.2.2; ip route flush table main"
        ended = run(f"{change}\n{CONNECT.format(targets=targets)}\nexit 5", network=True)
        assert "reached" not in ended.stdout
        assert ended.stdout.count(f"refused {errno.EHOSTUNREACH}") >= 4 * len(private)
        assert ended.returncode == 5, ended.stderr
        assert not was_reached(outside)
        assert not was_reached(loopback)
        listed = Confinement(backend=backend, networks=(f"{own_address()}/32",))
        sandbox = Sandbox(workspace=workspace, temporary=temporary, network=True)
        end_of(listed, CONNECT.format(targets=targets), sandbox)
        assert was_reached(outside)
        assert not was_reached(loopback)
        assert run("kill -9 $$", network=True).returncode == 137


@pytest.mark.parametrize("listed", ["127.0.0.1", "169.254.169.254", "8.8.8.8", "0.0.0.0/0", "fd00::/8", "intranet"])
def test_only_private_networks_can_be_listed(listed: str) -> None:
    """Link-local addresses and loopback can't."""
    with pytest.raises(ConfigurationError, match="TURNGATE_TOOL_NETWORKS"):
        open_networks(["10.1.2.3", listed])
    assert open_networks(["10.2.0.0/16", "10.1.2.3"]) == ("10.1.2.3/32", "10.2.0.0/16")


def own_address() -> str:
    """An address of this machine that isn't loopback: the nearest there is to another machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_a_machine_that_cannot_confine_starts_nothing(workspace: Path, tmp_path: Path) -> None:
    """Without a way to confine, a process is started only when the deployment allowed it."""
    nothing = Confinement(backend=None, why=("bubblewrap: not installed",))
    sandbox = Sandbox(workspace=workspace, temporary=tmp_path)
    with pytest.raises(UnconfinedError, match="bubblewrap: not installed"):
        nothing.command(["true"], sandbox, {})
    assert "Can't be started" in nothing.described().text
    allowed = replace(nothing, allow_unconfined=True)
    assert allowed.command(["true"], sandbox, {}).argv == ("true",)
    assert "Runs unconfined" in allowed.described().text
    assert not nothing.described().confined
    assert not allowed.described().confined


def test_a_launcher_that_cannot_confine_starts_nothing(workspace: Path, tmp_path: Path) -> None:
    """When confining fails on the way, the program isn't started, and stderr says what failed."""
    order = Confinement(backend="landlock").command(
        ["touch", str(workspace / "ran")], Sandbox(workspace=workspace, temporary=tmp_path), {"PATH": os.defpath}
    )
    broken = tuple(part.replace('"filter": "', '"filter": "ff') for part in order.argv)
    assert finished(replace(order, argv=broken)).returncode != 0
    assert not (workspace / "ran").exists()


@ROOT_ONLY
def test_i13_a_tool_user_reads_no_data_directory(data_dir: Path, tmp_path: Path) -> None:
    """I13: as a user of its own, a command is kept from the data directory by the system, and makes no sockets."""
    tmp_path.chmod(0o755)
    ended = end_of(
        Confinement(backend="user", tool_user="nobody"),
        f"id -un; cat {data_dir}/token; cat /proc/{os.getpid()}/environ; {CONNECT.format(targets=[])}",
        Sandbox(workspace=None, temporary=tmp_path),
    )
    assert ended.stdout.split()[0] == "nobody"
    assert held(ended)


def test_the_strongest_way_is_chosen() -> None:
    """This machine has both ways, and bubblewrap is the stronger one; the choice is made once."""
    assert machine.find(Confinement()).backend == "bubblewrap"
    assert machine.current() is machine.current()


def test_the_filter_knows_both_machines() -> None:
    """The list of system calls has numbers for x86-64 and AArch64, in whole instructions of eight bytes."""
    for architecture in seccomp.AUDIT_ARCHITECTURES:
        assert len(seccomp.program(architecture, namespaces=True)) % 8 == 0


def test_what_is_private_in_the_configuration_is_left_out() -> None:
    """Of /etc a command reads what any user may: not the password file, which root could read."""
    configuration = system_paths.configuration()
    assert "/etc/shadow" in configuration.private
    assert not any(path.startswith("/etc/shadow") for path in configuration.public)
