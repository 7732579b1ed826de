"""The system calls that a confined process must not make, as a filter program for the kernel (seccomp(2)).

Pure: it makes bytes. The numbers are those of Linux's `unistd` tables for x86-64 and AArch64.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

# Classic BPF: an instruction is a code, two jump offsets and a constant (linux/filter.h).
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_MORE_OR_EQUAL, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in ``struct seccomp_data`` (linux/seccomp.h); of an argument the low half, both machines being little-endian."""
_X32_BIT: Final = 0x40000000

AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

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
_SOCKET, _CLONE, _CLONE3 = (41, 198), (56, 220), (435, 435)
_NAMESPACES: Final = 0x7E020080  # CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_ORDINARY_SOCKETS: Final = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: those that namespaces confine. AF_VSOCK, for one, knows no namespaces."""


def program(machine: str, *, sockets: bool, ipc: bool) -> bytes:
    """Return the filter for a machine ("x86_64", "aarch64").

    Args:
        machine: as ``os.uname().machine`` says it.
        sockets: whether sockets of the ordinary families may be made: only where namespaces confine them.
        ipc: whether System V and POSIX queues and shared memory may be used: likewise.

    Raises:
        KeyError: there are no numbers for this machine.
    """
    architecture, column = AUDIT_ARCHITECTURES[machine], ("x86_64", "aarch64").index(machine)
    refused = [numbers[column] for numbers in _REFUSED.values()]
    if not ipc:
        refused += [numbers[column] for numbers in _SYSTEM_V_IPC.values()]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),  # a 32-bit program has other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code += [(_JUMP_MORE_OR_EQUAL, 0, 1, _X32_BIT), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for number in refused:
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    # glibc falls back to clone, whose flags a filter can see.
    code += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    code += [
        (_JUMP_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_SET, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    families = _ORDINARY_SOCKETS if sockets else ()
    code += [(_JUMP_EQUAL, 0, len(families) * 2 + 2, _SOCKET[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in families:
        code += [(_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    code += [(_RETURN, 0, 0, _ERRNO | errno.EACCES), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
