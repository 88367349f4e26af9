"""Control groups, version 1: memory, pids and cpuacct, each a separate hierarchy. Only for root."""

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
    remove_tree,
)

_V1_CONTROLLERS: Final = ("memory", "pids", "cpuacct")


@dataclass(slots=True)
class GroupV1:
    """One directory in each of the memory, pids and cpuacct hierarchies."""

    paths: tuple[Path, ...]
    memory: Files
    pids: Files
    cpuacct: Files
    joining: tuple[int, ...] = ()
    _limit: int = 0
    _pids: int = 0
    _swap: bool = False
    _kills: int = 0
    _socket_limit: int = 0

    @classmethod
    def make(cls, parents: dict[str, Path], name: str) -> GroupV1:
        paths = {controller: parents[controller] / name for controller in _V1_CONTROLLERS}
        for path in paths.values():
            path.mkdir(parents=True, exist_ok=True)
        joining = tuple(os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in paths.values())
        swap = (paths["memory"] / "memory.memsw.limit_in_bytes").exists()
        memory, pids, cpuacct = (Files(paths[controller]) for controller in _V1_CONTROLLERS)
        return cls(tuple(paths.values()), memory, pids, cpuacct, joining, _swap=swap)

    @property
    def name(self) -> str:
        return self.paths[0].name

    def set_limits(self, memory_bytes: int, pids: int) -> None:
        """Set the limits and reset the counts. The group contains no program, at most a waiting init."""
        if self.memory.number("memory.usage_in_bytes") > CLEANUP_BYTES:
            with contextlib.suppress(OSError):  # a waiting init is in it already; only caches are to go
                self.memory.write("memory.force_empty", "0")
        if memory_bytes != self._limit:
            names = ["memory.limit_in_bytes"] + (["memory.memsw.limit_in_bytes"] if self._swap else [])
            # The limit with swap may never be below the limit without: the order of writes depends on the direction.
            growing = memory_bytes > self._limit > 0
            for name in reversed(names) if growing else names:
                self.memory.write(name, str(memory_bytes))
            self._limit = memory_bytes
        if pids != self._pids:
            self.pids.write("pids.max", str(pids))
            self._pids = pids
        self.reset_counts()

    def limit_socket_memory(self, limit_bytes: int) -> None:
        """See `Group.limit_socket_memory`. Raise OSError if this kernel does not count them."""
        if limit_bytes != self._socket_limit:
            self.memory.write("memory.kmem.tcp.limit_in_bytes", str(limit_bytes))
            self._socket_limit = limit_bytes

    def reset_counts(self) -> None:
        self.memory.write("memory.max_usage_in_bytes", "0")
        self.cpuacct.write("cpuacct.usage", "0")
        self._kills = self._oom_kills()

    def cpu_s(self) -> float:
        return self.cpuacct.number("cpuacct.usage") / 1e9

    def peak_memory_bytes(self) -> int:
        return self.memory.number("memory.max_usage_in_bytes")

    def _oom_kills(self) -> int:
        return self.memory.counter("memory.oom_control", "oom_kill")

    def out_of_memory(self) -> bool:
        return self._oom_kills() > self._kills

    def kill(self) -> None:
        cgroups.kill(self.paths[_V1_CONTROLLERS.index("pids")])

    def remove(self) -> None:
        for descriptor in self.joining:
            os.close(descriptor)
        self.joining = ()
        for files in (self.memory, self.pids, self.cpuacct):
            files.close()
        for path in self.paths:
            cgroups.remove(path)


def place_of(controller: str, own: dict[str, str]) -> Path:
    """Return this process's own group of a controller. Raise OSError if the controller is not mounted."""
    base = MOUNT / controller
    if controller not in own or not base.is_dir():
        raise OSError(f"cgroup v1 controller {controller} is not mounted at {base}")
    # In a container without a cgroup namespace the path is the host's and not visible here: use the mount itself.
    inside = base / own[controller].lstrip("/")
    return inside if inside.is_dir() else base


@dataclass(slots=True)
class HierarchyV1:
    """Groups under this process's own group in each controller, so that the manager's limits hold for its cells."""

    parents: dict[str, Path]

    @classmethod
    def make_for(cls, instance: str) -> HierarchyV1:
        own = own_groups()
        parents: dict[str, Path] = {}
        for controller in _V1_CONTROLLERS:
            parents[controller] = place_of(controller, own) / f"{PREFIX}{instance}"
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
            remove_tree(path)
