"""Bound on the total bytes of the request bodies that a replica holds."""

from __future__ import annotations

from services.proxy.metrics import BODIES
from shared.runtime.errors import Overloaded


class Bodies:
    """Counts the bytes of bodies from their first byte to the end of their call."""

    def __init__(self, most: int) -> None:
        """`most`: bytes at the same time."""
        self._most = most
        self._held = 0
        BODIES.set_function(lambda: self._held)

    def take(self, count: int) -> None:
        """Count bytes that were just read.

        Raises:
            Overloaded: the bound would be exceeded. These bytes are not counted.
        """
        if self._held + count > self._most:
            raise Overloaded(what=f"this replica holds {self._held} bytes of request bodies, of {self._most} at most")
        self._held += count

    def give_back(self, count: int) -> None:
        """Release the bytes of a call that has ended."""
        self._held -= count
