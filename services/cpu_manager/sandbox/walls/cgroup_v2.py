"""Control groups, version 2: one hierarchy with a subtree that was delegated to this user."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.cpu_manager.sandbox.walls import cgroups
from services.cpu_manager.sandbox.walls.cgroups import (
    CLEANUP_BYTES,
    MOUNT,
    PREFIX,
    Files,
    Group,
    own_groups,
    read,
    remove_tree,
    write,
)

_V2_CONTROLLERS: Final = ("memory", "pids")
_LEAF: Final = f"{PREFIX}manager"


@dataclass(slots=True)
class GroupV2:
    """One directory in the unified hierarchy."""

    directory: Path
    files: Files
    joining: tuple[int, ...] = ()
    _limit: int = 0
    _pids: int = 0
    _kills: int = 0
    _cpu_before: float = 0.0
    _peak: int = -1
    """A descriptor of memory.peak that was reset (Linux 6.12), or -1."""

    @classmethod
    def make(cls, parent: Path, name: str) -> GroupV2:
        directory = parent / name
        directory.mkdir(exist_ok=True)
        group = cls(directory, Files(directory), (os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC),))
        with contextlib.suppress(OSError):
            group.files.write("memory.swap.max", "0")
        return group

    def set_limits(self, memory_bytes: int, pids: int) -> None:
        """Set the limits and reset the counts. The group contains no program, at most a waiting init."""
        if self.files.number("memory.current") > CLEANUP_BYTES:
            with contextlib.suppress(OSError):
                self.files.write("memory.reclaim", str(1 << 40))
        if memory_bytes != self._limit:
            self.files.write("memory.max", str(memory_bytes))
            self._limit = memory_bytes
        if pids != self._pids:
            self.files.write("pids.max", str(pids))
            self._pids = pids
        self.reset_counts()

    def limit_socket_memory(self, limit_bytes: int) -> None:
        """See `Group.limit_socket_memory`. Version 2 counts these buffers as memory."""

    def reset_counts(self) -> None:
        self._reset_peak()
        self._kills = self._oom_kills()
        self._cpu_before = self._cpu_total()

    def _reset_peak(self) -> None:
        """Reset the peak. Since Linux 6.12 each descriptor has its own peak; before, the peak covers all time."""
        try:
            if self._peak < 0:
                self._peak = os.open(self.directory / "memory.peak", os.O_RDWR | os.O_CLOEXEC)
            os.write(self._peak, b"reset")
        except OSError:
            self._close_peak()

    def _close_peak(self) -> None:
        if self._peak >= 0:
            os.close(self._peak)
            self._peak = -1

    @property
    def name(self) -> str:
        return self.directory.name

    def _cpu_total(self) -> float:
        return self.files.counter("cpu.stat", "usage_usec") / 1e6

    def cpu_s(self) -> float:
        return self._cpu_total() - self._cpu_before

    def peak_memory_bytes(self) -> int:
        if self._peak >= 0:
            return int(os.pread(self._peak, 32, 0))
        return self.files.number("memory.current")

    def _oom_kills(self) -> int:
        return self.files.counter("memory.events", "oom_kill")

    def out_of_memory(self) -> bool:
        return self._oom_kills() > self._kills

    def kill(self) -> None:
        try:
            self.files.write("cgroup.kill", "1")
        except OSError:
            cgroups.kill(self.directory)

    def remove(self) -> None:
        for descriptor in self.joining:
            os.close(descriptor)
        self.joining = ()
        self._close_peak()
        self.files.close()
        cgroups.remove(self.directory)


def _v2_mount() -> Path:
    for candidate in (MOUNT, MOUNT / "unified"):
        if (candidate / "cgroup.controllers").exists():
            return candidate
    raise OSError("no cgroup v2 is mounted under /sys/fs/cgroup")


@dataclass(slots=True)
class HierarchyV2:
    """Groups beside the manager in a delegated subtree, because version 2 forbids processes in inner groups."""

    parent: Path

    @classmethod
    def make_for(cls, instance: str) -> HierarchyV2:
        mount = _v2_mount()
        own = mount / own_groups().get("", "/").lstrip("/")
        if own.name == _LEAF:  # an earlier manager moved itself, and this process was started from there
            own = own.parent
        missing = set(_V2_CONTROLLERS) - set(read(own / "cgroup.controllers").split())
        if missing:
            raise OSError(
                f"cgroup v2 at {own} lacks {', '.join(sorted(missing))}; try `systemd-run --user -p Delegate=yes`"
            )
        if "memory" not in read(own / "cgroup.subtree_control"):
            cls._move_to_leaf(own)
        parent = own / f"{PREFIX}{instance}"
        parent.mkdir(exist_ok=True)
        write(parent / "cgroup.subtree_control", "+memory +pids")
        return cls(parent)

    @staticmethod
    def _move_to_leaf(own: Path) -> None:
        """Move the delegated group's processes into a leaf, then delegate its controllers."""
        leaf = own / _LEAF
        leaf.mkdir(exist_ok=True)
        for pid in read(own / "cgroup.procs").split():
            write(leaf / "cgroup.procs", pid)
        write(own / "cgroup.subtree_control", "+memory +pids")

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self.parent,)

    def make(self, name: str) -> Group:
        return GroupV2.make(self.parent, name)

    def remove(self) -> None:
        remove_tree(self.parent)
