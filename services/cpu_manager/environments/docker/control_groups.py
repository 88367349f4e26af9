"""A running container's control groups, written past the engine: cores, freezing, and what was used.

The engine's own `update` takes 20 ms and its `pause` 14; a write to the kernel's file takes 10 us. Version 1 refuses an
empty cpuset while tasks are in it, so what takes the cores away between actions is freezing, in both versions. A frozen
process of version 1 hears SIGKILL only when thawed; one of version 2 hears it at once.

Version 2 cannot run beside version 1 on one host: it is held by tests on a recorded tree (docs/docker.md).
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
"""A process in the middle of a slow disk access freezes when that ends."""
_LOOK_S: Final = 0.001
_LOOKS: Final = 20
"""After so many in vain everything is thawed for an instant: version 1 may wait for ever for a process that was being
forked just then."""
_NEEDED: Final = ("cpuset", "freezer", "cpuacct", "memory")


class Mount(msgspec.Struct, frozen=True):
    """A mounted hierarchy of control groups."""

    root: str
    """Path of the group that is seen at the mount point."""
    point: Path
    controllers: frozenset[str]
    """Empty: version 2."""


class ControlGroups(Protocol):
    """Of one container. Every method costs microseconds and may block for them; `OSError` when the group is gone."""

    def give(self, cores: Iterable[int]) -> None:
        """Exactly these cores, for everything inside."""

    def thaw(self) -> None: ...

    def freeze(self) -> None:
        """Ask for it; it has happened when `frozen` says so."""

    def frozen(self) -> bool: ...

    def cpu_s(self) -> float:
        """Used so far by everything inside."""

    def forget_peak(self) -> None: ...

    def peak_memory_bytes(self) -> int:
        """The most since it was forgotten; since the beginning where this kernel cannot forget."""

    def memory_kills(self) -> int:
        """Processes that its memory limit has ended."""
        ...

    def close(self) -> None: ...


class _Words(Files):
    def word(self, name: str) -> str:
        """The file's one word."""
        return os.pread(self._descriptor(name, os.O_RDONLY), 64, 0).decode("ascii").strip()


class VersionOne:
    """One directory for each controller."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._cpuset, self._freezer, self._cpuacct, self._memory = (_Words(directories[name]) for name in _NEEDED)

    def give(self, cores: Iterable[int]) -> None:
        self._cpuset.write("cpuset.cpus", _listed(cores))

    def thaw(self) -> None:
        self._freezer.write("freezer.state", "THAWED")

    def freeze(self) -> None:
        self._freezer.write("freezer.state", "FROZEN")

    def frozen(self) -> bool:
        # The kernel counts when somebody reads: the first look may say FREEZING of a group that has frozen.
        return self._freezer.word("freezer.state") == "FROZEN"

    def cpu_s(self) -> float:
        return self._cpuacct.number("cpuacct.usage") / 1e9

    def forget_peak(self) -> None:
        self._memory.write("memory.max_usage_in_bytes", "0")

    def peak_memory_bytes(self) -> int:
        return self._memory.number("memory.max_usage_in_bytes")

    def memory_kills(self) -> int:
        return self._memory.counter("memory.oom_control", "oom_kill")

    def close(self) -> None:
        for files in (self._cpuset, self._freezer, self._cpuacct, self._memory):
            files.close()


class VersionTwo:
    """One directory."""

    def __init__(self, directory: Path) -> None:
        self._files = Files(directory)
        # Since Linux 6.12 a peak is forgotten for the descriptor that is written to; before that none can be.
        self._forgets = os.access(directory / "memory.peak", os.W_OK)
        flags = os.O_RDWR if self._forgets else os.O_RDONLY
        self._peak = os.open(directory / "memory.peak", flags | os.O_CLOEXEC)

    def give(self, cores: Iterable[int]) -> None:
        self._files.write("cpuset.cpus", _listed(cores))

    def thaw(self) -> None:
        self._files.write("cgroup.freeze", "0")

    def freeze(self) -> None:
        self._files.write("cgroup.freeze", "1")

    def frozen(self) -> bool:
        return self._files.counter("cgroup.events", "frozen") == 1

    def cpu_s(self) -> float:
        return self._files.counter("cpu.stat", "usage_usec") / 1e6

    def forget_peak(self) -> None:
        if self._forgets:
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
    """The control groups of a container's first process, as the engine numbers it.

    None where they are not ours to write: when the manager lives in other namespaces than the engine the number is
    nobody's here, or somebody else's, which the container's id in the group's name tells apart. None also where the
    kernel has no `memory.peak` (Linux 5.19).
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
        return VersionOne(one) if _ours(wanted, pid, container) else None
    two = _directory("", paths, mounts)
    if two is None or not _ours([two / "cpuset.cpus", two / "cgroup.freeze"], pid, container):
        return None
    return VersionTwo(two) if (two / "memory.peak").exists() else None


async def frozen(groups: ControlGroups) -> bool:
    """Freeze everything inside. False: something did not freeze within `FREEZE_S`."""
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


def _mounts(lines: list[str]) -> list[Mount]:
    found = []
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            root, point = before.split(" ")[3:5]
            names = frozenset(options.split(",")) if kind == "cgroup" else frozenset({""})
            found.append(Mount(root, Path(point), names))
    return found


def _directory(controller: str, paths: dict[str, str], mounts: list[Mount]) -> Path | None:
    """Where a controller's group of this path is to be seen; `""` is version 2."""
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


def _listed(cores: Iterable[int]) -> str:
    """As the kernel reads them: `0,2,3`."""
    return ",".join(str(core) for core in sorted(cores))
