"""One flush at a time, a reply for each caller, and no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from services.proxy.records.batching import Batcher


class RecordedFlush:
    """A flush that waits for its release and records its items."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.gate = asyncio.Event()
        self.fails: set[int] = set()
        """Items whose flush fails."""

    async def __call__(self, items: list[int]) -> Sequence[str]:
        self.taken.append(items)
        await self.gate.wait()
        if self.fails.intersection(items):
            raise ValueError("no")
        return [f"reply {item}" for item in items]


@pytest.fixture
def flushes() -> RecordedFlush:
    return RecordedFlush()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_first_item_leaves_at_once(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes)
    flushes.gate.set()

    assert await batcher.call(1) == "reply 1"
    assert flushes.taken == [[1]]


async def test_items_put_during_a_flush_are_in_the_next_one(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes)
    calls = [asyncio.create_task(batcher.call(1))]
    await turns()
    calls += [asyncio.create_task(batcher.call(item)) for item in (2, 3, 4)]
    await turns()
    assert (flushes.taken, len(batcher)) == ([[1]], 3)
    flushes.gate.set()

    assert await asyncio.gather(*calls) == ["reply 1", "reply 2", "reply 3", "reply 4"]
    assert flushes.taken == [[1], [2, 3, 4]]


async def test_a_flush_takes_no_more_than_it_may_and_keeps_the_order(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes, most=3)
    flushes.gate.set()

    replies = await asyncio.gather(*(batcher.put(item) for item in range(8)))

    assert replies == [f"reply {item}" for item in range(8)]
    assert flushes.taken == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_an_error_goes_to_all_callers_of_its_flush_and_to_no_other(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes, most=2)
    flushes.fails = {2}
    flushes.gate.set()
    failed = await asyncio.gather(batcher.put(1), batcher.put(2), return_exceptions=True)

    assert [type(one) for one in failed] == [ValueError, ValueError]
    assert await batcher.call(3) == "reply 3"


async def test_items_behind_a_failed_flush_still_leave(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes, most=1)
    flushes.fails = {1}
    flushes.gate.set()
    first, second = batcher.put(1), batcher.put(2)

    with pytest.raises(ValueError, match="no"):
        await first
    assert await asyncio.wait_for(second, 10) == "reply 2"


async def test_a_caller_that_went_away_takes_nobodys_reply(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes)
    calls = [asyncio.create_task(batcher.call(item)) for item in range(4)]
    await turns()
    calls[1].cancel()
    await turns()
    flushes.gate.set()

    assert [await calls[item] for item in (0, 2, 3)] == ["reply 0", "reply 2", "reply 3"]
    assert calls[1].cancelled()


async def test_a_caller_that_went_away_does_not_stop_the_error_of_the_others(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes)
    flushes.fails = {0}
    gone, stays = [asyncio.create_task(batcher.call(item)) for item in range(2)]
    await turns()
    gone.cancel()
    flushes.gate.set()

    with pytest.raises(ValueError, match="no"):
        await stays


async def test_an_idle_batcher_has_neither_a_task_nor_a_timer(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes)
    flushes.gate.set()
    await batcher.call(1)
    await turns()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_items_of_several_flows_leave_in_turn_and_in_small_parts(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes, most=8, most_shared=3)
    first = batcher.put(0, "ada")
    await turns()
    many = [batcher.put(item, "ada") for item in range(1, 6)]
    one = batcher.put(10, "bob")
    flushes.gate.set()
    await asyncio.gather(first, one, *many)

    assert flushes.taken == [[0], [1, 10], [2, 3, 4], [5]]
    assert batcher.shared


async def test_items_whose_callers_went_away_before_they_left_are_dropped(flushes: RecordedFlush) -> None:
    batcher = Batcher(flushes, most=2)
    first = batcher.put(0)
    await turns()
    gone = [batcher.put(item) for item in (1, 2, 3)]
    last = batcher.put(4)
    for future in gone:
        future.cancel()
    flushes.gate.set()

    assert [await first, await last] == ["reply 0", "reply 4"]
    assert flushes.taken == [[0], [4]]
