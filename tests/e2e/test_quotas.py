"""Quotas on a real mesh: no more is granted at once or over time, also after a killed leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.replicas import Mesh, leads, running_mesh, until
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import QuotaRate, RewardRequest, StageTemplate, Task
from treadle.testing.servers import running_valkey

WAIT_S = 90
SLEEP_S = 0.2
REPORTED_LATE_S = 0.02
"""Queueing is measured by the leader and execution by the node."""


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with running_valkey(stack_home) as url, running_mesh(url, proxies=2, managers=2, cores=1) as running:
        yield running


def most_at_once(answers: list[Answer], amount: float) -> float:
    """Largest sum of the amounts of actions that executed at the same time."""
    changes: list[tuple[float, float]] = []
    for answer in answers:
        assert answer.act is not None
        begin_s = answer.arrived_at + answer.act.queue_s + REPORTED_LATE_S
        changes += [(begin_s, amount), (begin_s + answer.act.execution_s - 2 * REPORTED_LATE_S, -amount)]
    held = most = 0.0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


@pytest.mark.parametrize("killed", [False, True])
async def test_no_more_is_granted_at_once_than_the_quota_allows(mesh: Mesh, killed: bool) -> None:
    leader, other = mesh.proxies
    async with AsyncTreadle(other.url) as client:
        await client.quotas.set("search", concurrency=6)
        async with asyncio.timeout(WAIT_S):
            quotas = {"search": 2.0}
            running = [
                asyncio.ensure_future(client.run("sleep", {"seconds": SLEEP_S}, quotas=quotas)) for _ in range(30)
            ]
            await asyncio.sleep(3 * SLEEP_S)
            view = await client.quotas.view("search")
            assert (view.held, view.actions) == (6.0, 3)
            if killed:
                leader.kill()
                await until(lambda: leads(other))
            answers = await asyncio.gather(*running)
        assert [answer.ended for answer in answers] == ["ok"] * 30
        assert most_at_once(answers, 2.0) == 6.0, "all of it is used, and no more"
        view = await client.quotas.view("search")
        assert (view.held, view.actions) == (0.0, 0), "nothing leaks"


@pytest.mark.parametrize("killed", [False, True])
async def test_a_rate_gives_its_burst_and_its_refill(mesh: Mesh, killed: bool) -> None:
    leader, other = mesh.proxies
    rates = [QuotaRate(limit=10, period_s=1, burst=5), QuotaRate(limit=1000, period_s=86_400)]
    async with AsyncTreadle(other.url) as client:
        await client.quotas.set("search", rates=rates)
        async with asyncio.timeout(WAIT_S):
            running = [asyncio.ensure_future(client.run("noop", quotas={"search": 1})) for _ in range(45)]
            await asyncio.sleep(1.0)
            if killed:
                leader.kill()
                await until(lambda: leads(other))
            answers = await asyncio.gather(*running)
        begun = sorted(answer.arrived_at + answer.act.queue_s for answer in answers if answer.act is not None)
        assert len(begun) == 45
        for first in range(45):
            for last in range(first, 45):
                window_s = begun[last] - begun[first]
                assert last - first + 1 <= 5 + 10 * (window_s + 2 * REPORTED_LATE_S) + 1, (first, last, window_s)
        second, day = (await client.quotas.view("search")).rates
        assert 0 <= second.taken <= 5
        assert day.taken == pytest.approx(45, abs=0.1), "each call was counted once"
        assert day.free == pytest.approx(955, abs=0.1)
        assert day.full_at is not None
        assert day.full_at > answers[-1].arrived_at


async def test_work_without_its_quota_is_held_and_says_so(mesh: Mesh) -> None:
    async with AsyncTreadle(mesh.proxies[0].url) as client, aiohttp.ClientSession(mesh.proxies[1].url) as http:
        held = asyncio.ensure_future(client.run("noop", request_id="one", quotas={"judge": 2}))
        body: dict[str, Any] = {"kind": "noop", "request_id": "one", "quotas": {"judge": 2}}

        async def reason() -> str:
            async with http.post("/v1/actions", json=body) as response:
                return str((await response.json()).get("reason", ""))

        async def shows(text: str) -> None:
            async with asyncio.timeout(WAIT_S):
                while text not in await reason():  # noqa: ASYNC110  # polls the mesh
                    await asyncio.sleep(0.1)

        await shows("there is no quota 'judge'")
        await client.quotas.set("judge", concurrency=1)
        await shows("it needs 2 of the quota 'judge', whose concurrency is 1")
        await client.quotas.set("judge", rates=[QuotaRate(limit=3, unit="usd")])
        async with asyncio.timeout(WAIT_S):
            assert (await held).ended == "ok"
        (spent,) = (await client.quotas.view("judge")).rates
        assert (spent.taken, spent.free, spent.full_at, spent.unit) == (2.0, 1.0, None, "usd")
        body["request_id"] = "two"
        await shows("of which 1 are left and none is refilled")


async def test_stages_of_tasks_and_actions_of_trajectories_take_quotas(mesh: Mesh) -> None:
    async with AsyncTreadle(mesh.proxies[0].url) as client, asyncio.timeout(WAIT_S):
        await client.quotas.set("calls", rates=[QuotaRate(limit=10)])
        stages = [
            StageTemplate(name="plain", kind="noop"),
            StageTemplate(name="calls", kind="noop", quotas={"calls": 3}),
        ]
        await client.put_task("judged", Task(stages=stages))
        batch = await client.open_batch("judged", size=2)
        await client.submit(batch.id, [RewardRequest(request_id=name) for name in ("a", "b")])
        results = [result async for page in client.results(batch.id) for result in page]
        assert [result.ended for result in results] == ["ok", "ok"]
        opened = await client.trajectories.open()
        act = client.trajectories.act
        assert (await act(opened.id, "env.bash", {"line": "true"}, quotas={"calls": 4})).ended == "ok"
        (rate,) = (await client.quotas.view("calls")).rates
        assert (rate.taken, rate.free) == (10.0, 0.0)
