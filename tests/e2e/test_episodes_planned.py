"""Trajectories in a whole stack: the planner cannot predict them and takes no units that they need."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.e2e.episodes import Trainer
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    environ = {"CPU_MANAGER_ENGINE": "none", "CPU_MANAGER_CORES": "2"}
    with temporary_home() as root, running_stack(root, environ=environ) as running:
        yield running


async def targets(http: aiohttp.ClientSession) -> dict[str, int | None]:
    async with http.get("/v1/pools") as response:
        return {pool["name"]: pool["target"] for pool in (await response.json())["pools"]}


async def test_an_environment_is_created_and_acts_while_targets_of_cores_are_0(stack: RunningStack) -> None:
    wide = {"units": {"cores": [1, 2]}, "elasticity": {"model": "amdahl", "serial": 0.01}, "duration_s": 20.0}
    async with aiohttp.ClientSession(stack.urls["proxy"]) as http:
        async with asyncio.timeout(60):
            while True:
                if (await targets(http)).get("cores@default") == 0:
                    break
                await asyncio.sleep(0.1)
        assert (await targets(http)).get("memory_mb@default") is None, "the planner has no targets for this memory"
        trainer = Trainer(http)
        trajectory = await trainer.open(memory_mb=64)
        assert (await trainer.bash(trajectory, "v=3; echo made"))["output"]["output"] == "made\n"
        answer = await trainer.bash(trajectory, "echo {dop} $v", **wide)
        assert answer["output"]["output"] == "2 3\n", answer
        await trainer.close(trajectory)
