"""The system-call filter of a program in a cell, assembled here as classic BPF (seccomp(2), SECCOMP_SET_MODE_FILTER).

Refused calls answer EPERM, so that honest programs continue. Calls of another architecture or of x32 kill the process,
because their numbers have another meaning and no honest program makes them. `clone3` answers ENOSYS: its flags are in
memory that a filter cannot read, and the C library then falls back to `clone`, whose flags are checked.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.walls import refused, syscalls

_RET_KILL: Final = 0x8000_0000
_RET_ERRNO: Final = 0x0005_0000
_RET_NOTIFY: Final = 0x7FC0_0000
_RET_ALLOW: Final = 0x7FFF_0000

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
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


#: All namespace flags of clone(2).
_NAMESPACE_FLAGS: Final = 0x7E02_0000

_FCNTL: Final = (72, 25)
_F_SETSIG: Final = 10
_F_SETLEASE: Final = 1024
_F_NOTIFY: Final = 1026
_CLONE: Final = (56, 220)
_CLONE3: Final = 435
_SOCKET: Final = (41, 198)
_SOCKETPAIR: Final = (53, 199)
_SETSOCKOPT: Final = (54, 208)
_TCP_ULP: Final = 31
_SOCK_STREAM: Final = 1
_SOCK_DGRAM: Final = 2
_SOCK_RAW: Final = 3
"""For AF_UNIX it means SOCK_DGRAM."""
_SOCK_TYPE: Final = 0xF
_IOCTL: Final = (16, 29)
_PRCTL: Final = (157, 167)
_PR_SCHED_CORE: Final = 62
_PRLIMIT: Final = (302, 261)
_SETPRIORITY: Final = (141, 140)
_PRIO_USER: Final = 2
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_IPPROTO_TCP: Final = 6
_TIOCSTI: Final = 0x5412
_TIOCLINUX: Final = 0x541C
_IOCTL_TYPE: Final = 0xFF00
_FILE_IOCTLS: Final = (0x6600, 0x5800, 0x7600)
"""The ioctls of file systems ('f', 'X', 'v'): they change flags, attributes and versions of their owner's files."""
_AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NEW_LISTENER: Final = 1 << 3
_WAIT_KILLABLE: Final = 1 << 5
"""A signal does not interrupt a call that init has received (Linux 5.19; the Landlock rung has 6.12)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Properties of the sandbox for which a filter is assembled."""

    namespaces: bool
    """Separate ipc, network, mount and user namespaces. Without them programs can name objects and files of the host.
    Init then makes the calls for its programs that change metadata."""
    counted: bool = True
    """A control group counts their memory, including kernel memory."""
    stopping: bool = False
    """Environments are stopped by SIGSTOP."""
    loopback: bool = False
    """TCP over IPv4 is admitted, in a network namespace that has its loopback device alone."""


class _Step(NamedTuple):
    code: int
    value: int
    #: Number of steps to skip if the test holds, and if it does not.
    when: int = 0
    otherwise: int = 0


def _fail(number: int) -> _Step:
    return _Step(_RETURN, _RET_ERRNO | number)


_REFUSE: Final = _fail(errno.EPERM)
_NO_PROTOCOL_MODULES: Final = _Step(_JUMP_EQUAL, _TCP_ULP, 0, 1), _fail(errno.ENOPROTOOPT)
"""No protocol above TCP in the kernel (TLS and others). No other level of options has this number."""
_LEAF: Final = 4


def assemble(machine: str, rules: Rules) -> bytes:
    """Return the filter as an array of `struct sock_filter`."""
    column = 0 if machine == "x86_64" else 1
    steps = [_Step(_LOAD, _ARCH), _Step(_JUMP_EQUAL, _AUDIT_ARCH[machine], 1), _Step(_RETURN, _RET_KILL)]
    steps.append(_Step(_LOAD, _NR))
    if machine == "x86_64":
        steps += [_Step(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), _Step(_RETURN, _RET_KILL)]
    steps += [_Step(_JUMP_EQUAL, _CLONE3, 0, 1), _fail(errno.ENOSYS)]
    steps += _sockets(column, rules)
    steps += _by_argument(column, rules)
    return b"".join(
        struct.pack("=HBBI", step.code, step.when, step.otherwise, step.value)
        for step in steps + _search(sorted(_answers(column, rules).items()))
    )


def _sockets(column: int, rules: Rules) -> list[_Step]:
    """Allow AF_UNIX only. Without namespaces allow only pairs, because Landlock does not mediate named sockets.

    A pair of datagram sockets could still send to any named socket of the host, so it is refused too.
    """
    no_family = _fail(errno.EAFNOSUPPORT)
    family = _Step(_JUMP_EQUAL, _AF_UNIX, 1, 0)
    pair = _when_argument(_SOCKETPAIR[column], 0, family, no_family)
    if rules.loopback:
        return [*_unix_or_tcp(_SOCKET[column]), *pair, *_when_argument(_SETSOCKOPT[column], 2, *_NO_PROTOCOL_MODULES)]
    if rules.namespaces:
        return [*_when_argument(_SOCKET[column], 0, family, no_family), *pair]
    steps = [_Step(_JUMP_EQUAL, _SOCKET[column], 0, 1), no_family, *pair]
    for kind in (_SOCK_DGRAM, _SOCK_RAW):
        steps += _when_masked(_SOCKETPAIR[column], 1, _SOCK_TYPE, kind, _fail(errno.EPROTONOSUPPORT))
    return steps


def _unix_or_tcp(number: int) -> list[_Step]:
    """Allow AF_UNIX, and AF_INET with the type of a stream and TCP as its protocol.

    Everything else is as if the kernel did not have it: programs try IPv6, datagrams and netlink, and go on without.
    """
    no_family, no_type = _fail(errno.EAFNOSUPPORT), _fail(errno.EPROTONOSUPPORT)
    inet = [
        _Step(_LOAD, _argument(1)),
        _Step(_AND, _SOCK_TYPE),
        _Step(_JUMP_EQUAL, _SOCK_STREAM, 1, 0),
        no_type,
        _Step(_LOAD, _argument(2)),
        _Step(_JUMP_EQUAL, 0, 2, 0),
        _Step(_JUMP_EQUAL, _IPPROTO_TCP, 1, 0),
        no_type,
    ]
    reload = _Step(_LOAD, _NR)
    family = [
        _Step(_LOAD, _argument(0)),
        _Step(_JUMP_EQUAL, _AF_UNIX, 2 + len(inet), 0),
        _Step(_JUMP_EQUAL, _AF_INET, 1, 0),
        no_family,
        *inet,
        reload,
    ]
    return [_Step(_JUMP_EQUAL, number, 0, len(family)), *family]


def _by_argument(column: int, rules: Rules) -> list[_Step]:
    """Refuse calls with certain arguments."""
    steps = _when_argument(_CLONE[column], 0, _Step(_JUMP_SET, _NAMESPACE_FLAGS, 0, 1), _REFUSE)
    for request in (_TIOCSTI, _TIOCLINUX):
        steps += _when_argument(_IOCTL[column], 1, _equal(request), _REFUSE)
    # A core-scheduling cookie would keep other processes off the sibling core, which was not granted.
    steps += _when_argument(_PRCTL[column], 0, _equal(_PR_SCHED_CORE), _REFUSE)
    # Limits and priorities of other processes: init may have the same user, and the next program is a copy of init.
    steps += _when_argument(_PRLIMIT[column], 0, _Step(_JUMP_EQUAL, 0, 1, 0), _REFUSE)
    steps += _when_argument(_SETPRIORITY[column], 1, _Step(_JUMP_EQUAL, 0, 1, 0), _REFUSE)
    steps += _when_argument(_SETPRIORITY[column], 0, _equal(_PRIO_USER), _REFUSE)
    # A lease blocks writers of a file, even on a read-only mount if the toolchain belongs to the manager's user.
    for command in (_F_SETLEASE, _F_NOTIFY, *((_F_SETSIG,) if rules.stopping else ())):
        steps += _when_argument(_FCNTL[column], 1, _equal(command), _REFUSE)
    if not rules.namespaces:
        for kind in _FILE_IOCTLS:
            steps += _when_masked(_IOCTL[column], 1, _IOCTL_TYPE, kind, _fail(errno.ENOTTY))
    return steps


def _answers(column: int, rules: Rules) -> dict[int, _Step]:
    """Return the answer for each call that is refused whatever its arguments, by number."""
    tables = [(refused.EVERYWHERE, _REFUSE), (refused.INOTIFY, _fail(errno.EMFILE))]
    if not rules.counted or not rules.namespaces:
        tables.append((refused.UNCOUNTED, _REFUSE))
    if not rules.namespaces:
        tables.append((refused.SHARED_IPC, _REFUSE))
        tables += [(refused.OTHERS_METADATA, _REFUSE), (refused.OTHERS_ATTRIBUTES, _fail(errno.ENOTSUP))]
        tables.append((refused.SUPERVISED, _Step(_RETURN, _RET_NOTIFY)))
    if rules.stopping:
        tables.append((refused.STOPPING, _REFUSE))
    return {
        number: answer
        for calls, answer in tables
        for numbers in calls.values()
        if (number := numbers[column]) is not None
    }


def _search(answers: list[tuple[int, _Step]]) -> list[_Step]:
    """Answer these numbers and allow all others, by binary search.

    The kernel runs the filter once for every system call at installation, and again for calls whose answer depends on
    an argument.
    """
    if len(answers) <= _LEAF:
        tests = [[_Step(_JUMP_EQUAL, number, 0, 1), answer] for number, answer in answers]
        return [step for test in tests for step in test] + [_Step(_RETURN, _RET_ALLOW)]
    middle = len(answers) // 2
    below, above = _search(answers[:middle]), _search(answers[middle:])
    return [_Step(_JUMP_GREATER_EQUAL, answers[middle][0], len(below), 0), *below, *above]


def _equal(value: int) -> _Step:
    return _Step(_JUMP_EQUAL, value, 0, 1)


def _when_argument(number: int, index: int, test: _Step, verdict: _Step) -> list[_Step]:
    """For the call `number`: load an argument, test it, answer `verdict` if the test holds, and reload the number."""
    return [_Step(_JUMP_EQUAL, number, 0, 4), _Step(_LOAD, _argument(index)), test, verdict, _Step(_LOAD, _NR)]


def _when_masked(number: int, index: int, mask: int, value: int, verdict: _Step) -> list[_Step]:
    """Do the same with only the bits of `mask`."""
    load = [_Step(_LOAD, _argument(index)), _Step(_AND, mask)]
    return [_Step(_JUMP_EQUAL, number, 0, 5), *load, _equal(value), verdict, _Step(_LOAD, _NR)]


class Filter:
    """A filter that is ready to install after a fork: its memory is prepared once, installation is one system call."""

    def __init__(self, rules: Rules) -> None:
        self._machine = platform.machine()
        if self._machine not in _AUDIT_ARCH:
            raise OSError(f"the sandbox's filter supports x86_64 and aarch64, not {self._machine}")
        program = assemble(self._machine, rules)
        self.supervised = not rules.namespaces
        """True if calls of `refused.SUPERVISED` wait for an answer through `install`'s descriptor."""
        self._steps = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: unsigned short len, then (aligned) a pointer.
        self._fprog = ctypes.create_string_buffer(
            struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(self._steps))
        )

    def install(self) -> int:
        """Filter this process and its future children, permanently. Needs no_new_privs (or CAP_SYS_ADMIN).

        Returns the descriptor of a supervised filter (closed on exec); 0 for another filter.
        """
        number = {"x86_64": 317, "aarch64": 277}[self._machine]
        flags = _NEW_LISTENER | _WAIT_KILLABLE if self.supervised else 0
        return syscalls.syscall("seccomp", number, 1, flags, ctypes.byref(self._fprog))
