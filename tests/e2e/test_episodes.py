"""Whole episodes in trajectories' environments, over HTTP, on a real node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.episodes import OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from treadle.lab.bench.episodes import play_episode
from treadle.testing.small_image import small_image

ENVIRONMENTS, STEPS = 24, 50
IMAGE = f"treadletest-episodes-{os.getpid()}:python"
MEMORY_MB = 64


@pytest.fixture(scope="module")
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_MEMORY_MB="4096") as running:
        yield running


@pytest.fixture
def image(request: pytest.FixtureRequest) -> str:
    """An image of the requested runtime."""
    if request.param == "local":
        return "local"
    request.getfixturevalue("docker")
    return str(request.getfixturevalue("container_image"))


@pytest.fixture(scope="module")
def container_image() -> Iterator[str]:
    with small_image(IMAGE, python=True) as tag:
        yield tag


each = pytest.mark.parametrize("image", ["local", pytest.param("docker", marks=pytest.mark.docker)], indirect=True)


@pytest.mark.slow
@each
async def test_two_dozen_environments_keep_their_state_through_fifty_actions_each(
    mesh: OneNodeMesh, image: str
) -> None:
    async with trainer_of(mesh) as trainer:

        async def episode(seed: int) -> list[str]:
            trajectory = await trainer.open(image=image, memory_mb=MEMORY_MB)
            answers, wrong = await play_episode(partial(trainer.act, trajectory), seed, STEPS)
            assert len(answers) == STEPS
            await trainer.close(trajectory)
            return wrong

        wrong = await asyncio.gather(*(episode(seed) for seed in range(ENVIRONMENTS)))
        assert [difference for one in wrong for difference in one] == []
        await trainer.until_used(cores=0, memory_mb=0)


@each
async def test_cores_are_held_during_an_action_and_memory_for_the_whole_trajectory(
    mesh: OneNodeMesh, image: str
) -> None:
    async with trainer_of(mesh) as trainer:
        trajectory = await trainer.open(image=image, memory_mb=MEMORY_MB)
        await trainer.bash(trajectory, "while true; do :; done &")
        await trainer.until_used(cores=0, memory_mb=MEMORY_MB)
        await trainer.close(trajectory)
        await trainer.until_used(cores=0, memory_mb=0)


@each
async def test_a_trainer_that_vanishes_leaves_nothing_behind(mesh: OneNodeMesh, image: str) -> None:
    async with trainer_of(mesh) as trainer:
        trajectory = await trainer.open(image=image, memory_mb=MEMORY_MB, idle_s=0.5)
        await trainer.bash(trajectory, "sleep 1000 &")
        await trainer.until_used(memory_mb=0)
        view = await ended(trainer, trajectory)
        assert (view["state"], view["reason"]) == ("expired", "it was idle for 0.5 s")
        refused = await trainer.bash(trajectory, "true")
        assert refused["status"] == 409, refused


@each
async def test_an_action_that_scales_receives_its_number_of_cores(mesh: OneNodeMesh, image: str) -> None:
    wide = {"units": {"cores": [1, 2]}, "elasticity": {"model": "amdahl", "serial": 0.01}, "duration_s": 20.0}
    async with trainer_of(mesh) as trainer:
        trajectory = await trainer.open(image=image, memory_mb=MEMORY_MB)
        answer = await trainer.bash(trajectory, "echo {dop}; nproc", **wide)
        assert answer["output"]["output"] == "2\n2\n", answer
        assert [stage["units"] for stage in answer["stages"]] == [2]
        narrow = await trainer.bash(trajectory, "echo {dop}; nproc")
        assert narrow["output"]["output"] == "1\n1\n", narrow
        await trainer.close(trajectory)


async def test_a_failed_creation_is_refused_for_its_trajectory_alone(mesh: OneNodeMesh) -> None:
    async with trainer_of(mesh) as trainer:
        broken = await trainer.open(memory_mb=MEMORY_MB, setup=["echo made it this far; exit 3"])
        answer = await trainer.bash(broken, "true")
        assert (answer["ended"], answer["mask"]) == ("refused", True), answer
        assert "made it this far" in answer["reason"], answer
        fine = await trainer.open(memory_mb=MEMORY_MB, setup=["greeting=hello; echo $greeting > greeting"])
        assert (await trainer.bash(fine, "cat greeting"))["output"]["output"] == "hello\n"
        await trainer.close(fine)
        await trainer.close(broken)
        await trainer.until_used(memory_mb=0)


async def test_closing_ends_what_runs_and_cancels_what_waits(mesh: OneNodeMesh) -> None:
    async with trainer_of(mesh) as trainer:
        trajectory = await trainer.open(memory_mb=MEMORY_MB)
        await trainer.bash(trajectory, "true")
        pending = [asyncio.create_task(trainer.bash(trajectory, "sleep 100", timeout_s=120)) for _ in range(3)]
        await trainer.until_used(cores=1)
        await trainer.close(trajectory)
        answers = await asyncio.gather(*pending)
        assert {answer["ended"] for answer in answers} == {"cancelled"}
        await trainer.until_used(cores=0, memory_mb=0)


async def ended(trainer: Trainer, trajectory: str) -> dict[str, str]:
    async with asyncio.timeout(30):
        while True:
            view = await trainer.view(trajectory)
            if view["state"] != "open":
                return view
            await asyncio.sleep(0.05)
