"""Metadata calls that init makes for a program (seccomp_unotify(2)), only on files of its private directory.

Landlock mediates neither chmod(2) nor utimensat(2). Without this a program could change every file that it can name, if
the file belongs to its user (perhaps the manager's user) or is writable by everybody. The filter holds such a call and
passes it to init. Init opens the file that the arguments name, checks its location, and makes the call on the
descriptor. It reads a path once, so nothing can be exchanged between the check and the call. For files elsewhere it
answers EPERM.

About 0.15 ms a call. Init reads the path from the program's memory, so the kernel has to allow a parent to trace its
children (kernel.yama.ptrace_scope at most 1); otherwise calls by path answer EPERM.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH115

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

from shared.walls import syscalls

_AT_FDCWD: Final = -100
_AT_SYMLINK_NOFOLLOW: Final = 0x100
_AT_EMPTY_PATH: Final = 0x1000
_MODE: Final = 0o1777
"""Bits that a program may set. A set-user-id file would run as the manager's user."""
_PAGE: Final = 4096
_PATH_BYTES: Final = 4096
_TIMES_BYTES: Final = 32
"""Two `struct timespec`."""


class Metadata:
    """Makes the calls of `refused.SUPERVISED` on files of one private directory."""

    def __init__(self, home: str) -> None:
        self._home = home

    def make(self, thread: int, name: str, arguments: list[int], check_alive: Callable[[], None]) -> None:
        """Make the call `name` for a thread. Raise OSError with the caller's errno; `check_alive` raises if it died."""
        opened = _CallFiles(thread)
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
            # The caller still waits, so its thread id cannot have been reused for another process.
            check_alive()
            self._check_own(descriptor)
            if name == "utimensat":
                syscalls.set_times(descriptor, times)
            else:
                _set_mode(descriptor, arguments[1 if name in {"chmod", "fchmod"} else 2])
        finally:
            opened.close()

    def _check_own(self, descriptor: int) -> None:
        """Raise unless the file is in the private directory. Landlock prevents moving or linking other files there."""
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if place != self._home and not place.startswith(f"{self._home}/"):
            raise PermissionError(errno.EPERM, place)


class _CallFiles:
    """The files named by the arguments of a thread's call, as descriptors that only identify a file (O_PATH)."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._descriptors: list[int] = []

    def at(self, base: int, path: int, flags: int, *, required: bool = False) -> int:
        """Open the file of a call with a base, the address of a path (0: the base itself), and AT_ flags."""
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
        no_follow = os.O_NOFOLLOW if flags & _AT_SYMLINK_NOFOLLOW else 0
        return self._keep(syscalls.open_without_magic(directory, name, os.O_PATH | no_follow))

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
    """Read a path from the program's memory. It may end at the last byte of a page without a mapped successor."""
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
