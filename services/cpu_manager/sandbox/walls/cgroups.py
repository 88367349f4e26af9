"""Control groups for one action at a time: limits before it, counts after it. Version 1 (as root) and 2 (delegated).

A group is made once for a slot and used again: making one costs a millisecond, joining one a few microseconds. The
joining is done by the cell itself, through descriptors opened here, so that nothing it does escapes the accounting.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

PREFIX: Final = "treadle-"
_MOUNT: Final = Path("/sys/fs/cgroup")
_V1_CONTROLLERS: Final = ("memory", "pids", "cpuacct")
_V2_CONTROLLERS: Final = ("memory", "pids")
_LEAF: Final = f"{PREFIX}manager"
_LEFTOVER_BYTES: Final = 16 << 20
"""A pooled group holding more than this after its action (page cache) is emptied, so that peaks stay true."""


class Group(Protocol):
    """The control group of one slot."""

    joining: tuple[int, ...]
    """Descriptors to which a process writes `0` to enter."""

    def arm(self, memory_bytes: int, pids: int) -> None: ...
    def cpu_s(self) -> float: ...
    def peak_memory_bytes(self) -> int: ...
    def out_of_memory(self) -> bool: ...
    def kill(self) -> None: ...
    def remove(self) -> None: ...


class Hierarchy(Protocol):
    """Where a manager makes its groups."""

    @property
    def directories(self) -> tuple[Path, ...]: ...
    def make(self, name: str) -> Group: ...
    def remove(self) -> None: ...


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii")


def _write(path: Path, text: str) -> None:
    # One write(2), unbuffered: the kernel parses each write on its own.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)


def _counter(path: Path, name: str) -> int:
    """The value of one line of a flat-keyed file; 0 when it has none."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _remove(directory: Path) -> None:
    """Remove an empty group; its last process may need a moment to be reaped."""
    for _ in range(100):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.005)
        else:
            return


def _kill(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in _read(directory / "cgroup.procs").split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)


@dataclass(slots=True)
class GroupV1:
    """One directory in each of the memory, pids and cpuacct hierarchies."""

    memory: Path
    pids: Path
    cpuacct: Path
    joining: tuple[int, ...] = ()
    _limit: int = 0
    _pids: int = 0
    _swap: bool = False
    _kills: int = 0

    @classmethod
    def make(cls, parents: dict[str, Path], name: str) -> GroupV1:
        paths = {controller: parents[controller] / name for controller in _V1_CONTROLLERS}
        for path in paths.values():
            path.mkdir(parents=True, exist_ok=True)
        joining = tuple(os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in paths.values())
        swap = (paths["memory"] / "memory.memsw.limit_in_bytes").exists()
        return cls(paths["memory"], paths["pids"], paths["cpuacct"], joining, _swap=swap)

    def arm(self, memory_bytes: int, pids: int) -> None:
        """Set the limits and start the counts anew. No program is in the group, at most a waiting init."""
        if int(_read(self.memory / "memory.usage_in_bytes")) > _LEFTOVER_BYTES:
            with contextlib.suppress(OSError):  # a waiting init is in it already: only caches are to go
                _write(self.memory / "memory.force_empty", "0")
        if memory_bytes != self._limit:
            names = ["memory.limit_in_bytes"] + (["memory.memsw.limit_in_bytes"] if self._swap else [])
            # The sum with swap may never be below the memory alone: the order depends on the direction.
            growing = memory_bytes > self._limit > 0
            for name in reversed(names) if growing else names:
                _write(self.memory / name, str(memory_bytes))
            self._limit = memory_bytes
        if pids != self._pids:
            _write(self.pids / "pids.max", str(pids))
            self._pids = pids
        _write(self.memory / "memory.max_usage_in_bytes", "0")
        _write(self.cpuacct / "cpuacct.usage", "0")
        self._kills = self._oom_kills()

    def cpu_s(self) -> float:
        return int(_read(self.cpuacct / "cpuacct.usage")) / 1e9

    def peak_memory_bytes(self) -> int:
        return int(_read(self.memory / "memory.max_usage_in_bytes"))

    def _oom_kills(self) -> int:
        return _counter(self.memory / "memory.oom_control", "oom_kill")

    def out_of_memory(self) -> bool:
        return self._oom_kills() > self._kills

    def kill(self) -> None:
        _kill(self.pids)

    def remove(self) -> None:
        for descriptor in self.joining:
            os.close(descriptor)
        self.joining = ()
        for path in (self.memory, self.pids, self.cpuacct):
            _remove(path)


@dataclass(slots=True)
class GroupV2:
    """One directory in the unified hierarchy."""

    directory: Path
    joining: tuple[int, ...] = ()
    _limit: int = 0
    _pids: int = 0
    _kills: int = 0
    _cpu_before: float = 0.0
    _peak: int = -1
    """A descriptor of memory.peak which we have reset (Linux 6.12), or -1."""

    @classmethod
    def make(cls, parent: Path, name: str) -> GroupV2:
        directory = parent / name
        directory.mkdir(exist_ok=True)
        group = cls(directory, (os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC),))
        with contextlib.suppress(OSError):
            _write(directory / "memory.swap.max", "0")
        return group

    def arm(self, memory_bytes: int, pids: int) -> None:
        """Set the limits and start the counts anew. No program is in the group, at most a waiting init."""
        if int(_read(self.directory / "memory.current")) > _LEFTOVER_BYTES:
            with contextlib.suppress(OSError):
                _write(self.directory / "memory.reclaim", str(1 << 40))
        if memory_bytes != self._limit:
            _write(self.directory / "memory.max", str(memory_bytes))
            self._limit = memory_bytes
        if pids != self._pids:
            _write(self.directory / "pids.max", str(pids))
            self._pids = pids
        self._reset_peak()
        self._kills = self._oom_kills()
        self._cpu_before = self._cpu_total()

    def _reset_peak(self) -> None:
        """Since 6.12 a write starts a peak of its own for that descriptor; before, the peak is the group's for ever."""
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

    def _cpu_total(self) -> float:
        return _counter(self.directory / "cpu.stat", "usage_usec") / 1e6

    def cpu_s(self) -> float:
        return self._cpu_total() - self._cpu_before

    def peak_memory_bytes(self) -> int:
        if self._peak >= 0:
            return int(os.pread(self._peak, 32, 0))
        return int(_read(self.directory / "memory.current"))

    def _oom_kills(self) -> int:
        return _counter(self.directory / "memory.events", "oom_kill")

    def out_of_memory(self) -> bool:
        return self._oom_kills() > self._kills

    def kill(self) -> None:
        try:
            _write(self.directory / "cgroup.kill", "1")
        except OSError:
            _kill(self.directory)

    def remove(self) -> None:
        for descriptor in self.joining:
            os.close(descriptor)
        self.joining = ()
        self._close_peak()
        _remove(self.directory)


def _own_groups() -> dict[str, str]:
    """Controller -> path of this process's own group ("" is version 2)."""
    own: dict[str, str] = {}
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    return own


def _v2_mount() -> Path:
    for candidate in (_MOUNT, _MOUNT / "unified"):
        if (candidate / "cgroup.controllers").exists():
            return candidate
    raise OSError("no cgroup v2 is mounted under /sys/fs/cgroup")


@dataclass(slots=True)
class HierarchyV1:
    """Groups under this process's own group in each controller, so that the manager's own limits hold for its cells."""

    parents: dict[str, Path]

    @classmethod
    def make_for(cls, instance: str) -> HierarchyV1:
        own = _own_groups()
        parents: dict[str, Path] = {}
        for controller in _V1_CONTROLLERS:
            base = _MOUNT / controller
            if controller not in own or not base.is_dir():
                raise OSError(f"cgroup v1 controller {controller} is not mounted at {base}")
            # In a container without a cgroup namespace the path is the host's and not visible here: use the mount.
            inside = base / own[controller].lstrip("/")
            parents[controller] = (inside if inside.is_dir() else base) / f"{PREFIX}{instance}"
        for path in parents.values():
            path.mkdir(exist_ok=True)
        return cls(parents)

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(self.parents.values())

    def make(self, name: str) -> Group:
        return GroupV1.make(self.parents, name)

    def remove(self) -> None:
        for path in self.parents.values():
            _remove_tree(path)


@dataclass(slots=True)
class HierarchyV2:
    """Groups beside the manager in a delegated subtree: version 2 forbids processes in inner groups."""

    parent: Path

    @classmethod
    def make_for(cls, instance: str) -> HierarchyV2:
        mount = _v2_mount()
        own = mount / _own_groups().get("", "/").lstrip("/")
        if own.name == _LEAF:  # an earlier manager stepped aside, and we were started from there
            own = own.parent
        missing = set(_V2_CONTROLLERS) - set(_read(own / "cgroup.controllers").split())
        if missing:
            raise OSError(
                f"cgroup v2 at {own} lacks {', '.join(sorted(missing))}; try `systemd-run --user -p Delegate=yes`"
            )
        if "memory" not in _read(own / "cgroup.subtree_control"):
            cls._step_aside(own)
        parent = own / f"{PREFIX}{instance}"
        parent.mkdir(exist_ok=True)
        _write(parent / "cgroup.subtree_control", "+memory +pids")
        return cls(parent)

    @staticmethod
    def _step_aside(own: Path) -> None:
        """Move the delegated group's processes into a leaf, then hand its controllers down."""
        leaf = own / _LEAF
        leaf.mkdir(exist_ok=True)
        for pid in _read(own / "cgroup.procs").split():
            _write(leaf / "cgroup.procs", pid)
        _write(own / "cgroup.subtree_control", "+memory +pids")

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self.parent,)

    def make(self, name: str) -> Group:
        return GroupV2.make(self.parent, name)

    def remove(self) -> None:
        _remove_tree(self.parent)


def _remove_tree(directory: Path) -> None:
    """Kill what is left in a dead manager's groups and remove them."""
    if not directory.is_dir():
        return
    for child in directory.iterdir():
        if child.is_dir():
            _kill(child)
            _remove(child)
    _remove(directory)


def sweep(instance: str, directories: Iterable[Path]) -> None:
    """Remove the groups that a dead manager noted; any other directory it might name is left alone."""
    for directory in directories:
        if directory.name == f"{PREFIX}{instance}" and directory.is_relative_to(_MOUNT):
            with contextlib.suppress(OSError):
                _remove_tree(directory)
