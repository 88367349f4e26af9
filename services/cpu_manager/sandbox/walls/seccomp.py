"""The system-call filter of a program in a cell, assembled by us as classic BPF (seccomp(2), SECCOMP_SET_MODE_FILTER).

Refused calls answer EPERM, so that honest programs go on; calls of another architecture or of x32 kill the process,
because their numbers mean something else and no honest program makes them. `clone3` answers ENOSYS: its flags lie in
memory where a filter cannot look, and the C library then falls back to `clone`, whose flags are checked.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from typing import Final, NamedTuple

from services.cpu_manager.sandbox.walls import syscalls

_RET_KILL: Final = 0x8000_0000
_RET_ERRNO: Final = 0x0005_0000
_RET_ALLOW: Final = 0x7FFF_0000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_SET: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_JUMP_GREATER_EQUAL: Final = 0x35
_RETURN: Final = 0x06

_NR: Final = 0
_ARCH: Final = 4
_X32_BIT: Final = 0x4000_0000


def _argument(index: int) -> int:
    """Offset of the low half of an argument (both machines are little-endian)."""
    return 16 + 8 * index


#: Everything that names a namespace in the flags of clone(2).
_NAMESPACE_FLAGS: Final = 0x7E02_0000

#: Refused always: (x86_64, aarch64) numbers; None where the machine has no such call.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "listns": (470, 470),
    "unshare": (272, 97),
    "setns": (308, 268),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "vmsplice": (278, 75),
}
#: Refused where no ipc namespace keeps them apart: System V and POSIX message objects outlive their makers.
_REFUSED_WITHOUT_NAMESPACES: Final[dict[str, tuple[int | None, int | None]]] = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
#: Refused where environments are stopped by SIGSTOP: a timer that sends SIGCONT would let one go on by itself.
_REFUSED_TO_THE_STOPPED: Final[dict[str, tuple[int | None, int | None]]] = {"timer_create": (222, 107)}
_FCNTL: Final = (72, 25)
_F_SETSIG: Final = 10
_CLONE: Final = (56, 220)
_CLONE3: Final = 435
_SOCKET: Final = (41, 198)
_SOCKETPAIR: Final = (53, 199)
_IOCTL: Final = (16, 29)
_PRLIMIT: Final = (302, 261)
_SETPRIORITY: Final = (141, 140)
_PRIO_USER: Final = 2
_AF_UNIX: Final = 1
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}


class _Step(NamedTuple):
    code: int
    value: int
    #: How many steps to skip when the test holds, and when it does not.
    when: int = 0
    otherwise: int = 0


_REFUSE: Final = _Step(_RETURN, _RET_ERRNO | errno.EPERM)
_LEAF: Final = 4


def assemble(machine: str, *, namespaces: bool, stopping: bool = False) -> bytes:
    """The filter as an array of `struct sock_filter`.

    In namespaces socket(AF_UNIX) is allowed. Without them no socket can be made at all (pairs still can), because
    Landlock does not stand between a program and a named socket of the host; nor can System V objects.
    `stopping` refuses what could send SIGCONT by itself while its sender is stopped.
    """
    column = 0 if machine == "x86_64" else 1
    steps = [_Step(_LOAD, _ARCH), _Step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1), _Step(_RETURN, _RET_KILL)]
    steps.append(_Step(_LOAD, _NR))
    if machine == "x86_64":
        steps += [_Step(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), _Step(_RETURN, _RET_KILL)]
    steps += [_Step(_JUMP_EQUAL, _CLONE3, 0, 1), _Step(_RETURN, _RET_ERRNO | errno.ENOSYS)]
    steps += _when_argument(_CLONE[column], 0, _Step(_JUMP_SET, _NAMESPACE_FLAGS, 0, 1), _REFUSE)
    family = _Step(_JUMP_EQUAL, _AF_UNIX, 1, 0)
    no_family = _Step(_RETURN, _RET_ERRNO | errno.EAFNOSUPPORT)
    if namespaces:
        steps += _when_argument(_SOCKET[column], 0, family, no_family)
    else:
        steps += [_Step(_JUMP_EQUAL, _SOCKET[column], 0, 1), no_family]
    steps += _when_argument(_SOCKETPAIR[column], 0, family, no_family)
    for request in (_TIOCSTI, _TIOCLINUX):
        steps += _when_argument(_IOCTL[column], 1, _Step(_JUMP_EQUAL, request, 0, 1), _REFUSE)
    # Limits and priorities of others: init may be of the same user, and the next program is a copy of it.
    steps += _when_argument(_PRLIMIT[column], 0, _Step(_JUMP_EQUAL, 0, 1, 0), _REFUSE)
    steps += _when_argument(_SETPRIORITY[column], 1, _Step(_JUMP_EQUAL, 0, 1, 0), _REFUSE)
    steps += _when_argument(_SETPRIORITY[column], 0, _Step(_JUMP_EQUAL, _PRIO_USER, 0, 1), _REFUSE)
    refused = _REFUSED if namespaces else {**_REFUSED, **_REFUSED_WITHOUT_NAMESPACES}
    if stopping:
        refused = {**refused, **_REFUSED_TO_THE_STOPPED}
        steps += _when_argument(_FCNTL[column], 1, _Step(_JUMP_EQUAL, _F_SETSIG, 0, 1), _REFUSE)
    steps += _search(sorted(number for numbers in refused.values() if (number := numbers[column]) is not None))
    return b"".join(struct.pack("=HBBI", step.code, step.when, step.otherwise, step.value) for step in steps)


def _search(refused: list[int]) -> list[_Step]:
    """Refuse these numbers, allow all others, by halving: the kernel walks the filter once for every call there is
    when it is installed, and again for calls whose answer depends on an argument.
    """
    if len(refused) <= _LEAF:
        tests = [[_Step(_JUMP_EQUAL, number, 0, 1), _REFUSE] for number in refused]
        return [step for test in tests for step in test] + [_Step(_RETURN, _RET_ALLOW)]
    middle = len(refused) // 2
    below, above = _search(refused[:middle]), _search(refused[middle:])
    return [_Step(_JUMP_GREATER_EQUAL, refused[middle], len(below), 0), *below, *above]


def _when_argument(number: int, index: int, test: _Step, verdict: _Step) -> list[_Step]:
    """If the call is `number`: load an argument, test it, perhaps answer `verdict`, and reload the number."""
    return [_Step(_JUMP_EQUAL, number, 0, 4), _Step(_LOAD, _argument(index)), test, verdict, _Step(_LOAD, _NR)]


class Filter:
    """A filter ready to be installed after a fork: its memory is laid out once, installing is one system call."""

    def __init__(self, *, namespaces: bool, stopping: bool = False) -> None:
        self._machine = platform.machine()
        if self._machine not in _AUDIT_ARCH:
            raise OSError(f"the sandbox's filter knows x86_64 and aarch64, not {self._machine}")
        program = assemble(self._machine, namespaces=namespaces, stopping=stopping)
        self._steps = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: unsigned short len, then (aligned) a pointer.
        self._fprog = ctypes.create_string_buffer(
            struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(self._steps))
        )

    def install(self) -> None:
        """Filter this process and all it will start, for ever. Needs no_new_privs (or CAP_SYS_ADMIN)."""
        number = {"x86_64": 317, "aarch64": 277}[self._machine]
        syscalls.syscall("seccomp", number, 1, 0, ctypes.byref(self._fprog))
