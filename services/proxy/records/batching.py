"""One round trip for many callers: calls made during a flush are collected and leave with the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class Batcher(Generic[Item, Reply]):
    """Collects items and passes them to `flush` as lists, one flush at a time.

    There are no timers. The first item leaves at once; items that arrive meanwhile leave together right after. So an
    idle mesh answers at the latency of one round trip, and a busy one pays one round trip for up to `most` items.
    """

    def __init__(self, flush: Callable[[list[Item]], Awaitable[Sequence[Reply]]], *, most: int = 256) -> None:
        """`flush` gets 1..`most` items and returns one reply each, in order. All of its callers get its exception."""
        self._flush = flush
        self._most = most
        self._waiting: deque[tuple[Item, asyncio.Future[Reply]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: Item) -> asyncio.Future[Reply]:
        """Add an item. The future gets its reply."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._run(), name="batcher")
        return future

    async def call(self, item: Item) -> Reply:
        """Add an item and wait for its reply."""
        return await self.put(item)

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                try:
                    replies = await self._flush([item for item, _ in taken])
                    if len(replies) != len(taken):
                        raise RuntimeError(f"{len(taken)} items were flushed, {len(replies)} replies came")
                except Exception as error:  # noqa: BLE001  # any error goes to the callers
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(error)
                            future.exception()  # a caller that has gone must cause no "exception was never retrieved"
                    continue
                for (_, future), reply in zip(taken, replies, strict=True):
                    if not future.done():
                        future.set_result(reply)
        finally:
            self._flusher = None
