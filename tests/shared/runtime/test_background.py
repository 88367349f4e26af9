"""Loops end with their owner, and the crash of one is reported."""

from __future__ import annotations

import asyncio

import pytest

from shared.runtime.background import Background


class CrashCounter:
    """Counts the calls of `on_crash`."""

    def __init__(self) -> None:
        self.count = 0
        self.came = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.came.set()


@pytest.fixture
def crashes() -> CrashCounter:
    return CrashCounter()


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def test_loops_end_when_their_owner_leaves(crashes: CrashCounter) -> None:
    async with Background(crashes) as background:
        tasks = [background.start(forever(), name=f"loop {number}") for number in range(3)]
        await asyncio.sleep(0)

    assert all(task.cancelled() for task in tasks)
    assert crashes.count == 0


async def test_a_crashed_loop_takes_the_service_with_it(crashes: CrashCounter) -> None:
    async def crash() -> None:
        raise ValueError("a bug")

    async with Background(crashes) as background, asyncio.timeout(10):
        others = background.start(forever(), name="other")
        background.start(crash(), name="crashing")
        await crashes.came.wait()
        assert not others.done(), "the service itself decides what to stop, and in which order"

    assert crashes.count == 1


async def test_a_loop_that_ends_well_is_no_crash(crashes: CrashCounter) -> None:
    async with Background(crashes) as background:
        await background.start(asyncio.sleep(0), name="short")

    assert crashes.count == 0


async def test_a_loop_that_swallows_a_cancel_is_cancelled_again(crashes: CrashCounter) -> None:
    swallowed = 0

    async def ignores_cancellation() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await forever()
            except asyncio.CancelledError:
                swallowed += 1
        await forever()

    async with Background(crashes) as background, asyncio.timeout(20):
        task = background.start(ignores_cancellation(), name="stubborn")
        await asyncio.sleep(0)

    assert (task.cancelled(), swallowed, crashes.count) == (True, 2, 0)


async def test_a_loop_started_by_an_ending_loop_is_ended_too(crashes: CrashCounter) -> None:
    late: list[asyncio.Task[None]] = []

    async with Background(crashes) as background, asyncio.timeout(20):

        async def successor() -> None:
            try:
                await forever()
            finally:
                late.append(background.start(forever(), name="late"))

        background.start(successor(), name="heir")
        await asyncio.sleep(0)

    assert late[0].cancelled()
