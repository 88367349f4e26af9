"""Spares: cells that are forked and walled in before they are needed, so that a job waits for little but its own run.

A spare is an init and the process that will become a program. It contains nothing of any job: it waits for its start
request on a socket that only it and the manager have. After a program that ended by itself, the same init becomes a
spare again.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from services.cpu_manager.sandbox.slots import Slot, Slots
from services.cpu_manager.sandbox.zygotes import Zygote, ZygoteError
from shared.runtime.units import Seconds

_EXTRA: Final = 1
"""Spares beyond the most cells at once: the cell requested when a job ends is not the one that the next job takes."""
_MOST: Final = 8
"""Most spares of one zygote. Each is two waiting processes of one or two megabytes."""
_COLD_START_DECAY: Final = 0.25
"""Share of the distance to a shorter measurement: one slow start is forgotten after about ten measurements."""


@dataclass(slots=True)
class Spare:
    """The manager's end of a cell that waits for a start request or runs a program."""

    slot: Slot
    control: socket.socket
    pidfd: int = -1
    """Descriptor of its init, once received."""
    earlier_cpu_s: float = 0.0
    """CPU time of the earlier programs that init has reaped."""
    prepared: bool = False
    """True if it was ready before its job arrived."""

    def disconnected(self) -> bool:
        """Return True if its init died while it waited."""
        poller = select.poll()
        poller.register(self.control, select.POLLRDHUP)
        return bool(poller.poll(0))

    def close(self) -> None:
        """Close the control socket: a waiting cell ends."""
        self.control.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@dataclass(slots=True)
class Spares:
    """Waiting cells by zygote and size of the private directory; as many as have recently run at once."""

    slots: Slots
    _waiting: dict[tuple[Zygote, int], deque[Spare]] = field(default_factory=dict)

    def take(self, zygote: Zygote, disk_bytes: int, *, new: bool = False) -> Spare:
        """Return a cell of this zygote: the longest waiting, or a new one. Raise `ZygoteError` or OSError."""
        if new:
            return self._spawn(zygote, disk_bytes)
        waiting = self._waiting.get((zygote, disk_bytes))
        while waiting and not zygote.dead:
            spare = waiting.popleft()
            if not spare.disconnected():
                return spare
            self.discard(spare)
        return self._spawn(zygote, disk_bytes)

    def give(self, zygote: Zygote, disk_bytes: int, spare: Spare) -> None:
        """Keep a cell whose program has ended for the next job, unless enough cells wait."""
        waiting = self._waiting.setdefault((zygote, disk_bytes), deque())
        if zygote.dead or len(waiting) >= _MOST:
            self.discard(spare)
        else:
            spare.prepared = True
            waiting.append(spare)

    def discard(self, spare: Spare) -> None:
        """Release a cell in which nothing runs."""
        spare.close()
        self.slots.give(spare.slot)

    def _spawn(self, zygote: Zygote, disk_bytes: int) -> Spare:
        slot = self.slots.take()
        try:
            plan = replace(slot.plan, disk_bytes=disk_bytes)
            return Spare(slot, zygote.spawn(plan, slot.group.joining if slot.group else ()))
        except (ZygoteError, OSError):
            self.slots.give(slot)
            raise

    def refill(self, zygote: Zygote, disk_bytes: int) -> None:
        """Request cells of the kind just used until enough wait; release cells of dead zygotes and of other sizes."""
        for zygote_, size in list(self._waiting):
            if zygote_.dead or (zygote_ is zygote and size != disk_bytes):
                self._discard_all(self._waiting.pop((zygote_, size)))
        waiting = self._waiting.setdefault((zygote, disk_bytes), deque())
        while not zygote.dead and len(waiting) < min(zygote.most_cells + _EXTRA, _MOST):
            spare = self._spawn(zygote, disk_bytes)
            spare.prepared = True
            waiting.append(spare)

    def count(self) -> int:
        return sum(len(cells) for (zygote, _), cells in self._waiting.items() if not zygote.dead)

    def _discard_all(self, cells: Iterable[Spare]) -> None:
        for spare in cells:
            self.discard(spare)

    def close(self) -> None:
        for cells in self._waiting.values():
            self._discard_all(cells)
        self._waiting.clear()


@dataclass(slots=True)
class ColdStart:
    """An estimate that rises at once to a longer measurement and falls slowly: a warm-up must not begin too late."""

    seconds: Seconds | None = None
    """None before the first measurement."""

    def measured(self, seconds: Seconds) -> None:
        """Add a measurement: seconds from the request for a worker to the start of its program."""
        known = seconds if self.seconds is None else self.seconds
        self.seconds = max(seconds, known + _COLD_START_DECAY * (seconds - known))
