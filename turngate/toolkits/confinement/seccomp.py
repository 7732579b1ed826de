"""The system calls that a confined process must not make, as a filter program for the kernel (seccomp(2)).

Pure: it makes bytes. The numbers are those of Linux's `unistd` tables for x86-64 and AArch64.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Mapping
from typing import Final

# Classic BPF: an instruction is a code, two jump offsets and a constant (linux/filter.h).
_LOAD, _AND, _JUMP_EQUAL, _JUMP_SET, _JUMP_MORE_OR_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data`` (linux/seccomp.h); of an argument the low half, both machines being little-endian."""
_X32_BIT: Final = 0x40000000

AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NONE: Final = -1
"""AArch64 has only the newer calls."""
_REFUSED: Final = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "personality": (135, 92),
}
"""System call → its number on x86-64 and on AArch64."""
_SYSTEM_V_IPC: Final = {
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}
_OF_OTHER_FILES: Final = {
    "inotify_init": (253, _NONE),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    **{
        f"{of}{step}xattr": (188 + 3 * at + way, 5 + 3 * at + way)
        for at, step in enumerate(("set", "get", "list", "remove"))
        for way, of in enumerate(("", "l", "f"))
    },
    **{f"{step}xattrat": (463 + at, 463 + at) for at, step in enumerate(("set", "get", "list", "remove"))},
    "file_getattr": (468, 468),
    "file_setattr": (469, 469),
}
"""What Landlock lets a process do with files that it can't open: learn the names in their directories, and read and change their
extended attributes. Programs do without all of these, where a system doesn't have them."""
_SIGNALS: Final = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
_OF_OTHER_PROCESSES: Final = {
    "prlimit64": ((302, 261), 0),
    "setpriority": ((141, 140), 1),
    "sched_setparam": ((142, 118), 0),
    "sched_setscheduler": ((144, 119), 0),
    "sched_setaffinity": ((203, 122), 0),
    "sched_setattr": ((314, 274), 0),
    "ioprio_set": ((251, 30), 1),
}
"""What changes another process's limits, priority or processors, and which argument says whose; 0 is the caller."""
_WHICH: Final = {"setpriority": 0, "ioprio_set": 1}
"""Argument 0 of those with two: a process, and not a group or a user."""
_WITH_MODE: Final = {
    "chmod": ((90, _NONE), 1),
    "fchmod": ((91, 52), 1),
    "fchmodat": ((268, 53), 2),
    "fchmodat2": ((452, 452), 2),
    "creat": ((85, _NONE), 1),
    "mknod": ((133, _NONE), 1),
    "mknodat": ((259, 33), 2),
}
"""What gives a file its permissions, and which argument has them."""
_OPENS: Final = {"open": ((2, _NONE), 1), "openat": ((257, 56), 2)}
"""Likewise, with the flags before it: without these it makes no file, and the mode may be anything."""
_CREATES: Final = 0o20000100  # O_CREAT, O_TMPFILE
_OPENAT2: Final = (437, 437)
"""Its mode is in memory, where no filter can look; programs fall back to openat."""
_SET_USER_OR_GROUP: Final = 0o6000
_FCNTL: Final = (72, 25)
_SET_OWNERS: Final = (8, 15)
"""F_SETOWN, F_SETOWN_EX: whom the kernel signals when there is input (fcntl(2))."""
_SET_LEASE: Final = 1024
"""F_SETLEASE makes others wait who open a file that this process only reads (fcntl(2))."""
_IOCTL: Final = (16, 29)
_KIND_OF_IOCTL, _OF_TERMINALS = 0xFF00, ord("T") << 8
"""Terminals, pipes and descriptors themselves. All other kinds are of devices or file systems, which change a file's flags, seal
it or make subvolumes through a descriptor that only reads; Landlock looks at devices only (ioctl(2), ioctl_fslabel(2))."""
_SOCKET, _CLONE, _CLONE3 = (41, 198), (56, 220), (435, 435)
_NAMESPACES: Final = 0x7E020080  # CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_ORDINARY_SOCKETS: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: those that namespaces confine. AF_VSOCK, for one, knows no namespaces."""


Instruction = tuple[int, int, int, int]
Code = list[Instruction]
_ONLY_OF_TERMINALS: Final[Code] = [
    (_AND, 0, 0, _KIND_OF_IOCTL),
    (_JUMP_EQUAL, 1, 0, _OF_TERMINALS),
    (_RETURN, 0, 0, _ERRNO | errno.ENOTTY),
]


def program(machine: str, *, namespaces: bool, signals: bool = True) -> bytes:
    """Return the filter for a machine ("x86_64", "aarch64").

    Args:
        machine: as ``os.uname().machine`` says it.
        namespaces: whether namespaces confine the process. Where they don't, it makes no socket, no System V or POSIX queue and
            shared memory, watches no files, knows no extended attributes or flags of files, and changes no limit or priority but
            its own.
        signals: whether it may send signals: only where the kernel lets them reach none but its own processes.

    Raises:
        KeyError: there are no numbers for this machine.
    """
    architecture, column = AUDIT_ARCHITECTURES[machine], ("x86_64", "aarch64").index(machine)
    code: Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),  # a 32-bit program has other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_MORE_OR_EQUAL, 0, 1, _X32_BIT), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _calls(column, _REFUSED)
    # glibc falls back to clone, whose flags a filter can see.
    code += _calls(column, {"clone3": _CLONE3, "openat2": _OPENAT2}, errno.ENOSYS)
    code += _refuse_bits(_CLONE[column], 0, _NAMESPACES)
    code += _set_user_or_group(column)
    code += _refuse_values(_FCNTL[column], 1, (_SET_LEASE,))
    if not namespaces:
        code += [*_calls(column, _SYSTEM_V_IPC), *_of_other_processes(column)]
        code += _calls(column, _OF_OTHER_FILES, errno.EOPNOTSUPP)
        code += _where(_IOCTL[column], 1, _ONLY_OF_TERMINALS)
    if not signals:
        code += [*_calls(column, _SIGNALS), *_refuse_values(_FCNTL[column], 1, _SET_OWNERS)]
    code += _allow_only(_SOCKET[column], 0, _ORDINARY_SOCKETS if namespaces else (), errno.EACCES)
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _set_user_or_group(column: int) -> Iterator[Instruction]:
    for numbers, argument in _WITH_MODE.values():
        yield from _refuse_bits(numbers[column], argument, _SET_USER_OR_GROUP)
    for numbers, flags in _OPENS.values():
        yield from _refuse_bits(numbers[column], flags + 1, _SET_USER_OR_GROUP, only=(flags, _CREATES))


def _of_other_processes(column: int) -> Iterator[Instruction]:
    for name, (numbers, argument) in _OF_OTHER_PROCESSES.items():
        if name in _WHICH:
            yield from _allow_only(numbers[column], 0, (_WHICH[name],), errno.EPERM)
        yield from _allow_only(numbers[column], argument, (0,), errno.EPERM)


# Each of these begins with the number of the system call loaded, and leaves it loaded for what follows.


def _calls(column: int, table: Mapping[str, tuple[int, int]], error: int = errno.EPERM) -> Iterator[Instruction]:
    """Refuse system calls whatever their arguments."""
    for numbers in table.values():
        if numbers[column] != _NONE:
            yield from ((_JUMP_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _ERRNO | error))


def _refuse_bits(number: int, argument: int, bits: int, *, only: tuple[int, int] | None = None) -> Code:
    """Refuse a system call whose argument has one of these bits; ``only``: and another argument one of others."""
    check: Code = [(_JUMP_SET, 0, 1, bits), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    if only is None:
        return _where(number, argument, check)
    other, others = only
    return _where(number, other, [(_JUMP_SET, 0, 3, others), _argument(argument), *check])


def _refuse_values(number: int, argument: int, values: tuple[int, ...]) -> Code:
    """Refuse a system call whose argument is one of these."""
    refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    return _where(number, argument, [each for value in values for each in ((_JUMP_EQUAL, 0, 1, value), refused)])


def _allow_only(number: int, argument: int, values: tuple[int, ...], error: int) -> Code:
    """Refuse a system call whose argument is none of these."""
    checks = [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return _where(number, argument, [*checks, (_RETURN, 0, 0, _ERRNO | error)])


def _where(number: int, argument: int, check: Code) -> Code:
    if number == _NONE:
        return []
    look = [_argument(argument), *check, (_LOAD, 0, 0, _NUMBER)]
    return [(_JUMP_EQUAL, 0, len(look), number), *look]


def _argument(place: int) -> Instruction:
    return _LOAD, 0, 0, _FIRST_ARGUMENT + 8 * place
