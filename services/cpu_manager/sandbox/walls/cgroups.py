"""Control groups for one action at a time: limits before it, counts after it. Version 1 (as root) and 2 (delegated).

A group is created once for a slot and reused: creating one costs a millisecond, joining one a few microseconds. The
cell joins by itself, through descriptors that are opened here, so that all its processes are counted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

PREFIX: Final = "treadle-"
MOUNT: Final = Path("/sys/fs/cgroup")
CLEANUP_BYTES: Final = 16 << 20
"""A reused group that holds more than this after its action (page cache) is emptied, so that peaks stay correct."""


class Group(Protocol):
    """The control group of one slot."""

    joining: tuple[int, ...]
    """Descriptors to which a process writes `0` to join."""

    @property
    def name(self) -> str: ...
    def set_limits(self, memory_bytes: int, pids: int) -> None: ...

    def limit_socket_memory(self, limit_bytes: int) -> None:
        """Limit the buffers of TCP sockets, where the limit of memory does not count them."""
        ...

    def reset_counts(self) -> None:
        """Reset CPU time, peak and kills."""
        ...

    def cpu_s(self) -> float: ...
    def peak_memory_bytes(self) -> int: ...
    def out_of_memory(self) -> bool: ...
    def kill(self) -> None: ...
    def remove(self) -> None: ...


class Hierarchy(Protocol):
    """The place of a manager's groups."""

    @property
    def directories(self) -> tuple[Path, ...]: ...
    def make(self, name: str) -> Group: ...
    def remove(self) -> None: ...


def read(path: Path) -> str:
    return path.read_text(encoding="ascii")


def write(path: Path, text: str) -> None:
    # One unbuffered write(2): the kernel parses each write separately.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


class Files:
    """The files of one group. They stay open after their first use: an access then costs 3 us instead of 20."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[tuple[str, int], int] = {}

    def _descriptor(self, name: str, flags: int) -> int:
        descriptor = self._open.get((name, flags))
        if descriptor is None:
            descriptor = self._open[name, flags] = os.open(self._directory / name, flags | os.O_CLOEXEC)
        return descriptor

    def number(self, name: str) -> int:
        """Return the only number in a file."""
        return int(os.pread(self._descriptor(name, os.O_RDONLY), 64, 0))

    def counter(self, name: str, key: str) -> int:
        """Return the value of one line of a flat-keyed file; 0 if there is no such line."""
        for line in os.pread(self._descriptor(name, os.O_RDONLY), 4096, 0).decode("ascii").splitlines():
            found, _, value = line.partition(" ")
            if found == key:
                return int(value)
        return 0

    def write(self, name: str, text: str) -> None:
        # One write(2): the kernel parses each write separately.
        os.pwrite(self._descriptor(name, os.O_WRONLY), text.encode("ascii"), 0)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def remove(directory: Path) -> None:
    """Remove an empty group. Waits up to two seconds for the end of its last processes."""
    for _ in range(200):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
        else:
            return


def kill(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in read(directory / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
    # Frozen processes do not die (version 1). They were killed before the thaw, so they never run again.
    with contextlib.suppress(OSError):
        write(directory / "freezer.state", "THAWED")


def own_groups() -> dict[str, str]:
    """Controller -> path of this process's own group ("" is version 2)."""
    own: dict[str, str] = {}
    for line in read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def remove_tree(directory: Path) -> None:
    """Kill the remaining processes in a dead manager's groups, and remove the groups."""
    if not directory.is_dir():
        return
    for child in directory.iterdir():
        if child.is_dir():
            kill(child)
            remove(child)
    remove(directory)


def sweep(instance: str, directories: Iterable[Path]) -> None:
    """Remove the groups that a dead manager recorded. Any other recorded directory is left alone."""
    for directory in directories:
        if directory.name == f"{PREFIX}{instance}" and directory.is_relative_to(MOUNT):
            with contextlib.suppress(OSError):
                remove_tree(directory)
