"""Metadata calls that init makes for a program (seccomp_unotify(2)), on files of its private directory alone.

Landlock mediates neither chmod(2) nor utimensat(2): a program could so change every file that it can name and that
is its user's, who may be the manager's, or that everybody may write. The filter holds such a call and hands it to
init. Init opens what the arguments name, looks where that lies, and makes the call on the descriptor. A path is read
once and never used again, so nothing can be exchanged between the check and the call. What lies elsewhere is answered
EPERM. Init's time is charged to the program; its cores are not the program's, or a fork bomb would hold up its own end.

About 0.15 ms a call. Init reads the path from the program's memory, so the kernel has to allow a parent to trace its
children (kernel.yama.ptrace_scope at most 1); else calls by path answer EPERM.
"""

# Plain calls and no path objects: a page touched after a fork is a page copied.
# ruff: noqa: PTH115

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from typing import Final

from services.cpu_manager.sandbox.inside import wire
from services.cpu_manager.sandbox.walls import refused, syscalls

_RECEIVE: Final = 0xC050_2100
_ANSWER: Final = 0xC018_2101
_STILL_THERE: Final = 0x4008_2102
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
"""id, thread, flags; number, architecture, instruction pointer and arguments of the call."""
_REPLY: Final = struct.Struct("=QqiI")

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_MODE: Final = 0o1777
"""Bits that a program may set: a set-user-id file would be the manager's."""
_PAGE: Final = 4096
_PATH_BYTES: Final = 4096
_TIMES_BYTES: Final = 32
"""Two `struct timespec`."""


class Supervisor:
    """Init's side: waits for its children and for the calls of one program after another."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._names = {numbers[_column()]: name for name, numbers in refused.SUPERVISED.items()}
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._listener = -1
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def follow(self) -> None:
        """Begin with the program that was forked last."""
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def hand_over(self, listener: int) -> None:
        """Give the filter's descriptor to init. In the program's process."""
        wire.send(self._theirs, b"L", (listener,))
        os.close(listener)

    def forget(self) -> None:
        """Let a child be as if init had never supervised. In the program's process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def wait(self, reap: Callable[[], bool]) -> None:
        """Make calls until `reap`, called whenever a child may have ended, returns True."""
        poller = select.poll()
        for descriptor in (self._woken, self._ours.fileno()):
            poller.register(descriptor, select.POLLIN)
        try:
            while not reap():
                for descriptor, events in poller.poll():
                    if descriptor == self._woken:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._woken, _PAGE)
                    elif descriptor == self._ours.fileno():
                        self._take_listener()
                        poller.register(self._listener, select.POLLIN)
                    elif events & select.POLLIN:
                        self._serve()
                    else:  # nobody is left behind the filter
                        poller.unregister(descriptor)
        finally:
            if self._listener >= 0:
                os.close(self._listener)
                self._listener = -1

    def _take_listener(self) -> None:
        _, (self._listener,) = wire.receive(self._ours, 1)

    def _serve(self) -> None:
        """Make one call and answer it. A caller that was killed meanwhile needs no answer."""
        notice = ctypes.create_string_buffer(_NOTICE.size)
        with contextlib.suppress(OSError):
            _ioctl(self._listener, _RECEIVE, notice)
            call, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice.raw)
            error = 0
            try:
                self._make(call, thread, self._names[number], arguments)
            except OSError as refusal:
                error = refusal.errno or errno.EPERM
            _ioctl(self._listener, _ANSWER, ctypes.create_string_buffer(_REPLY.pack(call, 0, -error, 0)))

    def _make(self, call: int, thread: int, name: str, arguments: list[int]) -> None:
        opened = _Opened(thread)
        try:
            times = None
            if name == "utimensat":
                descriptor = opened.at(arguments[0], arguments[1], arguments[3])
                times = _read(thread, arguments[2], _TIMES_BYTES) if arguments[2] else None
            elif name == "fchmod":
                descriptor = opened.at(arguments[0], 0, 0)
            elif name == "chmod":
                descriptor = opened.at(_AT_FDCWD, arguments[0], 0, required=True)
            else:
                flags = arguments[3] if name == "fchmodat2" else 0
                descriptor = opened.at(arguments[0], arguments[1], flags, required=True)
            # The caller still waits, so the thread's number has meant nobody else.
            _ioctl(self._listener, _STILL_THERE, ctypes.create_string_buffer(struct.pack("=Q", call)))
            self._demand_own(descriptor)
            if name == "utimensat":
                syscalls.set_times(descriptor, times)
            else:
                _set_mode(descriptor, arguments[1 if name in {"chmod", "fchmod"} else 2])
        finally:
            opened.close()

    def _demand_own(self, descriptor: int) -> None:
        """Only the private directory and what lies in it. Landlock lets nothing else be moved or linked there."""
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if place != self._home and not place.startswith(f"{self._home}/"):
            raise PermissionError(errno.EPERM, place)


class _Opened:
    """What the arguments of a thread's call name, as descriptors that stand for the file and no more (O_PATH)."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._descriptors: list[int] = []

    def at(self, base: int, path: int, flags: int, *, required: bool = False) -> int:
        """The file of a call with a base, the address of a path (0: the base itself), and AT_ flags."""
        if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
            raise OSError(errno.EINVAL, "flags")
        if not path:
            if required:
                raise OSError(errno.EFAULT, "no path")
            return self._base(base)
        name = _text(self._thread, path)
        if not name and not flags & _AT_EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "empty path")
        directory = self._base(base)
        if not name:
            return directory
        follow = os.O_NOFOLLOW if flags & _AT_SYMLINK_NOFOLLOW else 0
        return self._keep(syscalls.open_without_magic(directory, name, os.O_PATH | follow))

    def _base(self, number: int) -> int:
        number = ctypes.c_int(number & 0xFFFF_FFFF).value
        link = "cwd" if number == _AT_FDCWD else f"fd/{number}"
        try:
            return self._keep(os.open(f"/proc/{self._thread}/{link}", os.O_PATH | os.O_CLOEXEC))
        except FileNotFoundError:
            raise OSError(errno.EBADF, link) from None

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    if mode & 0o7777 & ~_MODE:
        raise PermissionError(errno.EPERM, "set-user-id")
    syscalls.set_mode(descriptor, mode & _MODE)


def _text(thread: int, address: int) -> bytes:
    """A path of the program's memory, which may end at the end of a page that nothing follows."""
    found = b""
    while len(found) < _PATH_BYTES:
        text, end, _ = _read(thread, address + len(found), _PAGE - (address + len(found)) % _PAGE).partition(b"\0")
        found += text
        if end:
            return found
    raise OSError(errno.ENAMETOOLONG, "path")


def _read(thread: int, address: int, size: int) -> bytes:
    content = syscalls.read_memory(thread, address, size)
    if len(content) < size:
        raise OSError(errno.EFAULT, "memory")
    return content


def _ioctl(descriptor: int, request: int, argument: ctypes.Array[ctypes.c_char]) -> None:
    syscalls.ioctl(descriptor, request, argument)


def _column() -> int:
    return 0 if os.uname().machine == "x86_64" else 1


def _nothing(*_: object) -> None:
    """So that SIGCHLD wakes init: an ignored signal wakes nobody."""
