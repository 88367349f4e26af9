"""Parking on a real stack, in local environments and in containers: no core, no time limit, and one end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest

from shared.messages.environments import LOCAL
from tests.e2e.episodes import Json, OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from tests.e2e.replicas import until
from tests.services.cpu_manager.environments.local.acting import cpu_s_of, found
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import Conflict
from treadle.testing.small_image import small_image

CORES = 2
ENDED = {"cancel": "cancelled", "close": "cancelled", "deadline": "expired", "lifetime": "environment-lost"}
BURN = "python3 -c 'import time\nwhile time.process_time() < {cpu_s}: pass' {mark}"


@pytest.fixture(scope="module")
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_MEMORY_MB="8192", CPU_MANAGER_CORES=str(CORES)) as running:
        yield running


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def image(request: pytest.FixtureRequest) -> Iterator[str]:
    """An image with Python, for each runtime."""
    if request.param == "local":
        yield LOCAL
        return
    request.getfixturevalue("docker")
    with small_image(f"treadletest-parked-{os.getpid()}:python", python=True) as tag:
        yield tag


@pytest.fixture
async def client(mesh: OneNodeMesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.proxy.url) as made:
        yield made


async def until_state(trainer: Trainer, action: str, *states: str) -> Json:
    async with asyncio.timeout(60):
        while (answer := await trainer.state(action))["state"] not in states:  # noqa: ASYNC110  # polls the mesh
            await asyncio.sleep(0.02)
    return answer


async def parked(
    trainer: Trainer,
    client: AsyncTreadle,
    line: str,
    *,
    image: str = LOCAL,
    environment: Mapping[str, Any] = MappingProxyType({}),
    **more: float,
) -> tuple[str, str]:
    """Return the trajectory and the action of a line that is parked and holds no core."""
    trajectory = await trainer.open(memory_mb=64, image=image, **environment)
    await trainer.bash(trajectory, "kept=yes")
    action = await trainer.submit(trajectory, line, **more)
    await until_state(trainer, action, "granted")
    await asyncio.sleep(0.2)
    await client.park(action, "a model call")
    await trainer.until_used(cores=0)
    return trajectory, action


async def test_it_stands_still_and_continues(mesh: OneNodeMesh, client: AsyncTreadle, image: str) -> None:
    """Neither CPU time nor its time limit passes, its core works for others, and its times add up."""
    mark = f"parked-{uuid.uuid4().hex}"
    async with trainer_of(mesh) as trainer:
        began = time.monotonic()
        burn = BURN.format(cpu_s=0.6, mark=mark)
        _, action = await parked(trainer, client, f"{burn}; echo $kept", image=image, timeout_s=3.0)
        state = await trainer.state(action)
        assert (state["state"], state["reason"]) == ("parked", "a model call")
        await asyncio.sleep(0.1)  # its last microseconds before the freezer are accounted a moment later
        used_s = [cpu_s_of(pid) for pid in found(mark)]
        assert used_s
        await asyncio.gather(*(other(trainer) for _ in range(CORES)))
        await asyncio.sleep(3.2)
        assert used_s == [cpu_s_of(pid) for pid in found(mark)]
        assert (await trainer.state(action))["state"] == "parked", "it computes for less than a second"
        await client.resume(action)
        answer = await until_state(trainer, action, "finished")
        assert (answer["ended"], answer["output"]["output"]) == ("ok", "yes\n"), answer
        stage = answer["stages"][0]
        assert stage["parked_s"] > 3.0
        assert sum(stage[part] for part in ("queue_s", "execution_s", "parked_s")) <= time.monotonic() - began
        with pytest.raises(Conflict, match="answered"):
            await client.park(action)


async def other(trainer: Trainer) -> None:
    """An action that needs a core."""
    trajectory = await trainer.open(memory_mb=64)
    assert (await trainer.bash(trajectory, "true"))["ended"] == "ok"


async def test_only_actions_of_environments_are_parked_and_only_parked_ones_continue(
    mesh: OneNodeMesh, client: AsyncTreadle
) -> None:
    plain = {"kind": "sleep", "params": {"seconds": 2}, "units": {"cores": 1}}
    async with trainer_of(mesh) as trainer, aiohttp.ClientSession(mesh.proxy.url) as http:
        async with http.post("/v1/actions", json=plain) as reply:
            action = (await reply.json())["id"]
        await until_state(trainer, action, "granted")
        with pytest.raises(Conflict, match="only an action of a trajectory can be parked"):
            await client.park(action)
        trajectory = await trainer.open(memory_mb=64)
        action = await trainer.submit(trajectory, "sleep 1")
        with pytest.raises(Conflict, match="not parked"):
            await client.resume(action)


@pytest.mark.parametrize(
    ("image", "end"),
    [
        ("local", "cancel"), ("local", "close"), ("local", "deadline"), ("local", "lifetime"),
        pytest.param("docker", "cancel", marks=pytest.mark.docker),
        pytest.param("docker", "deadline", marks=pytest.mark.docker),
    ],
    indirect=["image"],
)  # fmt: skip
async def test_it_ends_once_while_it_is_parked(mesh: OneNodeMesh, client: AsyncTreadle, image: str, end: str) -> None:
    mark = f"ends-{uuid.uuid4().hex}"
    async with trainer_of(mesh) as trainer:
        trajectory, action = await parked(
            trainer,
            client,
            f"sh -c 'sleep 1000; true' {mark}",
            image=image,
            environment={"lifetime_s": 5.0} if end == "lifetime" else {},
            **({"budget_s": 4.0} if end == "deadline" else {}),
        )
        assert found(mark)
        if end == "cancel":
            await trainer.cancel(action)
        elif end == "close":
            await trainer.close(trajectory)
        answer = await until_state(trainer, action, "finished")
        assert answer["ended"] == ENDED[end], answer
        assert (answer["mask"], answer.get("passed")) == (True, None), answer
        if end in ("cancel", "deadline"):
            assert (await trainer.bash(trajectory, "echo $kept"))["output"]["output"] == "yes\n"
        else:
            assert (await trainer.view(trajectory))["state"] == ("closed" if end == "close" else "expired")
        await until(lambda: not found(mark))
        await trainer.until_used(cores=0)


@pytest.mark.docker
@pytest.mark.parametrize("image", ["docker"], indirect=True)
async def test_a_parked_container_outlives_its_killed_manager(
    mesh: OneNodeMesh, client: AsyncTreadle, image: str
) -> None:
    async with trainer_of(mesh) as trainer:
        trajectory, action = await parked(trainer, client, "sleep 1000", image=image)
        mesh.kill_manager()
        mesh.start_manager()
        await mesh.until_ready()
        answer = await until_state(trainer, action, "finished")
        assert (answer["ended"], answer["mask"]) == ("unknown-outcome", True), answer
        assert (await trainer.bash(trajectory, "echo $kept"))["output"]["output"] == "yes\n"
        await trainer.until_used(cores=0)


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_an_ended_manager_ends_it_once(mesh: OneNodeMesh, client: AsyncTreadle, end: str) -> None:
    """Last: the node starts again. One action is parked, and one waits for a core to continue."""
    async with trainer_of(mesh) as trainer:
        trajectory, action = await parked(trainer, client, "sleep 1000")
        _, resumed = await parked(trainer, client, "sleep 1000")
        busy = [await trainer.submit(await trainer.open(memory_mb=64), "sleep 1000") for _ in range(CORES)]
        for each in busy:
            await until_state(trainer, each, "granted")
        await client.resume(resumed)
        if end == "killed":
            mesh.kill_manager()
        else:
            await asyncio.to_thread(mesh.stop_manager)
        mesh.start_manager()
        await mesh.until_ready()
        for each in (action, resumed, *busy):
            answer = await until_state(trainer, each, "finished")
            wanted = ("unknown-outcome",) if end == "killed" else ("unknown-outcome", "environment-lost")
            assert answer["ended"] in wanted, answer
            assert (answer["mask"], answer.get("passed")) == (True, None), answer
        assert (await trainer.view(trajectory))["state"] == "lost"
        assert (await trainer.bash(trajectory, "true"))["status"] == 409
        trainer.opened.clear()
