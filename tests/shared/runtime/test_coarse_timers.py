"""Timers that share a timer of the loop: none is early, none is lost, and a cancelled one is not called."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from shared.runtime.coarse_timers import TICK_S, CoarseTimer, CoarseTimers

COUNT = 300


async def test_each_is_called_once_and_none_early() -> None:
    loop, timers, rng = asyncio.get_running_loop(), CoarseTimers(), random.Random(1)
    called: dict[int, float] = {}
    due: dict[int, float] = {}
    done = asyncio.Event()

    def call(number: int) -> None:
        assert number not in called
        called[number] = loop.time()
        if len(called) == COUNT:
            done.set()

    for number in range(COUNT):
        delay_s = rng.uniform(0, 0.4)
        due[number] = loop.time() + delay_s
        timers.after(delay_s, partial(call, number))
        if number % 50 == 0:
            await asyncio.sleep(0.03)
    async with asyncio.timeout(30):
        await done.wait()
    assert all(called[number] >= at_s - 1e-3 for number, at_s in due.items()), "uvloop and asyncio count milliseconds"


async def test_a_cancelled_one_is_not_called_also_by_another_of_its_tick() -> None:
    timers, called = CoarseTimers(), list[str]()
    kept = dict[str, CoarseTimer]()

    def call(name: str, other: str) -> None:
        called.append(name)
        kept[other].cancel()

    at_s = 2 * TICK_S
    kept["a"] = timers.after(at_s, partial(call, "a", "b"))
    kept["b"] = timers.after(at_s, partial(call, "b", "a"))
    kept["c"] = timers.after(at_s, partial(call, "c", "c"))
    kept["c"].cancel()
    kept["c"].cancel()
    done = asyncio.Event()
    timers.after(3 * at_s, done.set)
    async with asyncio.timeout(30):
        await done.wait()
    assert called in (["a"], ["b"]), "the first of the two cancels the other"
    kept["a"].cancel()


async def test_an_earlier_one_that_is_set_later_is_called_first() -> None:
    timers, called, done = CoarseTimers(), list[str](), asyncio.Event()
    timers.after(6 * TICK_S, done.set)
    timers.after(4 * TICK_S, partial(called.append, "late"))
    timers.after(0, partial(called.append, "early"))
    async with asyncio.timeout(30):
        await done.wait()
    assert called == ["early", "late"]


async def test_one_that_fails_keeps_none_back() -> None:
    loop, timers, done, errors = asyncio.get_running_loop(), CoarseTimers(), asyncio.Event(), list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    timers.after(0, partial(int, "no number"))
    timers.after(0, done.set)
    async with asyncio.timeout(30):
        await done.wait()
    assert [type(error) for error in errors] == [ValueError]


async def test_a_callback_may_set_another() -> None:
    timers, done, left = CoarseTimers(), asyncio.Event(), 5

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            timers.after(0, again)
        else:
            done.set()

    again()
    async with asyncio.timeout(30):
        await done.wait()


@pytest.mark.parametrize("cancelled", [True, False])
async def test_nothing_is_left_behind(cancelled: bool) -> None:
    timers, done = CoarseTimers(), asyncio.Event()
    for _ in range(100):
        timer = timers.after(TICK_S, int)
        if cancelled:
            timer.cancel()
    timers.after(4 * TICK_S, done.set)
    async with asyncio.timeout(30):
        await done.wait()
    assert (timers._ticks, timers._times, timers._next) == ({}, [], None)
