"""A call of an engine that is taken away ends, and what ends its processes is not disturbed."""

from __future__ import annotations

import asyncio

import pytest

from services.gpu_manager.engine_use import EngineUse, NotServed, unless_refused

REFUSAL = NotServed("room for another", 1.0)


@pytest.fixture
async def holding() -> EngineUse:
    loop = asyncio.get_running_loop()
    return EngineUse(loop.create_future(), loop.create_future())


async def forever() -> str:
    await asyncio.Event().wait()
    return ""


async def cleaning(cleaned: asyncio.Event) -> str:
    """Wait until cancelled, and then take a moment to clean up."""
    try:
        return await forever()
    finally:
        await asyncio.sleep(0.1)
        cleaned.set()


async def test_a_call_that_ends_is_valid(holding: EngineUse) -> None:
    async def call() -> str:
        return "done"

    assert await unless_refused(call(), holding) == "done"
    holding.refused.set_result(REFUSAL)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


@pytest.mark.parametrize("before", [True, False])
async def test_a_refusal_ends_the_call_and_its_cleanup_is_complete(holding: EngineUse, before: bool) -> None:
    cleaned = asyncio.Event()
    if before:
        holding.refused.set_result(REFUSAL)
    else:
        asyncio.get_running_loop().call_later(0.02, holding.refused.set_result, REFUSAL)
    async with asyncio.timeout(10):
        with pytest.raises(NotServed, match="room for another"):
            await unless_refused(cleaning(cleaned), holding)
    assert cleaned.is_set()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_refusal_does_not_disturb_a_call_that_the_leader_has_revoked(holding: EngineUse) -> None:
    cleaned = asyncio.Event()
    running = asyncio.create_task(unless_refused(cleaning(cleaned), holding))
    await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.sleep(0.02)
    holding.refused.set_result(REFUSAL)
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert cleaned.is_set()


@pytest.mark.parametrize("ends", ["value", "error"])
async def test_a_refused_call_has_no_other_end(holding: EngineUse, ends: str) -> None:
    async def call() -> str:
        try:
            return await forever()
        except asyncio.CancelledError:
            if ends == "error":
                raise OSError("its processes") from None
            return "late"

    asyncio.get_running_loop().call_later(0.02, holding.refused.set_result, REFUSAL)
    async with asyncio.timeout(10):
        with pytest.raises(NotServed):
            await unless_refused(call(), holding)


async def test_an_error_of_the_call_is_its_own(holding: EngineUse) -> None:
    async def call() -> str:
        raise TimeoutError("of the call")

    with pytest.raises(TimeoutError, match="of the call"):
        await unless_refused(call(), holding)
