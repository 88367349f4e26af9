"""A router whose trajectories are always new ones: its memory stays flat when as many are forgotten as come.

`TREADLE_SOAK_S` is the duration; ten minutes show more than the default.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Iterator

import aiohttp
import pytest

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import until
from tests.e2e.test_router_replicas import is_ready
from tests.services.trajectory_router.engine import Engine, running_engine
from treadle.lab.bench.processes import memory_bytes

DURATION_S = float(os.environ.get("TREADLE_SOAK_S", "24"))
IDLE_S = min(DURATION_S / 6, 30.0)
CALLERS = 16
GROWTH = 1.15


@pytest.fixture
def router(redis_url: str) -> Iterator[Service]:
    settings = {"TRAJECTORY_ROUTER_PIN_IDLE_S": str(IDLE_S), "TRAJECTORY_ROUTER_KV_IDLE_S": str(IDLE_S)}
    with running_service("trajectory_router", redis_url, **settings) as running:
        yield running


@pytest.mark.timeout(DURATION_S + 120)
async def test_memory_stays_flat_under_new_trajectories(router: Service, capsys: pytest.CaptureFixture[str]) -> None:
    await until(lambda: is_ready(router))
    end, numbers, calls = time.monotonic() + DURATION_S, itertools.count(), 0
    sizes: list[float] = []

    async def caller(http: aiohttp.ClientSession) -> None:
        nonlocal calls
        while time.monotonic() < end:
            name = f"soak-{next(numbers)}"
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"{name} " * 200}],
                "stream": calls % 2 == 0,
            }
            headers = {"x-trajectory-id": name}
            async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
                assert response.status == 200, await response.text()
                await response.read()
            calls += 1

    async def watch(engine: Engine) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(DURATION_S / 24)
            sizes.append(memory_bytes(router.process.pid) / 1e6)
            engine.bodies.clear()
            engine.received.clear()

    async with running_engine("e") as engine, aiohttp.ClientSession(router.url) as http, asyncio.TaskGroup() as tasks:
        async with http.post("/workers", json={"url": engine.url, "most_calls": CALLERS}) as response:
            assert response.status == 202, await response.text()
        for _ in range(CALLERS):
            tasks.create_task(caller(http))
        tasks.create_task(watch(engine))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{calls:,} trajectories in {DURATION_S:g} s; memory in MB: {' '.join(f'{size:.0f}' for size in sizes)}\n"
        )
    settled = sizes[len(sizes) // 2 - 1]
    assert max(sizes[len(sizes) // 2 :]) < settled * GROWTH
