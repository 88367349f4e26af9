"""Several routers as processes: the leader is killed under load, and no call of the others fails."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import pytest

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import metric, until
from tests.services.trajectory_router.engine import Engine, running_engine

CAP = 4


@pytest.fixture
def routers(redis_url: str) -> Iterator[list[Service]]:
    """Three routers with a short lease."""
    with ExitStack() as entered:
        settings = {"TRAJECTORY_ROUTER_LEASE_S": "1"}
        yield [entered.enter_context(running_service("trajectory_router", redis_url, **settings)) for _ in range(3)]


def leads(router: Service) -> bool:
    return metric(router, "treadle_trajectory_router_leading") == 1


def is_ready(router: Service) -> bool:
    try:
        with urllib.request.urlopen(router.url + "/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


async def register(router: Service, engine: Engine) -> None:
    async with (
        aiohttp.ClientSession(router.url) as http,
        http.post("/workers", json={"url": engine.url, "most_calls": CAP}) as response,
    ):
        assert response.status == 202, await response.text()


async def test_a_killed_leader_costs_the_other_routers_clients_nothing(routers: list[Service]) -> None:
    await until(lambda: all(map(is_ready, routers)))
    (leader,) = [router for router in routers if leads(router)]
    others = [router for router in routers if router is not leader]
    async with running_engine("a") as first, running_engine("b") as second:
        for engine in (first, second):
            engine.pause_s = 0.02
            await register(others[0], engine)
        ended, answers = asyncio.Event(), list[tuple[int, bool]]()

        async def trajectory(router: Service, name: str) -> None:
            async with aiohttp.ClientSession(router.url) as http:
                while not ended.is_set():
                    body = {"model": "tiny", "stream": True}
                    headers = {"x-trajectory-id": name}
                    async with http.post("/v1/chat/completions", json=body, headers=headers) as response:
                        whole = (await response.read()).endswith(b"data: [DONE]\n\n")
                        answers.append((response.status, whole))

        running = [
            asyncio.create_task(trajectory(router, f"{number}-{index}"))
            for index, router in enumerate(others)
            for number in range(8)
        ]
        await asyncio.sleep(1.0)
        before = len(answers)
        leader.kill()
        await until(lambda: any(map(leads, others)))
        await asyncio.sleep(3.0)
        ended.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*running)
        assert before > 20
        assert len(answers) > before + 20, "the others go on under the new leader"
        assert set(answers) == {(200, True)}
        assert max(first.most_running, second.most_running) <= CAP, "no worker had more than its cap"
        assert first.received
        assert second.received
