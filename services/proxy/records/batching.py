"""One round trip for many callers: calls made during a flush are collected and leave with the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from shared.policy.order.turns import NO_FLOW, TurnQueue

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class Batcher(Generic[Item, Reply]):
    """Collects items and passes them to `flush` as lists, one flush at a time.

    There are no timers. The first item leaves at once; items that arrive meanwhile leave together right after. So an
    idle mesh answers at the latency of one round trip, and a busy one pays one round trip for up to `most` items.
    Items of several flows leave in turn (`shared.policy.order.turns`).

    Args:
        flush: gets 1..`most` items and returns one reply each, in order. All of its callers get its exception.
        most: items of one flush.
        most_shared: the same while several flows are present, because a new item waits for the flush under way;
            None: `most`.
    """

    def __init__(
        self,
        flush: Callable[[list[Item]], Awaitable[Sequence[Reply]]],
        *,
        most: int = 256,
        most_shared: int | None = None,
    ) -> None:
        self._flush = flush
        self._most = most
        self._most_shared = most_shared or most
        self._waiting: TurnQueue[tuple[Item, asyncio.Future[Reply]]] = TurnQueue()
        self._flusher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def shared(self) -> bool:
        """True if several flows are present."""
        return self._waiting.shared

    def put(self, item: Item, flow: str = NO_FLOW) -> asyncio.Future[Reply]:
        """Add an item. The future gets its reply. If it is cancelled before the item leaves, the item is dropped."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.put(flow, (item, future))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._run(), name="batcher")
        return future

    async def call(self, item: Item, flow: str = NO_FLOW) -> Reply:
        """Add an item and wait for its reply."""
        return await self.put(item, flow)

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = self._next()
                if not taken:
                    continue
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

    def _next(self) -> list[tuple[Item, asyncio.Future[Reply]]]:
        most = self._most_shared if self._waiting.shared else self._most
        return [waiting for waiting in self._waiting.take(most) if not waiting[1].done()]
