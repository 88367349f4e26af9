"""Freezers: the processes of a frozen group get no core until they are thawed from outside.

Version 1 has a separate hierarchy for freezing, version 2 a file in every group. A process frozen by version 1 ignores
SIGKILL until it is thawed. So kill first and thaw after; a zygote keeps a descriptor to thaw if its manager dies.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from services.cpu_manager.sandbox.walls import cgroups
from services.cpu_manager.sandbox.walls.cgroup_v1 import place_of
from services.cpu_manager.sandbox.walls.cgroup_v2 import GroupV2
from services.cpu_manager.sandbox.walls.cgroups import PREFIX, Files, Group

_THAW: Final = b"THAWED"


class Freezer(Protocol):
    """Freezes the processes of one group."""

    joining: tuple[int, ...]
    """Descriptors to which a process writes `0` to join, besides those of its `Group`."""
    thawing: int
    """A descriptor that thaws the group when THAWED is written to it; -1 if frozen processes can be killed."""

    def freeze(self) -> None:
        """Begin freezing; `frozen` returns True when nothing runs any more. Takes a microsecond a process."""
        ...

    def frozen(self) -> bool: ...
    def thaw(self) -> None: ...

    def threads(self) -> list[int]:
        """Return the ids of its threads, as the manager sees them."""
        ...

    def close(self) -> None: ...


class Freezers(Protocol):
    """Creates freezers for the groups of a hierarchy."""

    @property
    def directories(self) -> tuple[Path, ...]: ...
    def of(self, group: Group) -> Freezer: ...
    def remove(self) -> None: ...


@dataclass(slots=True)
class FreezerV1:
    """A directory in the freezer hierarchy."""

    directory: Path
    joining: tuple[int, ...] = field(init=False)
    thawing: int = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.joining = (os.open(self.directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC),)
        self.thawing = os.open(self.directory / "freezer.state", os.O_RDWR | os.O_CLOEXEC)

    def freeze(self) -> None:
        os.pwrite(self.thawing, b"FROZEN", 0)

    def frozen(self) -> bool:
        return os.pread(self.thawing, 16, 0) == b"FROZEN\n"

    def thaw(self) -> None:
        os.pwrite(self.thawing, _THAW, 0)

    def threads(self) -> list[int]:
        return [int(thread) for thread in cgroups.read(self.directory / "tasks").split()]

    def close(self) -> None:
        for descriptor in (*self.joining, self.thawing):
            os.close(descriptor)


@dataclass(slots=True)
class FreezersV1:
    """Freezers under this process's own group of the freezer hierarchy."""

    parent: Path

    @classmethod
    def make_for(cls, instance: str) -> FreezersV1:
        """Raise OSError if there is no freezer hierarchy."""
        parent = place_of("freezer", cgroups.own_groups()) / f"{PREFIX}{instance}"
        parent.mkdir(exist_ok=True)
        return cls(parent)

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self.parent,)

    def of(self, group: Group) -> Freezer:
        return FreezerV1(self.parent / group.name)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            cgroups.remove_tree(self.parent)


@dataclass(slots=True)
class FreezerV2:
    """The freezer file of the group itself."""

    directory: Path
    joining: tuple[int, ...] = ()
    thawing: int = -1
    """Not needed: in version 2 a frozen process dies when it is killed."""
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        self.files = Files(self.directory)

    def freeze(self) -> None:
        self.files.write("cgroup.freeze", "1")

    def frozen(self) -> bool:
        return self.files.counter("cgroup.events", "frozen") == 1

    def thaw(self) -> None:
        self.files.write("cgroup.freeze", "0")

    def threads(self) -> list[int]:
        return [int(thread) for thread in cgroups.read(self.directory / "cgroup.threads").split()]

    def close(self) -> None:
        self.files.close()


@dataclass(slots=True)
class FreezersV2:
    """Freezers of version 2. They need no directories of their own."""

    directories: tuple[Path, ...] = ()

    def of(self, group: Group) -> Freezer:
        assert isinstance(group, GroupV2)
        return FreezerV2(group.directory)

    def remove(self) -> None:
        """Does nothing: the hierarchy removes the groups."""
