"""Linux system calls that Python 3.11 does not offer, by ctypes. Every failure is an `OSError` that names the call.

Imported before forks and used between fork and exec: little is allocated, and importing only looks up the C library.
Cost: one to two microseconds a call, besides the kernel's.
"""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWCGROUP: Final = 0x0200_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 0x1
_MOUNT_ATTR_NOSUID: Final = 0x2
_MOUNT_ATTR_NODEV: Final = 0x4

_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08

#: Numbers by machine. Numbers above 423 are the same on all machines.
_NUMBERS: Final = {
    "x86_64": {"capset": 126, "pivot_root": 155, "process_vm_readv": 310, "utimensat": 280},
    "aarch64": {"capset": 91, "pivot_root": 41, "process_vm_readv": 270, "utimensat": 88},
}
_PIDFD_SEND_SIGNAL: Final = 424
_CLOSE_RANGE: Final = 436
_OPENAT2: Final = 437
_MOUNT_SETATTR: Final = 442
_FCHMODAT2: Final = 452


def _number(name: str) -> int:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(f"the sandbox supports x86_64 and aarch64, not {machine}")
    return _NUMBERS[machine][name]


def syscall(name: str, number: int, *arguments: object) -> int:
    """Make a raw system call. Return its result; raise `OSError` with the call's name."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _error(name)
    return result


def _error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")


def _check(name: str, result: int) -> None:
    if result != 0:
        raise _error(name)


def unshare(flags: int) -> None:
    """Leave the shared namespaces in `flags`."""
    _check(f"unshare({flags:#x})", _libc.unshare(flags))


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace of `descriptor` (a pid namespace: only future children enter it)."""
    _check("setns", _libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """Mount a file system or a bind, with the old call that every kernel has."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(f"mount({kind or source} on {target})", result)


def umount(target: str) -> None:
    """Unmount lazily: removed from the tree at once, freed when unused."""
    _check(f"umount({target})", _libc.umount2(target.encode(), MNT_DETACH))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def seal_tree(path: str, *, devices: bool = False) -> None:
    """Make a whole mount tree read-only, without set-user-id programs (mount_setattr, Linux 5.12).

    Args:
        devices: keep device files usable. Devices can be written on a read-only mount.
    """
    attr = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV))
    size = ctypes.c_size_t(ctypes.sizeof(attr))
    syscall(
        "mount_setattr",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        ctypes.c_char_p(path.encode()),
        _AT_RECURSIVE,
        ctypes.byref(attr),
        size,
    )


def pivot_to(new_root: str) -> None:
    """Make `new_root` (a mount point) the root of this mount namespace, and detach the old root."""
    os.chdir(new_root)
    syscall("pivot_root", _number("pivot_root"), ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    umount(".")
    os.chdir("/")


def prctl(option: int, argument: int = 0, more: int = 0) -> None:
    """Set one attribute of this process or thread."""
    zero = ctypes.c_ulong(0)
    result = _libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(more), zero, zero)
    _check(f"prctl({option}, {argument})", result)


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


_CAP_HEADER = _CapHeader(version=0x2008_0522, pid=0)
_NO_CAPS = (ctypes.c_uint32 * 6)()


def drop_bounding_set() -> None:
    """Empty the capability bounding set, for all capabilities of this kernel. Needs CAP_SETPCAP."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return


def drop_capabilities() -> None:
    """Give up every capability of this thread, including ambient ones."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    syscall("capset", _number("capset"), ctypes.byref(_CAP_HEADER), _NO_CAPS)


def close_range(first: int, last: int) -> None:
    """Close the descriptors `first..last`, both included. An empty range is allowed."""
    if first <= last:
        syscall("close_range", _CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), 0)


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process except `kept`."""
    first = 0
    for descriptor in sorted(set(kept)):
        close_range(first, descriptor - 1)
        first = descriptor + 1
    close_range(first, 0xFFFF_FFFF)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open `path` only if it and every link on the way stay beneath `directory` (openat2). Return a descriptor."""
    return _open(directory, os.fsencode(path), flags, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)


def open_without_magic(directory: int, path: bytes, flags: int) -> int:
    """Open `path`, wherever it leads, but not through /proc links to open files. Return a descriptor."""
    return _open(directory, path, flags, _RESOLVE_NO_MAGICLINKS)


def _open(directory: int, path: bytes, flags: int, resolve: int) -> int:
    how = _OpenHow(flags=flags | os.O_CLOEXEC, resolve=resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    return syscall("openat2", _OPENAT2, directory, ctypes.c_char_p(path), ctypes.byref(how), size)


def signal_pidfd(pidfd: int, number: int) -> None:
    """Send a signal to exactly the process of `pidfd`. Raise ProcessLookupError if it has ended."""
    syscall("pidfd_send_signal", _PIDFD_SEND_SIGNAL, pidfd, number, None, 0)


class _Part(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def read_memory(thread: int, address: int, size: int) -> bytes:
    """Read another process's memory; fewer than `size` bytes if it ends earlier. Needs the right to trace it."""
    kept = ctypes.create_string_buffer(size)
    here, there = _Part(ctypes.addressof(kept), size), _Part(address, size)
    one = ctypes.c_ulong(1)
    arguments = (thread, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong(0))
    count = syscall("process_vm_readv", _number("process_vm_readv"), *arguments)
    return kept.raw[:count]


def ioctl(descriptor: int, request: int, argument: ctypes.Array[ctypes.c_char]) -> None:
    """Make an ioctl with a structure that the kernel reads or fills."""
    if _libc.ioctl(descriptor, ctypes.c_ulong(request), argument) < 0:
        raise _error(f"ioctl({request:#x})")


def set_mode(descriptor: int, mode: int) -> None:
    """Call chmod(2) for the file of a descriptor, including O_PATH descriptors (Linux 6.6)."""
    syscall("fchmodat2", _FCHMODAT2, descriptor, ctypes.c_char_p(b""), mode, _AT_EMPTY_PATH)


def set_times(descriptor: int, times: bytes | None) -> None:
    """Call utimensat(2) for the file of a descriptor, including O_PATH. `times` as the kernel reads them; None: now."""
    syscall("utimensat", _number("utimensat"), descriptor, ctypes.c_char_p(b""), times, _AT_EMPTY_PATH)
