"""Callers that wait for answers, and readers that follow batches: in-process futures, no polling of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from shared.runtime import log
from shared.runtime.errors import Unavailable
from shared.runtime.units import Seconds

_log = log.get(__name__)

Lookup = Callable[[list[str]], Awaitable[dict[str, bytes]]]
"""Actions -> their existing answers, from the store."""


class Waiters:
    """Waiting callers of this replica, by action, and followers, by batch.

    The leader resolves answers directly. Other replicas are woken by `Answered` and look the answer up. If a wake-up is
    missed (trimmed stream, restart of Valkey), the answer is at most `recheck_s` late, never lost.
    """

    def __init__(self, lookup: Lookup, *, recheck_s: Seconds = 5.0) -> None:
        self._lookup = lookup
        self._recheck_s = recheck_s
        self._waiting: dict[str, set[asyncio.Future[bytes]]] = {}
        self._followed: dict[str, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def awaits(self, action: str) -> bool:
        """Return whether a caller of this replica waits for the action."""
        return action in self._waiting

    def waited_for(self) -> list[str]:
        """Return every action that a caller waits for."""
        return list(self._waiting)

    def expect(self, action: str) -> asyncio.Future[bytes]:
        """Return a future of the action's answer. Call it before submitting, and `discard` at the end."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(action, set()).add(future)
        return future

    def discard(self, action: str, future: asyncio.Future[bytes]) -> None:
        """Remove a caller that no longer waits."""
        futures = self._waiting.get(action)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._waiting[action]

    def resolve(self, action: str, answer: bytes) -> None:
        """Pass the answer to every caller that waits for it."""
        for future in self._waiting.pop(action, ()):
            if not future.done():
                future.set_result(answer)

    def wake(self, batches: Iterable[str]) -> None:
        """Wake the followers of batches that have new results."""
        for batch in batches:
            for event in self._followed.get(batch, ()):
                event.set()

    @asynccontextmanager
    async def following(self, batch: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set when the batch has new results. It may also be set without any."""
        event = asyncio.Event()
        self._followed.setdefault(batch, set()).add(event)
        try:
            yield event
        finally:
            followers = self._followed[batch]
            followers.discard(event)
            if not followers:
                del self._followed[batch]

    async def look_up(self, actions: Iterable[str]) -> None:
        """Resolve awaited actions from the store. If it cannot be read, `recheck` tries again."""
        wanted = [action for action in actions if action in self._waiting]
        try:
            for start in range(0, len(wanted), 256):
                for action, answer in (await self._lookup(wanted[start : start + 256])).items():
                    self.resolve(action, answer)
        except Unavailable as error:
            _log.warning("reading_answers_failed", waiting=len(wanted), error=str(error))

    async def recheck(self) -> None:
        """Loop: look up every awaited action at intervals of `recheck_s`, and wake all followers."""
        while True:
            await asyncio.sleep(self._recheck_s)
            await self.look_up(self.waited_for())
            self.wake(list(self._followed))
