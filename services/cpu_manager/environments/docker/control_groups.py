"""A running container's control groups, accessed without the engine: cores, freezing, and usage.

The engine's own `update` takes 20 ms and its `pause` 14; a write to the kernel's file takes 10 us. Version 1 refuses an
empty cpuset while it has tasks, so in both versions freezing takes the cores away between actions. A process frozen by
version 1 receives SIGKILL only after the thaw; one frozen by version 2 receives it at once.

Version 2 cannot run beside version 1 on one host: tests cover it with a recorded tree (docs/docker.md).
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from services.cpu_manager.sandbox.walls.cgroups import Files

FREEZE_S: Final = 10.0
"""Seconds. A process in the middle of a slow disk access freezes when the access ends."""
_LOOK_S: Final = 0.001
_LOOKS: Final = 20
"""After this many looks without success everything is thawed for an instant: version 1 may wait forever for a process
that was being forked at that moment."""
_NEEDED: Final = ("cpuset", "freezer", "cpuacct", "memory")


class CgroupMount(msgspec.Struct, frozen=True):
    """A mounted hierarchy of control groups."""

    root: str
    """Path of the group that is visible at the mount point."""
    point: Path
    controllers: frozenset[str]
    """Empty: version 2."""


class ControlGroups(Protocol):
    """Groups of one container. Each method blocks for microseconds, and raises `OSError` when the group is gone."""

    def assign(self, cores: Iterable[int]) -> None:
        """Assign exactly these cores to all processes inside."""

    def thaw(self) -> None: ...

    def freeze(self) -> None:
        """Begin freezing; `frozen` returns True when it is complete."""

    def frozen(self) -> bool: ...

    def cpu_s(self) -> float:
        """CPU seconds used so far by all processes inside."""

    def reset_peak(self) -> None: ...

    def peak_memory_bytes(self) -> int:
        """Peak since `reset_peak`; since the beginning if this kernel cannot reset it."""

    def memory_kills(self) -> int:
        """Processes killed by its memory limit."""
        ...

    def close(self) -> None: ...


class _CgroupFiles(Files):
    def word(self, name: str) -> str:
        """Return the only word in a file."""
        return os.pread(self._descriptor(name, os.O_RDONLY), 64, 0).decode("ascii").strip()


class CgroupV1:
    """One directory for each controller."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._cpuset, self._freezer, self._cpuacct, self._memory = (_CgroupFiles(directories[name]) for name in _NEEDED)

    def assign(self, cores: Iterable[int]) -> None:
        self._cpuset.write("cpuset.cpus", _format_cores(cores))

    def thaw(self) -> None:
        self._freezer.write("freezer.state", "THAWED")

    def freeze(self) -> None:
        self._freezer.write("freezer.state", "FROZEN")

    def frozen(self) -> bool:
        # The kernel updates the state on reads: the first look may return FREEZING for a frozen group.
        return self._freezer.word("freezer.state") == "FROZEN"

    def cpu_s(self) -> float:
        return self._cpuacct.number("cpuacct.usage") / 1e9

    def reset_peak(self) -> None:
        self._memory.write("memory.max_usage_in_bytes", "0")

    def peak_memory_bytes(self) -> int:
        return self._memory.number("memory.max_usage_in_bytes")

    def memory_kills(self) -> int:
        return self._memory.counter("memory.oom_control", "oom_kill")

    def close(self) -> None:
        for files in (self._cpuset, self._freezer, self._cpuacct, self._memory):
            files.close()


class CgroupV2:
    """One directory."""

    def __init__(self, directory: Path) -> None:
        self._files = Files(directory)
        # Since Linux 6.12 a peak is reset for the descriptor that is written to; before that it cannot be reset.
        self._resets_peak = os.access(directory / "memory.peak", os.W_OK)
        flags = os.O_RDWR if self._resets_peak else os.O_RDONLY
        self._peak = os.open(directory / "memory.peak", flags | os.O_CLOEXEC)

    def assign(self, cores: Iterable[int]) -> None:
        self._files.write("cpuset.cpus", _format_cores(cores))

    def thaw(self) -> None:
        self._files.write("cgroup.freeze", "0")

    def freeze(self) -> None:
        self._files.write("cgroup.freeze", "1")

    def frozen(self) -> bool:
        return self._files.counter("cgroup.events", "frozen") == 1

    def cpu_s(self) -> float:
        return self._files.counter("cpu.stat", "usage_usec") / 1e6

    def reset_peak(self) -> None:
        if self._resets_peak:
            os.pwrite(self._peak, b"0", 0)

    def peak_memory_bytes(self) -> int:
        return int(os.pread(self._peak, 64, 0))

    def memory_kills(self) -> int:
        return self._files.counter("memory.events", "oom_kill")

    def close(self) -> None:
        self._files.close()
        if self._peak >= 0:
            os.close(self._peak)
            self._peak = -1


def control_groups_of(pid: int, container: str, proc: Path = Path("/proc")) -> ControlGroups | None:
    """Return the control groups of a container's first process, by the process id that the engine reports.

    None if they are not ours to write. If the manager and the engine are in different namespaces, the id does not exist
    here or belongs to another process; the container's id in the group's name detects that. None also if the kernel
    has no `memory.peak` (Linux 5.19).
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        mounts = _mounts((proc / "self" / "mountinfo").read_text(encoding="utf-8").splitlines())
    except OSError:
        return None
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    one = {name: directory for name in _NEEDED if (directory := _directory(name, paths, mounts)) is not None}
    if len(one) == len(_NEEDED):
        wanted = [one["cpuset"] / "cpuset.cpus", one["freezer"] / "freezer.state"]
        return CgroupV1(one) if _ours(wanted, pid, container) else None
    two = _directory("", paths, mounts)
    if two is None or not _ours([two / "cpuset.cpus", two / "cgroup.freeze"], pid, container):
        return None
    return CgroupV2(two) if (two / "memory.peak").exists() else None


async def frozen(groups: ControlGroups) -> bool:
    """Freeze everything inside. Return False if something did not freeze within `FREEZE_S`."""
    groups.freeze()
    deadline = asyncio.get_running_loop().time() + FREEZE_S
    for look in itertools.count(1):
        if groups.frozen():
            return True
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(_LOOK_S)
        if look % _LOOKS == 0:
            groups.thaw()
        groups.freeze()
    return False


def _mounts(lines: list[str]) -> list[CgroupMount]:
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            root, point = before.split(" ")[3:5]
            names = frozenset(options.split(",")) if kind == "cgroup" else frozenset({""})
            found.append(CgroupMount(root, Path(point), names))
    return found


def _directory(controller: str, paths: dict[str, str], mounts: list[CgroupMount]) -> Path | None:
    """Return the directory where a controller's group of this path is visible; `""` is version 2."""
    path = paths.get(controller)
    if path is None or ".." in path:
        return None
    for mount in mounts:
        if controller in mount.controllers and (path + "/").startswith(mount.root.rstrip("/") + "/"):
            return mount.point / path.removeprefix(mount.root).lstrip("/")
    return None


def _ours(files: list[Path], pid: int, container: str) -> bool:
    directory = files[0].parent
    if container not in str(directory) or not all(os.access(file, os.W_OK) for file in files):
        return False
    return pid in _numbers(directory / "cgroup.procs")


def _numbers(procs: Path) -> list[int]:
    return [int(pid) for pid in procs.read_text(encoding="ascii").split()]


def _format_cores(cores: Iterable[int]) -> str:
    """Format cores as the kernel reads them: `0,2,3`."""
    return ",".join(str(core) for core in sorted(cores))
