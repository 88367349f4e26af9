"""Cells forked before they are needed, with walls up to where the order is read: a job waits a millisecond less.

A spare holds nothing of any job: it waits for its order on a socket that only it and the manager have.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Final

from services.cpu_manager.sandbox.slots import Slot, Slots
from services.cpu_manager.sandbox.zygotes import Zygote, ZygoteError

_MOST: Final = 4
"""Spares of one zygote: each is a waiting process of one or two megabytes."""


@dataclass(slots=True)
class Spares:
    """Waiting cells by zygote, as many as its jobs have lately run at once."""

    slots: Slots
    _waiting: dict[Zygote, list[tuple[Slot, socket.socket]]] = field(default_factory=dict)

    def take(self, zygote: Zygote) -> tuple[Slot, socket.socket]:
        """A cell of this zygote, waiting or newly ordered. Raises `ZygoteError` or OSError."""
        waiting = self._waiting.get(zygote)
        return waiting.pop() if waiting and not zygote.dead else self._order(zygote)

    def _order(self, zygote: Zygote) -> tuple[Slot, socket.socket]:
        slot = self.slots.take()
        try:
            return slot, zygote.spawn(slot.plan, slot.group.joining if slot.group else ())
        except (ZygoteError, OSError):
            self.slots.give(slot)
            raise

    def restock(self, zygote: Zygote) -> None:
        """Order one cell more if fewer wait than jobs have ended since; let go of those whose zygote died."""
        for dead in [known for known in self._waiting if known.dead]:
            self._let_go(self._waiting.pop(dead))
        waiting = self._waiting.setdefault(zygote, [])
        if not zygote.dead and len(waiting) < min(zygote.most_cells, _MOST):
            waiting.append(self._order(zygote))

    def count(self) -> int:
        return sum(len(cells) for zygote, cells in self._waiting.items() if not zygote.dead)

    def _let_go(self, cells: list[tuple[Slot, socket.socket]]) -> None:
        for slot, control in cells:
            control.close()
            self.slots.give(slot)

    def close(self) -> None:
        for cells in self._waiting.values():
            self._let_go(cells)
        self._waiting.clear()
