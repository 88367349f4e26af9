"""Many environments that mostly wait share two cores: each continues in its turn, by the leader's log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.episodes import Json, OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from tests.e2e.parking_order import read_parking_order
from tests.e2e.test_parking import BURN, CORES, until_state
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import Conflict

ENVIRONMENTS, ROUNDS = 64, 2


async def episode(trainer: Trainer, client: AsyncTreadle, trajectory: str) -> Json:
    """One action that is parked twice; its answer."""
    action = await trainer.submit(trajectory, BURN.format(cpu_s=0.25, mark=""), timeout_s=60.0, budget_s=300.0)
    for _ in range(ROUNDS):
        if (await until_state(trainer, action, "granted", "finished"))["state"] == "finished":
            break
        try:
            await client.park(action, "a model call")
            await asyncio.sleep(0.5)
            await client.resume(action)
        except Conflict:
            break  # it has just ended
    return await until_state(trainer, action, "finished")


async def play(mesh: OneNodeMesh) -> list[Json]:
    """All episodes at once; their answers."""
    most = 0
    async with trainer_of(mesh) as trainer, AsyncTreadle(mesh.proxy.url) as client:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, (await trainer.used())["cores"])
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        trajectories = [await trainer.open(memory_mb=64) for _ in range(ENVIRONMENTS)]
        await asyncio.gather(*(trainer.bash(one, "true") for one in trajectories))  # else cores idle meanwhile
        answers = await asyncio.gather(*(episode(trainer, client, one) for one in trajectories))
        assert not watching.done(), "it has watched all the time"
        watching.cancel()
        await trainer.until_used(cores=0)
    assert most == CORES
    return answers


@pytest.mark.slow
def test_sixty_four_environments_that_wait_share_two_cores_and_none_is_passed(tmp_path: Path) -> None:
    with running_one_node_mesh(
        stimulus_logs=str(tmp_path), CPU_MANAGER_MEMORY_MB="8192", CPU_MANAGER_CORES=str(CORES)
    ) as mesh:
        answers = asyncio.run(play(mesh))
    assert {answer["ended"] for answer in answers} == {"ok"}
    assert sum(answer["stages"][0].get("parked_s", 0.0) > 0.3 for answer in answers) > ENVIRONMENTS / 2
    (log,) = tmp_path.iterdir()
    order = read_parking_order(log, CORES)
    assert len(order.waits) > ENVIRONMENTS / 2
    assert order.delayed, "none has waited for a core"
    assert order.running == order.parked == set(order.waiting) == set()
