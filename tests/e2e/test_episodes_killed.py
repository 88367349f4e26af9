"""`kill -9` in the midst of episodes: of manager, container and engine. No answer is lost, and none is made up.

Environments that survive continue with their state; the others are reported as `environment-lost`. At most the action
that ran at that moment is `unknown-outcome`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.containers.engine import PrivateEngine, private_engine
from tests.e2e.episodes import NODE, WAIT_S, OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from treadle.lab.bench.episodes import play_episode
from treadle.testing.small_image import small_image

IMAGE = f"treadletest-killed-{os.getpid()}:python"
MEMORY_MB = 64
OURS = {"unknown-outcome", "environment-lost", "sandbox-lost", "node-lost"}

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def engine(docker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
    with private_engine() as running:
        yield running


@pytest.fixture(scope="module")
def image(engine: PrivateEngine) -> Iterator[str]:
    """Made on the engine of the machine, and carried to the one that will be killed."""
    with small_image(IMAGE, python=True) as tag:
        saved = subprocess.run(["docker", "save", tag], capture_output=True, timeout=120, check=True).stdout
        engine.docker("load", stdin=saved)
        yield tag


@pytest.fixture(scope="module")
def mesh(engine: PrivateEngine) -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_MEMORY_MB="4096", CPU_MANAGER_ENGINE=engine.url) as running:
        yield running


def containers(engine: PrivateEngine) -> list[str]:
    found = engine.docker("ps", "--quiet", "--no-trunc", "--filter", f"label=treadle.node={NODE}").stdout
    return found.decode().split()


async def test_containers_outlive_their_manager_with_all_they_hold(mesh: OneNodeMesh, image: str) -> None:
    async with trainer_of(mesh) as trainer:
        kept = await trainer.open(image=image, memory_mb=MEMORY_MB)
        await trainer.bash(kept, "v=7; cd /tmp; echo x > here; sleep 1000 & child=$!")
        local = await trainer.open(memory_mb=MEMORY_MB)
        await trainer.bash(local, "v=8")
        running = asyncio.create_task(trainer.bash(kept, "sleep 60", timeout_s=120))
        await trainer.until_used(cores=1)
        await asyncio.to_thread(mesh.kill_manager)
        waiting = asyncio.create_task(trainer.bash(kept, 'echo "$v $PWD $(cat here)"; kill -0 $child && echo alive'))
        of_local = asyncio.create_task(trainer.bash(local, "echo $v"))
        mesh.start_manager()
        await mesh.until_ready()
        assert (await running)["ended"] == "unknown-outcome"
        answer = await waiting
        assert answer["ended"] == "ok", answer
        assert answer["output"]["output"] == "7 /tmp x\nalive\n", "the shell, its directory and its children continue"
        # It may have been granted to the node after its end; then its outcome is unknown.
        answer = await of_local
        assert answer.get("ended") in ("environment-lost", "unknown-outcome") or answer.get("status") == 409, answer
        refused = await trainer.bash(local, "echo $v")
        assert refused.get("ended") == "environment-lost" or refused.get("status") == 409, refused
        for trajectory in (kept, local):
            await trainer.close(trajectory)
        await trainer.until_used(cores=0, memory_mb=0)


async def test_only_the_killed_container_is_lost(mesh: OneNodeMesh, engine: PrivateEngine, image: str) -> None:
    async with trainer_of(mesh) as trainer:
        victim = await trainer.open(image=image, memory_mb=MEMORY_MB)
        await trainer.bash(victim, "true")
        container = containers(engine)[0]  # the newest; an older one may still be on its way out
        other = await trainer.open(image=image, memory_mb=MEMORY_MB)
        await trainer.bash(other, "v=1")
        engine.docker("kill", container)
        answer = await trainer.bash(victim, "true")
        assert answer.get("ended") in OURS or answer.get("status") == 409, answer
        assert (await trainer.bash(other, "echo $v"))["output"]["output"] == "1\n"
        for trajectory in (victim, other):
            await trainer.close(trajectory)
        await trainer.until_used(cores=0, memory_mb=0)


async def test_episodes_continue_while_the_engine_is_killed_and_restarted(
    mesh: OneNodeMesh, engine: PrivateEngine, image: str
) -> None:
    """Actions in environments do not need the engine; environments that begin meanwhile wait, or have the reason."""
    async with trainer_of(mesh) as trainer:
        trajectories = [await trainer.open(image=image, memory_mb=MEMORY_MB) for _ in range(4)]
        for trajectory in trajectories:
            await trainer.bash(trajectory, "true")
        episodes = [
            asyncio.create_task(play_episode(partial(trainer.act, trajectory), seed, 30))
            for seed, trajectory in enumerate(trajectories)
        ]
        await asyncio.to_thread(engine.kill)
        await asyncio.to_thread(engine.start)
        for answers, wrong in await asyncio.gather(*episodes):
            assert wrong == []
            assert len(answers) == 30
        for trajectory in trajectories:
            await trainer.close(trajectory)
        await trainer.until_used(cores=0, memory_mb=0)
        async with asyncio.timeout(WAIT_S):  # they are removed after their memory is given back
            while await asyncio.to_thread(containers, engine):  # noqa: ASYNC110  # no other signal exists
                await asyncio.sleep(0.1)


async def test_every_action_is_answered_once_after_each_kill(
    mesh: OneNodeMesh, engine: PrivateEngine, image: str
) -> None:
    async with trainer_of(mesh) as trainer:
        trajectories = [await trainer.open(image=image, memory_mb=MEMORY_MB) for _ in range(6)]
        episodes = [asyncio.create_task(_count(trainer, trajectory, 40)) for trajectory in trajectories]
        await trainer.until_used(memory_mb=6 * MEMORY_MB)
        await asyncio.to_thread(mesh.kill_manager)
        mesh.start_manager()
        await mesh.until_ready()
        for unknown, lost in await asyncio.gather(*episodes):
            assert unknown <= 1, "at most the action that ran just then"
            assert not lost
        for trajectory in trajectories:
            await trainer.close(trajectory)
        await trainer.until_used(cores=0, memory_mb=0)


async def _count(trainer: Trainer, trajectory: str, steps: int) -> tuple[int, int]:
    """Count upwards in a file, one action a step. Returns how many ended unknown, and how many lost."""
    unknown = lost = done = 0
    for _ in range(steps):
        answer = await trainer.bash(trajectory, "echo x >> /tmp/count; wc -l < /tmp/count")
        if answer.get("ended") == "unknown-outcome":
            unknown += 1
            continue
        if answer.get("ended") != "ok":
            lost += 1
            continue
        done += 1
        counted = int(answer["output"]["output"])
        assert done <= counted <= done + unknown, "an action was executed twice, or not at all"
    return unknown, lost
