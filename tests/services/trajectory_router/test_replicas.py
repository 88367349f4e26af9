"""Several replicas: one order, one cap, shared pins, and a leader that may end."""

from __future__ import annotations

import asyncio

from tests.services.trajectory_router.conftest import RouterUnderTest, StartRouter


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
