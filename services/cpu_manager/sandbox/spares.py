"""Cells forked and walled in before they are needed: a job waits for little more than its own run.

A spare is an init and the process that will become a program. It holds nothing of any job: it waits for its order on a
socket that only it and the manager have.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import Final

from services.cpu_manager.sandbox.slots import Slot, Slots
from services.cpu_manager.sandbox.zygotes import Zygote, ZygoteError

_AHEAD: Final = 1
"""One more than runs at once: the cell ordered when a job ends is not the one that the next job takes."""
_MOST: Final = 8
"""Spares of one zygote: each is two waiting processes of one or two megabytes."""


Waiting = tuple[Slot, socket.socket]


@dataclass(slots=True)
class Spares:
    """Waiting cells by zygote and size of the private directory, as many as have lately run at once."""

    slots: Slots
    _waiting: dict[tuple[Zygote, int], list[Waiting]] = field(default_factory=dict)

    def take(self, zygote: Zygote, disk_bytes: int) -> Waiting:
        """A cell of this zygote, waiting or newly ordered. Raises `ZygoteError` or OSError."""
        waiting = self._waiting.get((zygote, disk_bytes))
        return waiting.pop() if waiting and not zygote.dead else self._order(zygote, disk_bytes)

    def _order(self, zygote: Zygote, disk_bytes: int) -> Waiting:
        slot = self.slots.take()
        try:
            plan = replace(slot.plan, disk_bytes=disk_bytes)
            return slot, zygote.spawn(plan, slot.group.joining if slot.group else ())
        except (ZygoteError, OSError):
            self.slots.give(slot)
            raise

    def restock(self, zygote: Zygote, disk_bytes: int) -> None:
        """Order cells of the kind just used until enough wait; let go of those whose use has passed."""
        for zygote_, size in list(self._waiting):
            if zygote_.dead or (zygote_ is zygote and size != disk_bytes):
                self._let_go(self._waiting.pop((zygote_, size)))
        waiting = self._waiting.setdefault((zygote, disk_bytes), [])
        while not zygote.dead and len(waiting) < min(zygote.most_cells + _AHEAD, _MOST):
            waiting.append(self._order(zygote, disk_bytes))

    def count(self) -> int:
        return sum(len(cells) for (zygote, _), cells in self._waiting.items() if not zygote.dead)

    def _let_go(self, cells: list[Waiting]) -> None:
        for slot, control in cells:
            control.close()
            self.slots.give(slot)

    def close(self) -> None:
        for cells in self._waiting.values():
            self._let_go(cells)
        self._waiting.clear()
