"""The end of a connection is noticed while a request is handled, and not after."""

from __future__ import annotations

import asyncio

from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.connection_watch import WATCHED_AFTER_S, ConnectionWatch


async def test_an_end_in_the_first_moment_is_noticed_too() -> None:
    ended = asyncio.Event()

    async def gone() -> None:
        return

    with ConnectionWatch(gone, ended.set, CoarseTimers()) as watch:
        assert not watch.gone
        async with asyncio.timeout(10):
            await ended.wait()
        assert watch.gone


async def test_a_later_end_is_noticed() -> None:
    ended, closed = asyncio.Event(), asyncio.Event()

    async def gone() -> None:
        await closed.wait()

    with ConnectionWatch(gone, ended.set, CoarseTimers()) as watch:
        await asyncio.sleep(3 * WATCHED_AFTER_S)
        assert not watch.gone
        closed.set()
        async with asyncio.timeout(10):
            await ended.wait()


async def test_a_request_that_is_answered_leaves_nothing_behind() -> None:
    ended, closed, asked = asyncio.Event(), asyncio.Event(), 0

    async def gone() -> None:
        nonlocal asked
        asked += 1
        await closed.wait()

    with ConnectionWatch(gone, ended.set, CoarseTimers()):
        pass
    with ConnectionWatch(gone, ended.set, CoarseTimers()):
        await asyncio.sleep(3 * WATCHED_AFTER_S)
    closed.set()
    await asyncio.sleep(3 * WATCHED_AFTER_S)
    assert asked == 1, "a short request is not watched"
    assert not ended.is_set()
