"""Priorities of trajectories on a real mesh with one core: the newest one decides, also under the next leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.episodes import Trainer
from tests.e2e.replicas import Mesh, leads, running_mesh, until
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import running_valkey

WAIT_S = 60
NOW = "date +%s.%N"


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with running_valkey(stack_home) as url, running_mesh(url, proxies=2, managers=1, cores=1) as running:
        yield running


async def until_running(trainer: Trainer, action: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await trainer.state(action))["state"] != "granted":  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)


async def ended_at(http: aiohttp.ClientSession, action: str) -> float:
    async with http.get(f"/v1/actions/{action}?wait={WAIT_S}") as response:
        answer = await response.json()
        assert (response.status, answer["ended"]) == (200, "ok"), answer
        assert [stage["attempts"] for stage in answer["stages"]] == [1], answer
    return float(answer["output"]["output"])


@pytest.mark.parametrize("killed", [False, True])
async def test_the_trajectory_that_was_put_first_goes_first(mesh: Mesh, killed: bool) -> None:
    """Three trajectories share the core: the first keeps it for some seconds, and the others wait for it."""
    leader, other = mesh.proxies
    async with aiohttp.ClientSession(other.url) as http, AsyncTreadle(other.url) as client:
        trainer = Trainer(http)
        opened = [await trainer.open(memory_mb=64) for _ in range(3)]
        for trajectory in opened:
            assert (await trainer.bash(trajectory, "true"))["ended"] == "ok"
        running = await trainer.submit(opened[0], f"sleep 6; {NOW}")
        await until_running(trainer, running)
        early = await trainer.submit(opened[1], NOW)
        late = await trainer.submit(opened[2], NOW)

        assert (await client.trajectories.prioritize(opened[2], -600.0)).priority == -600.0
        assert (await trainer.state(running))["state"] == "granted", "the core was busy until the change was accepted"

        if killed:
            leader.kill()
            await until(lambda: leads(other))
        at = [await ended_at(http, action) for action in (running, late, early)]
        assert at == sorted(at), "running, late, early"
        assert (await trainer.view(opened[2]))["priority"] == -600.0
