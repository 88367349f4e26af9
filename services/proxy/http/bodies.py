"""Bytes of request bodies that a replica holds: bounded in total, whatever each call may have."""

from __future__ import annotations

from services.proxy.metrics import BODIES
from shared.runtime.errors import Overloaded


class Bodies:
    """Counts bodies from their first byte to the end of their call: while they are read, wait and are answered."""

    def __init__(self, most: int) -> None:
        """`most`: bytes at once."""
        self._most = most
        self._held = 0
        BODIES.set_function(lambda: self._held)

    def take(self, count: int) -> None:
        """Count bytes that were just read.

        Raises:
            Overloaded: they are too many; nothing was counted.
        """
        if self._held + count > self._most:
            raise Overloaded(what=f"bodies of {self._held} bytes are under way here, of {self._most} at most")
        self._held += count

    def give_back(self, count: int) -> None:
        """Their call has ended."""
        self._held -= count
