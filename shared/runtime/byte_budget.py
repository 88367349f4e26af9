"""Memory that many callers share: each waits until its bytes are free.

Laws:
  - at most `most` bytes are held, and at most `most_each` of one owner;
  - a share is held whole or not at all, and is taken once. So nobody waits for bytes while holding some, and callers
    that return what they hold cannot block each other;
  - owners take turns. The first caller of an owner is not overtaken by its later ones, and a large share whose turn it
    is not by smaller ones of others.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ByteShare:
    """Bytes of one caller: first none."""

    __slots__ = ("_budget", "_owner", "held")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self.held: int = 0

    async def take(self, amount: int) -> None:
        """Wait for bytes, at most `most_each`. Takes nothing if it is cancelled.

        Raises:
            ValueError: the share has bytes already, or asks for more than one owner can have.
        """
        if self.held or amount > self._budget.most_each:
            raise ValueError(f"a share of {self.held} bytes cannot become one of {amount}")
        await self._budget._take(self._owner, amount)
        self.held = amount

    def keep(self, amount: int) -> None:
        """Return the bytes beyond `amount`."""
        if amount < self.held:
            self._budget._give_back(self._owner, self.held - amount)
            self.held = amount

    def __enter__(self) -> ByteShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep(0)


class ByteBudget:
    """A number of bytes for one event loop. Taking and returning cost O(owners that wait)."""

    def __init__(self, most: int, most_each: int) -> None:
        """Make a budget of which nothing is held.

        Args:
            most: bytes of all owners together.
            most_each: bytes of one owner; at most `most`.
        """
        if not 0 < most_each <= most:
            raise ValueError(f"an owner cannot have {most_each} of {most} bytes")
        self.most = most
        self.most_each = most_each
        self._free = most
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        """By owner, in the order of their turns."""

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self.most - self._free

    def share(self, owner: str) -> ByteShare:
        """Return a share without bytes. As a context manager it returns what it holds at the end."""
        return ByteShare(self, owner)

    async def _take(self, owner: str, amount: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append((amount, granted))
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(owner, amount)
            else:
                self._grant()  # what waited behind it
            raise

    def _give_back(self, owner: str, amount: int) -> None:
        self._free += amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _grant(self) -> None:
        """Grant to the owners in turn, until the next one's bytes are not free."""
        passed = 0  # owners that have all that one may have
        while passed < len(self._waiting):
            owner = next(iter(self._waiting))
            queue = self._waiting[owner]
            amount, granted = queue[0]
            if granted.cancelled():
                queue.popleft()
                passed = 0
            elif self._held.get(owner, 0) + amount > self.most_each:
                passed += 1
            elif amount > self._free:
                # The turns of the owners passed over are unchanged, for they could take nothing.
                return
            else:
                queue.popleft()
                self._free -= amount
                self._held[owner] = self._held.get(owner, 0) + amount
                granted.set_result(None)
                passed = 0
            del self._waiting[owner]
            if queue:
                self._waiting[owner] = queue
