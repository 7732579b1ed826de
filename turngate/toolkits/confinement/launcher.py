"""Confine this process, start the program in it, and end as the program does.

Run by path, before any of our modules is imported: ``python -I -S launcher.py COUNT PIECE… PROGRAM [ARGUMENT…]``. The pieces
(``COUNT`` of them, because the kernel takes no argument above 128 KiB; execve(2)) are together the order, in JSON:

* ``limits``: names of ``resource.RLIMIT_*`` → value
* ``processes``: how many processes and threads there may be at once
* ``landlock``: ``{"readable": […], "writable": […]}`` or null
* ``exact``: those of these paths in which no link may be
* ``directory``: where the program starts, or null: where this one does. No link may be in it either
* ``user``: ``[uid, gid]`` to become, or null
* ``filter``: the seccomp program, in hexadecimal
* ``bubblewrap``: whether the program is bubblewrap. Then the filter is its to set: the program gets it as a file whose number
  replaces the argument ``FILTER``, and of each ``PLACE:path`` the number under which the path is open; no link may be in it
* ``network``: with bubblewrap only, or null: no network. ``program``: slirp4netns's path; ``closed``: networks that are
  out of reach; ``open``: those among them that aren't. ``RESOLVER`` among the arguments becomes the number
  of a file that names slirp4netns's resolver
* ``held``: with bubblewrap only, directory → the places below it that ``held_places`` holds
* ``changeable``: the directories that the program may change, for ``left_behind``
* ``obeyed``: what other programs obey at the top of each
* ``held_folder``: where it notes what it makes for that

The launcher stays as the parent, outside of the confinement: the program can't signal it, so it can't get rid of it. It counts
the processes, because outside a namespace RLIMIT_NPROC counts all of a user's, and it lets root have any number. When the program
ends, the launcher kills what the program left, wherever it went. The same when the launcher's own parent dies, a moment after
SIGTERM, and at once on SIGUSR1.

Everything fails closed: what can't be done ends the process with code 126 and a line on stderr, and the program never starts.
Sources: landlock(7), seccomp(2), capabilities(7), prctl(2), proc_pid_task(5).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from turngate.toolkits.confinement import descriptors, held_places, left_behind
else:
    try:
        from turngate.toolkits.confinement import descriptors, held_places, left_behind
    except ImportError:  # run by path, without our packages

        def _beside(name: str) -> ModuleType:
            """Load a module by its file. A search would find a directory of that name first, and who may make one is unknown."""
            spec = spec_from_file_location(name, f"{__file__.rpartition('/')[0]}/{name}.py")
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
            return sys.modules[name]

        descriptors, held_places, left_behind = map(_beside, ("descriptors", "held_places", "left_behind"))

PLACE = "PLACE:"
CANNOT_CONFINE = 126
KILLED = 128 + signal.SIGKILL

_COUNT_SECONDS = 0.2
_KILL_ROUNDS = 1_000
_PAUSE_SECONDS = 0.001
_LOOPBACK_ROUNDS = 2_000
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
END_ALL = signal.SIGUSR1
"""Ends the program and all that it started. SIGKILL would end the launcher alone."""
_RECEIVED = (signal.SIGCHLD, END_ALL, *_PASSED_ON)
_LAST_WORDS_SECONDS = 1.5
"""How long the program may continue after SIGTERM."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 36, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITIES_VERSION_3, _MOST_CAPABILITIES = 0x20080522, 64

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ALL_OF_VERSION_3 = (1 << 15) - 1
_TCP = 0b11
_IOCTL_VERSION, _SCOPES_VERSION = 5, 6
_SCOPES = 0b11
"""Abstract sockets and signals end at the confined processes."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR

_RESOLVER = "10.0.2.3"
"""Where slirp4netns answers questions about names; slirp4netns(1)."""

_GATEWAY = "10.0.2.2"
_NEW_USERS, _NEW_NETWORK = 0x10000000, 0x40000000
_NEW_ROUTE, _MAKE_OR_REPLACE = 24, 0x1 | 0x4 | 0x400 | 0x100
"""A request that wants an answer."""
_MAIN_TABLE, _STATIC, _UNICAST, _UNREACHABLE = 254, 4, 1, 7
_RTA_DESTINATION, _RTA_GATEWAY = 1, 5

_libc = ctypes.CDLL(None, use_errno=True)

_PIECE_CHARS = 100_000


def order_words(order: dict[str, object]) -> list[str]:
    """Return an order as the launcher's arguments."""
    text = json.dumps(order)
    pieces = [text[at : at + _PIECE_CHARS] for at in range(0, len(text), _PIECE_CHARS)]
    return [str(len(pieces)), *pieces]


def main() -> None:
    """Confine this process as the order says, and run the program."""
    first = 2 + int(sys.argv[1])
    order, program = json.loads("".join(sys.argv[2:first])), sys.argv[first:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _RECEIVED)
    _die_with_parent(signal.SIGKILL)
    _call("prctl(PR_SET_CHILD_SUBREAPER)", _libc.prctl, _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name, value in order["limits"].items():
        _limit(getattr(resource, name), value)
    code = bytes.fromhex(order["filter"])
    looks = [_look(path, order["obeyed"]) for path in order["changeable"]]
    if order["bubblewrap"]:
        files = {"FILTER": code, "RESOLVER": f"nameserver {_RESOLVER}\n".encode()}
        options = program.index("--")
        program = [*(_number_of(argument, files) for argument in program[:options]), *program[options:]]
        _hold_more(order["held"], looks)
        child, mountpoints = _start_bubblewrap(program, order)
        _supervise(child, order["processes"], lambda: _finish(looks, mountpoints), spared=True)
    child = _start(program, prepare=lambda: _confine(order, code))
    _supervise(child, order["processes"], lambda: _finish(looks, None))


def _confine(order: dict[str, Any], code: bytes) -> None:
    """Confine this process for good."""
    if order["directory"] is not None:
        _enter(order["directory"])
    if order["user"] is not None:
        _become_user(*order["user"])
        _die_with_parent(signal.SIGKILL)  # another user's process lost that
    _call("prctl(PR_SET_NO_NEW_PRIVS)", _libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _drop_capabilities()
    if order["landlock"] is not None:
        _restrict(**order["landlock"], exact=order["exact"])
    _filter(code)


def _die_with_parent(number: int) -> None:
    _call("prctl(PR_SET_PDEATHSIG)", _libc.prctl, _PR_SET_PDEATHSIG, number, 0, 0, 0)


def _limit(kind: int, value: int) -> None:
    _soft, hard = resource.getrlimit(kind)
    allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (allowed, allowed))


def _number_of(argument: str, files: dict[str, bytes]) -> str:
    """Return an argument; of one that means an open file, its number instead, which survives exec."""
    if argument in files:
        file = os.memfd_create("filter", 0)
        os.write(file, files[argument])
        os.lseek(file, 0, os.SEEK_SET)
        return str(file)
    if argument.startswith(PLACE):
        place = _open_exactly(argument.removeprefix(PLACE))
        os.set_inheritable(place, True)
        return str(place)
    return argument


def _open_exactly(path: str) -> int:
    try:
        return descriptors.open_place(path)
    except OSError as error:
        _end(path, error)


def _look(directory: str, obeyed: list[str]) -> left_behind.LeftBehind:
    try:
        return left_behind.LeftBehind(directory, obeyed)
    except OSError as error:
        _end(directory, error)


def _enter(directory: str) -> None:
    try:
        os.fchdir(_open_exactly(directory))
    except OSError as error:
        _end(directory, error)


def _nothing() -> None:
    """Prepare nothing."""


def _start(program: list[str], *, prepare: Callable[[], None] = _nothing, quiet: bool = False) -> int:
    """Start a program, and return its process id. ``prepare``: what the new process does first."""
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _RECEIVED)
        _die_with_parent(signal.SIGKILL)
        if quiet:
            _let_go_of(0, 1, 2)
        prepare()
        _become(program)
    return child


def _let_go_of(*standard: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in standard:
        os.dup2(nothing, number)


def _supervise(child: int, most: int, finish: Callable[[], None], *, spared: bool = False) -> NoReturn:
    """Wait for the program, pass on signals, count its processes; then kill what is left, and end as the program did.

    Args:
        child: the program.
        most: how many processes and threads there may be at once.
        finish: what is done once nothing of the program runs any more.
        spared: the child gets no signal that is passed on. bubblewrap would end at once, and all in it, without last words.
    """
    _die_with_parent(END_ALL)
    _let_go_of(0, 1)  # or a program that closes its input and output could not say so
    with suppress(OSError):  # for root: a fork bomb would leave no time for counting
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    until = float("inf")
    while True:
        received = signal.sigtimedwait(_RECEIVED, _COUNT_SECONDS)
        number = None if received is None else received.si_signo
        if number in _PASSED_ON:
            _signal([*([] if spared else [child]), *_below(child)[1]], number)
        if number == signal.SIGTERM:
            until = min(until, time.monotonic() + _LAST_WORDS_SECONDS)
        code = _reap(child)
        if code is None and (number == END_ALL or time.monotonic() > until):
            os.kill(child, signal.SIGKILL)
            code = KILLED
        if code is None and _below(os.getpid(), most)[0] > most:
            os.kill(child, signal.SIGKILL)  # of bubblewrap, that ends all at once, however fast they fork
            sys.stderr.write(f"turngate ended this command: more than {most:,} processes and threads at once\n")
            sys.stderr.flush()
            code = KILLED
        if code is not None:
            _kill_all()
            finish()
            os._exit(code)


def _finish(looks: list[left_behind.LeftBehind], mountpoints: held_places.Mountpoints | None) -> None:
    """Remove what was made for the sandbox, and say what was not protected to the end and what other programs would obey."""
    replaced: list[str] = []
    if mountpoints is not None:
        replaced = mountpoints.replaced()
        with suppress(OSError, ValueError):  # the next command tries again
            mountpoints.remove()
    lines: list[str] = []
    if replaced:  # a mount is of a file or directory, and ends with its name
        what = "was replaced or removed from outside while this command ran, so the command may have changed it since"
        lines.append(f"{', '.join(replaced)} {what}: look at it")
    lines += [sentence for look in looks for sentence in look.report(replaced)]
    with suppress(OSError):  # no one reads it any more
        sys.stderr.write("".join(f"turngate: {line}\n" for line in lines))
        sys.stderr.flush()


def _reap(child: int) -> int | None:
    """Reap what has ended. Returns the program's exit code, as a shell gives it, once it has ended."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if process == 0:
            return code
        if process == child:
            result = os.waitstatus_to_exitcode(status)
            code = result if result >= 0 else 128 - result


def _below(ancestor: int, most: int = sys.maxsize) -> tuple[int, list[int]]:
    """Return how many threads there are, this process's included, and the processes below it; stops above ``most`` threads."""
    tasks, processes, below = 0, [], [ancestor]
    while below and tasks <= most:
        process = below.pop()
        try:
            threads = os.listdir(f"/proc/{process}/task")  # noqa: PTH208 - pathlib would take longer than the command
            for thread in threads:
                with open(f"/proc/{process}/task/{thread}/children", encoding="ascii") as children:  # noqa: PTH123
                    started = [int(each) for each in children.read().split()]
                below += started
                processes += started
        except OSError:  # it has ended meanwhile
            continue
        tasks += len(threads)
    return tasks, processes


def _kill_all() -> None:
    """Kill everything below this process. What is forked meanwhile is killed in the next round."""
    for _round in range(_KILL_ROUNDS):
        _tasks, processes = _below(os.getpid())
        if not processes:
            return
        _signal(processes, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)
        _reap(0)


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(OSError):  # it has ended meanwhile
            os.kill(process, number)


def _hold_more(held: dict[str, list[Any]], looks: list[left_behind.LeftBehind]) -> None:
    """Add to what is held where the operator's git goes by itself, and what its settings name, but for what is only read."""
    for look in looks:
        for directory, listed in held.items():
            if look.path != directory and not look.path.startswith(f"{directory}/"):
                continue
            start = tuple(look.path.removeprefix(directory).split("/")[1:])
            fixed = {tuple(names): how for names, how, *_rest in listed}
            for place in look.to_hold():
                names = (*start, *place.names)
                if names not in fixed and not any(
                    fixed.get(names[:many]) in {"read", "hide"} for many in range(len(names))
                ):
                    listed.append(place._replace(names=names))
            listed.sort(key=lambda each: len(each[0]))


def _start_bubblewrap(program: list[str], order: dict[str, Any]) -> tuple[int, held_places.Mountpoints | None]:
    """Start bubblewrap, complete its sandbox, and let the program begin; returns bubblewrap's id, and what was made for it.

    bubblewrap makes the namespaces, says which process is in them, and waits.
    """
    if order["network"] is None and not order["held"]:
        return _start(program), None
    report, reporting = os.pipe()
    waiting, released = os.pipe()
    for descriptor in (reporting, waiting):
        os.set_inheritable(descriptor, True)
    sandboxed = _start([program[0], "--info-fd", str(reporting), "--block-fd", str(waiting), *program[1:]])
    os.close(reporting)
    os.close(waiting)
    with os.fdopen(report, "rb") as answer:
        try:
            inside = int(json.load(answer)["child-pid"])
        except (ValueError, KeyError):  # it could not begin, and has said why
            return sandboxed, None
    mountpoints = _hold(sandboxed, inside, order) if order["held"] else None
    if order["network"] is not None:
        _connect(order["network"], sandboxed, inside)
    os.write(released, b"1")
    return sandboxed, mountpoints


def _hold(sandboxed: int, inside: int, order: dict[str, Any]) -> held_places.Mountpoints:
    """Hold places of the sandbox by a process that enters it."""
    held = {
        directory: [held_places.HeldPlace(tuple(names), *rest) for names, *rest in listed]
        for directory, listed in order["held"].items()
    }
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Two for each directory of the app. bubblewrap, which was started before, has the limit that was.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        mountpoints = held_places.Mountpoints(order["held_folder"])
        for directory, places in held.items():
            mountpoints.share(_open_exactly(directory), places)
    except OSError as error:
        _end(order["held_folder"], error)
    held_places.await_set_up(inside)
    holder = os.fork()
    if holder == 0:
        try:
            held_places.hold(inside, held, mountpoints)
        except OSError as error:
            _end(", ".join(held), error)
        os._exit(0)
    _process, status = os.waitpid(holder, 0)
    if status != 0:  # it has said why
        os.kill(sandboxed, signal.SIGKILL)
        _kill_all()
        with suppress(OSError, ValueError):  # the next command tries again
            mountpoints.remove()
        os._exit(CANNOT_CONFINE)
    mountpoints.note_created()
    return mountpoints


def _connect(network: dict[str, Any], sandboxed: int, inside: int) -> None:
    """Give the sandbox a network that leads to other machines, by a process that speaks for it."""
    slirp4netns = network["program"]
    _await_loopback(inside)
    ready, making_ready = os.pipe()
    ending, _end_of_the_launcher = os.pipe()
    for descriptor in (making_ready, ending):
        os.set_inheritable(descriptor, True)
    users = f"--userns-path=/proc/{inside}/ns/user"
    arguments = ["--configure", "--mtu=65520", "--disable-host-loopback", users]
    pipes = ["--ready-fd", str(making_ready), "--exit-fd", str(ending)]
    _start([slirp4netns, *arguments, *pipes, str(inside), "tap0"], quiet=True)
    os.close(making_ready)
    os.close(ending)
    if os.read(ready, 1) != b"1":
        os.kill(sandboxed, signal.SIGKILL)
        _end(slirp4netns, OSError(0, "it gave the command no network"))
    closed = [*network["closed"], *_own_addresses()]
    router = os.fork()
    if router == 0:
        try:
            _close_networks(inside, closed, network["open"])
        except OSError as error:
            _end("routes", error)
        os._exit(0)
    _process, status = os.waitpid(router, 0)
    if status != 0:  # it has said why
        os.kill(sandboxed, signal.SIGKILL)
        os._exit(CANNOT_CONFINE)


def _own_addresses() -> list[str]:
    """Return this machine's addresses. What listens there isn't on loopback, and is still this machine's."""
    with open("/proc/net/fib_trie", encoding="ascii") as trie:  # noqa: PTH123
        lines = [line.split() for line in trie]
    pairs = zip(lines, lines[1:], strict=False)  # noqa: RUF007 - the launcher imports little
    return sorted({f"{leaf[1]}/32" for leaf, kind in pairs if leaf[0] == "|--" and kind[-1] == "LOCAL"})


def _close_networks(inside: int, closed: list[str], opened: list[str]) -> None:
    """Enter a sandbox's network for good, and make networks unreachable there: what counts is the address that is connected to.

    The sandboxed process has no capability to change routes. Source: rtnetlink(7).
    """
    network = os.open(f"/proc/{inside}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    users = fcntl.ioctl(network, held_places.OWNING_USERS)
    for namespace, kind in ((users, _NEW_USERS), (network, _NEW_NETWORK)):
        _call("setns", _libc.setns, namespace, kind)
    gateway = struct.pack("=HH4s", 8, _RTA_GATEWAY, socket.inet_aton(_GATEWAY))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as routes:
        for kind, listed, attribute in ((_UNREACHABLE, closed, b""), (_UNICAST, opened, gateway)):
            for each in listed:
                address, _slash, bits = each.partition("/")
                route = struct.pack("=8BI", socket.AF_INET, int(bits), 0, 0, _MAIN_TABLE, _STATIC, 0, kind, 0)
                route += struct.pack("=HH4s", 8, _RTA_DESTINATION, socket.inet_aton(address)) + attribute
                routes.send(struct.pack("=IHHII", 16 + len(route), _NEW_ROUTE, _MAKE_OR_REPLACE, 1, 0) + route)
                problem = -struct.unpack_from("=i", routes.recv(1 << 12), 16)[0]
                if problem:
                    raise OSError(problem, f"{each}: {os.strerror(problem)}")


def _await_loopback(inside: int) -> None:
    """Wait until bubblewrap has set up the namespace's loopback: it gives up when slirp4netns was first."""
    for _round in range(_LOOPBACK_ROUNDS):
        with suppress(OSError), open(f"/proc/{inside}/net/fib_trie", encoding="ascii") as addresses:  # noqa: PTH123
            if "127.0.0.1" in addresses.read():
                return
        time.sleep(_PAUSE_SECONDS)


def _become_user(uid: int, gid: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        _end(f"user {uid}", error)


def _drop_capabilities() -> None:
    for capability in range(_MOST_CAPABILITIES):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # those that are not there, or not ours to drop, are refused
    header, none = struct.pack("=Ii", _CAPABILITIES_VERSION_3, 0), bytes(24)
    _call("capset", _libc.capset, ctypes.c_char_p(header), ctypes.c_char_p(none))


def _restrict(readable: list[str], writable: list[str], exact: list[str]) -> None:
    """Let this process read and run what lies below some paths, and change what lies below others; nothing else.

    ``exact``: those of these paths in which no link may be.
    """
    version = _call(
        "landlock_create_ruleset", _libc.syscall, _LANDLOCK_CREATE_RULESET, None, _size(0), _flags(_VERSION_FLAG)
    )
    handled = _ALL_OF_VERSION_3
    if version >= _IOCTL_VERSION:
        handled |= _IOCTL_DEV
    attributes = struct.pack("=QQ", handled, _TCP)
    if version >= _SCOPES_VERSION:
        attributes += struct.pack("=Q", _SCOPES)
    rules = _call(
        "landlock_create_ruleset",
        _libc.syscall,
        _LANDLOCK_CREATE_RULESET,
        ctypes.c_char_p(attributes),
        _size(len(attributes)),
        _flags(0),
    )
    for path in readable:
        _allow(rules, path, _READ, exactly=path in exact)
    for path in writable:
        _allow(rules, path, handled & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV), exactly=path in exact)
    _call("landlock_restrict_self", _libc.syscall, _LANDLOCK_RESTRICT_SELF, rules, _flags(0))


def _allow(rules: int, path: str, access: int, *, exactly: bool) -> None:
    try:
        place = descriptors.open_place(path) if exactly else os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # a system without /lib64, for example
    except OSError as error:
        _end(path, error)
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        access &= _OF_FILES
    rule = struct.pack("=Qi", access, place)
    _call(
        f"landlock_add_rule({path})",
        _libc.syscall,
        _LANDLOCK_ADD_RULE,
        rules,
        _PATH_BENEATH,
        ctypes.c_char_p(rule),
        _flags(0),
    )
    os.close(place)


def _filter(code: bytes) -> None:
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
    _call("seccomp", _libc.prctl, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0)


def _become(program: list[str]) -> NoReturn:
    try:
        os.execvp(program[0], program)  # noqa: S606 - an argument list, no shell
    except OSError as error:
        _end(program[0], error)


def _call(what: str, function: Any, *arguments: Any) -> int:
    result = int(function(*arguments))
    if result < 0:
        _end(what, OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno())))
    return result


def _end(what: str, error: OSError) -> NoReturn:
    sys.stderr.write(f"turngate could not confine this command, so it was not started: {what}: {error.strerror}\n")
    sys.stderr.flush()
    os._exit(CANNOT_CONFINE)


def _size(size: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(size)


def _flags(flags: int) -> ctypes.c_uint32:
    return ctypes.c_uint32(flags)


if __name__ == "__main__":
    main()
