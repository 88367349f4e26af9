"""Memory of described devices: the resident memory of the processes that are assigned to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from services.gpu_manager.devices import GpuDevice


@dataclass(slots=True)
class _Assignment:
    """A process that is assigned to devices."""

    numbers: frozenset[int]
    began: float | None
    """Time of its start: a later process may have its id. None: it has ended before it was assigned."""


@dataclass(slots=True)
class DescribedMemory:
    """Memory of described devices: RSS of the assigned processes, of what they have started, and of their groups.

    Pages that processes share count in each of them, so the sum is an upper bound. The memory of a process with several
    devices is spread evenly. Thread-safe: each call works on copies.
    """

    devices: tuple[GpuDevice, ...]
    _assigned: dict[int, _Assignment] = field(default_factory=dict)

    def used_bytes(self, number: int) -> int | None:
        """Return the RSS of the processes that are assigned to a device."""
        members = _Members.read()
        total = 0.0
        for process, one in list(self._assigned.items()):
            if number in one.numbers:
                total += sum(map(_rss, members.of(process, one.began))) / len(one.numbers)
        return round(total)

    def bytes_of(self, numbers: Iterable[int], processes: Iterable[int]) -> int | None:
        """Return the RSS of processes: described devices have no memory of their own."""
        del numbers
        return sum(map(_rss, set(processes)))

    def fault(self, number: int) -> str:
        """Return nothing: a described device has no faults."""
        del number
        return ""

    def assign(self, process: int, numbers: Iterable[int]) -> None:
        """Assign a process.

        Raises:
            ValueError: there is no device of a number, or no number.
        """
        wanted = frozenset(numbers)
        if not wanted or not wanted <= {device.number for device in self.devices}:
            raise ValueError(f"there is no device for each of {sorted(wanted)}; there are {len(self.devices)}")
        self._assigned[process] = _Assignment(wanted, _began(process))

    def release(self, process: int) -> None:
        """End the assignment of a process."""
        self._assigned.pop(process, None)

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Members:
    """Processes of the machine at one time."""

    children: Mapping[int, list[int]]
    groups: Mapping[int, list[int]]

    @classmethod
    def read(cls) -> _Members:
        children: dict[int, list[int]] = {}
        groups: dict[int, list[int]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"] or 0, []).append(process.pid)
            with suppress(OSError):
                groups.setdefault(os.getpgid(process.pid), []).append(process.pid)
        return cls(children, groups)

    def of(self, root: int, began: float | None) -> set[int]:
        """Return a process, what it has started, and the members of the process group that it leads.

        A child whose parent has ended belongs to no tree any more, but stays in the group. A process with the root's id
        and another start is not the root.
        """
        pending = list(self.groups.get(root, ()))
        now = _began(root)
        if now is not None and now == began:
            pending.append(root)
        elif now is not None:
            return set()
        found: set[int] = set()
        while pending:
            process = pending.pop()
            if process not in found:
                found.add(process)
                pending += self.children.get(process, ())
        return found


def _began(process: int) -> float | None:
    try:
        return psutil.Process(process).create_time()
    except psutil.Error:
        return None


def _rss(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0
