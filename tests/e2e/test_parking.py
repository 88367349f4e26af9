"""Parking on a real stack: frozen environments use no core, continue in turn, and end once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.e2e.episodes import Json, OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import Conflict

ENVIRONMENTS, ROUNDS = 64, 2
CORES = 2
BURN = "python3 -c 'import time\nwhile time.process_time() < {cpu_s}: pass'"


@pytest.fixture(scope="module")
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_MEMORY_MB="8192") as running:
        yield running


@pytest.fixture
async def client(mesh: OneNodeMesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.proxy.url) as made:
        yield made


async def until_state(trainer: Trainer, action: str, *states: str) -> Json:
    async with asyncio.timeout(60):
        while (answer := await trainer.state(action))["state"] not in states:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)
    return answer


async def parked(trainer: Trainer, client: AsyncTreadle, line: str, **more: float) -> tuple[str, str]:
    """Return the trajectory and the action of a line that is parked and holds no core."""
    trajectory = await trainer.open(memory_mb=64)
    await trainer.bash(trajectory, "true")
    action = await trainer.submit(trajectory, line, **more)
    await until_state(trainer, action, "granted")
    await asyncio.sleep(0.2)
    await client.park(action, "a model call")
    await trainer.until_used(cores=0)
    return trajectory, action


async def test_it_stands_still_and_continues(mesh: OneNodeMesh, client: AsyncTreadle) -> None:
    async with trainer_of(mesh) as trainer:
        _, action = await parked(trainer, client, BURN.format(cpu_s=1.0))
        state = await trainer.state(action)
        assert (state["state"], state["reason"]) == ("parked", "a model call")
        await asyncio.sleep(1.5)
        assert (await trainer.state(action))["state"] == "parked", "it computes for one second"
        await client.resume(action)
        answer = await until_state(trainer, action, "finished")
        assert answer["ended"] == "ok", answer
        assert answer["stages"][0]["parked_s"] > 1.0
        with pytest.raises(Conflict, match="answered"):
            await client.park(action)


async def test_what_is_no_environment_action_is_refused(mesh: OneNodeMesh, client: AsyncTreadle) -> None:
    async with trainer_of(mesh) as trainer:
        trajectory = await trainer.open(memory_mb=64)
        action = await trainer.submit(trajectory, "sleep 1")
        with pytest.raises(Conflict, match="not parked"):
            await client.resume(action)


@pytest.mark.parametrize("end", ["cancel", "close", "deadline"])
async def test_it_ends_once_while_it_is_parked(mesh: OneNodeMesh, client: AsyncTreadle, end: str) -> None:
    async with trainer_of(mesh) as trainer:
        more = {"budget_s": 4.0} if end == "deadline" else {}
        trajectory, action = await parked(trainer, client, "sleep 1000", **more)
        if end == "cancel":
            await trainer.cancel(action)
        elif end == "close":
            await trainer.close(trajectory)
        answer = await until_state(trainer, action, "finished")
        assert answer["ended"] == ("expired" if end == "deadline" else "cancelled"), answer
        if end != "close":
            assert (await trainer.bash(trajectory, "echo next"))["ended"] == "ok"
        await trainer.until_used(cores=0)


@pytest.mark.slow
async def test_sixty_four_environments_that_wait_share_two_cores(mesh: OneNodeMesh, client: AsyncTreadle) -> None:
    async with trainer_of(mesh) as trainer:

        async def episode() -> Json:
            trajectory = await trainer.open(memory_mb=64)
            action = await trainer.submit(trajectory, BURN.format(cpu_s=0.3), budget_s=300.0)
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

        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, (await trainer.used())["cores"])
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(episode() for _ in range(ENVIRONMENTS)))
        watching.cancel()
        assert {answer["ended"] for answer in answers} == {"ok"}
        assert sum(answer["stages"][0].get("parked_s", 0.0) > 0.3 for answer in answers) > ENVIRONMENTS / 2
        assert most <= CORES
        await trainer.until_used(cores=0)


async def test_a_killed_manager_ends_it_once(mesh: OneNodeMesh, client: AsyncTreadle) -> None:
    """Last: the node begins anew."""
    async with trainer_of(mesh) as trainer:
        _, action = await parked(trainer, client, "sleep 1000")
        mesh.kill_manager()
        mesh.start_manager()
        await mesh.until_ready()
        answer = await until_state(trainer, action, "finished")
        assert (answer["ended"], answer["mask"]) == ("unknown-outcome", True), answer
        trainer.opened.clear()
