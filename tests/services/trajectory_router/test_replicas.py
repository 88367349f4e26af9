"""Several replicas: one order, one cap, shared pins, and a leader that may end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.bus import routers
from tests.services.trajectory_router.conftest import RouterUnderTest, StartRouter
from tests.services.trajectory_router.engine import running_engine


async def read(router: RouterUnderTest, trajectory: str) -> tuple[int, str]:
    async with await router.chat(trajectory, stream=True) as response:
        await response.read()
        return int(response.status), response.headers["x-treadle-worker"]


async def test_two_replicas_keep_one_cap_and_the_same_pins(start_router: StartRouter) -> None:
    first = await start_router(2, most_calls=2)
    second = await start_router(0)
    for engine in first.engines:
        engine.pause_s = 0.01
    answers = await asyncio.gather(*(read(router, f"t{number}") for number in range(12) for router in (first, second)))
    assert {status for status, _ in answers} == {200}
    assert max(engine.most_running for engine in first.engines) == 2
    pins = {f"t{number}": {worker for _, worker in answers[2 * number : 2 * number + 2]} for number in range(12)}
    assert all(len(workers) == 1 for workers in pins.values()), pins


async def test_a_worker_that_is_registered_while_a_replica_takes_over_gets_calls(
    start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is read before the replica leads, and its entry in the store after the replica has asked for it."""
    entered, gate, present = asyncio.Event(), asyncio.Event(), routers.present

    async def held(*args: Any) -> dict[str, str]:
        found = await present(*args)
        entered.set()
        await gate.wait()
        return found

    monkeypatch.setattr(routers, "present", held)
    router = await start_router(0)
    await entered.wait()
    async with running_engine("late") as engine:
        await router.register(engine)
        await asyncio.sleep(0.2)  # the message is read
        gate.set()
        async with asyncio.timeout(1.5):  # before workers are read again as a matter of course
            status, _ = await read(router, "t0")
    assert status == 200
