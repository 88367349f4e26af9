"""Two meshes on one host and one container engine, with nodes of the same name: neither touches the other's containers.

Each is a whole `treadle up`. Survivors of a killed manager belong to its mesh; `treadle down` leaves nothing of a mesh.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import aiohttp
import pytest
import redis

from services.cpu_manager.environments.docker.claim import Claim, Owner
from shared.bus.keys import MESH
from tests.e2e.episodes import NODE, WAIT_S, Json, OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from treadle.stack.operate import stop_stack
from treadle.testing.servers import temporary_home
from treadle.testing.small_image import small_image
from treadle.testing.stack import RunningStack, running_stack

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker")]

TWIN = f"twin-{os.getpid()}"
"""The name of both meshes' nodes."""
SERVICES = "proxy,cpu_manager"
BUSY = "echo begun > /tmp/begun; while :; do :; done"
STOP_S = 60.0


@pytest.fixture(scope="module")
def image(docker: None) -> Iterator[str]:
    with small_image(f"treadletest-twin-{os.getpid()}:bare") as tag:
        yield tag


@pytest.fixture(scope="module")
def twins() -> Iterator[tuple[RunningStack, RunningStack]]:
    environ = {"CPU_MANAGER_NODE": TWIN, "CPU_MANAGER_MEMORY_MB": "1024", "CPU_MANAGER_HEARTBEAT_S": "0.4"}
    with ExitStack() as stacks:
        homes = [stacks.enter_context(temporary_home()) for _ in range(2)]
        yield tuple(stacks.enter_context(running_stack(home, services=SERVICES, environ=environ)) for home in homes)  # type: ignore[misc]  # it is a pair


@asynccontextmanager
async def trainer(stack: RunningStack) -> AsyncIterator[Trainer]:
    timeout = aiohttp.ClientTimeout(total=2 * WAIT_S)
    async with aiohttp.ClientSession(stack.urls["proxy"], timeout=timeout) as http:
        yield Trainer(http)


def identity(stack: RunningStack) -> str:
    with redis.Redis.from_url(stack.redis_url) as client:
        return bytes(client.get(MESH)).decode()


def listed(what: str, mesh: str) -> list[str]:
    """Ids of this mesh's containers (`ps --all`) or volumes (`volume ls`)."""
    argv = ["docker", *what.split(), "--quiet", "--filter", f"label=treadle.mesh={mesh}"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()


def output(answer: Json) -> str:
    assert answer["ended"] == "ok", answer
    return str(answer["output"]["output"])


async def cores_used(stack: RunningStack) -> int:
    async with aiohttp.ClientSession(stack.urls["proxy"]) as http, http.get("/v1/nodes") as response:
        (node,) = (await response.json())["nodes"]
        return int(node["used"]["cores"])


async def busy(stack: RunningStack, each: Trainer, trajectory: str) -> asyncio.Task[Json]:
    """An action that never ends by itself, under way: its container is thawed."""
    running = asyncio.create_task(each.act(trajectory, "env.bash", {"line": BUSY, "session": "busy"}, 120))
    async with asyncio.timeout(WAIT_S):
        while await cores_used(stack) != 1:  # noqa: ASYNC110  # the other side is a process
            await asyncio.sleep(0.05)
    return running


async def test_neither_mesh_touches_the_others_containers_after_kills(
    twins: tuple[RunningStack, RunningStack], image: str
) -> None:
    first, second = twins
    meshes = [identity(stack) for stack in twins]
    async with trainer(first) as ours, trainer(second) as theirs:
        mine, other = [await each.open(image=image, memory_mb=64) for each in (ours, theirs)]
        for each, trajectory in ((ours, mine), (theirs, other)):
            assert output(await each.bash(trajectory, "v=kept")) == ""
        before = [listed("ps --all", mesh) for mesh in meshes]
        assert [len(found) for found in before] == [1, 1]
        for stack, each, trajectory in ((first, ours, mine), (second, theirs, other)):
            running = await busy(stack, each, trajectory)
            killed = await asyncio.to_thread(stack.kill, "cpu_manager")
            await asyncio.to_thread(stack.await_healthy, "cpu_manager", other_than=killed)
            assert (await running)["ended"] == "unknown-outcome"
            assert output(await ours.bash(mine, "echo $v")) == "kept\n"
            assert output(await theirs.bash(other, "echo $v")) == "kept\n"
            assert [listed("ps --all", mesh) for mesh in meshes] == before
        await theirs.close(other)
        async with asyncio.timeout(WAIT_S):
            while await asyncio.to_thread(listed, "ps --all", meshes[1]):  # noqa: ASYNC110  # the other side is a process
                await asyncio.sleep(0.1)
        # A whole stack is killed while its container is thawed and busy.
        running = await busy(first, ours, mine)
        first.supervisor.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.supervisor.wait, STOP_S)
        running.cancel()
        left = await theirs.open(image=image, memory_mb=64)
        assert output(await theirs.bash(left, "v=kept")) == ""
        assert await asyncio.to_thread(stop_stack, first.home.root)
        assert [listed(what, meshes[0]) for what in ("ps --all", "volume ls")] == [[], []]
        assert output(await theirs.bash(left, "echo $v")) == "kept\n"
    second.supervisor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(second.supervisor.wait, STOP_S) == 0
    assert [listed(what, meshes[1]) for what in ("ps --all", "volume ls")] == [[], []]


@pytest.fixture
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_ENGINE_RETRY_S="0.2") as running:
        yield running


async def test_a_manager_without_the_claim_reports_the_reason_until_it_has_the_claim(
    mesh: OneNodeMesh, image: str
) -> None:
    """Another manager of this mesh and this name runs on the host: the action waits with the reason, and then runs."""
    with redis.Redis.from_url(mesh.redis_url) as client:
        mesh_identity = bytes(client.get(MESH)).decode()
    await asyncio.to_thread(mesh.kill_manager)
    claim = Claim(Owner(NODE, mesh_identity))
    assert claim.held
    mesh.start_manager()
    await mesh.until_ready()
    async with trainer_of(mesh) as each, aiohttp.ClientSession(mesh.proxy.url) as http:
        trajectory = await each.open(image=image, memory_mb=64)
        waiting = asyncio.create_task(each.bash(trajectory, "echo here", request_id="first"))

        async def node() -> Json:
            async with http.get("/v1/nodes") as response:
                return dict((await response.json())["nodes"][0])

        async def reasons() -> str:
            async with http.get("/v1/pools") as response:
                return str([pool["lacks"] for pool in (await response.json())["pools"]])

        async with asyncio.timeout(WAIT_S):
            while "runtime.docker" not in await reasons():  # noqa: ASYNC110  # the other side is a process
                await asyncio.sleep(0.1)
        assert "another manager on this host owns the containers" in (await node())["labels"]["runtime.docker"]
        assert listed("ps --all", mesh_identity) == []
        claim.close()
        assert output(await waiting) == "here\n"
        assert "docker" in (await node())["runtimes"]
