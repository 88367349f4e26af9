"""A container engine that starts after its node: actions that need an image wait for it, and are answered then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.episodes import OneNodeMesh, running_one_node_mesh, trainer_of
from tests.shared.bus.soon import soon
from treadle.testing.small_image import small_image

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker")]


ENGINE = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    """Socket of the engine that starts later."""
    return tmp_path / "docker.sock"


@pytest.fixture
def mesh(socket: Path) -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_ENGINE=f"unix://{socket}", CPU_MANAGER_ENGINE_RETRY_S="0.2") as running:
        yield running


async def test_an_action_for_an_image_waits_for_the_engine(mesh: OneNodeMesh, socket: Path) -> None:
    with small_image(f"treadletest-late-{os.getpid()}:python", python=True) as image:
        async with trainer_of(mesh) as trainer, aiohttp.ClientSession(mesh.proxy.url) as http:
            trajectory = await trainer.open(image=image, memory_mb=64)
            waiting = asyncio.create_task(trainer.bash(trajectory, "echo here"))

            async def is_stuck() -> bool:
                async with http.get("/v1/pools") as response:
                    pools = (await response.json())["pools"]
                return any(pool["name"] == "cores@default" and pool["stuck"] == 1 for pool in pools)

            await soon(is_stuck)
            await asyncio.to_thread(socket.symlink_to, ENGINE)
            answer = await waiting
            assert (answer["ended"], answer["output"]["output"]) == ("ok", "here\n"), answer
            async with http.get("/v1/nodes") as response:
                (node,) = (await response.json())["nodes"]
            assert node["runtimes"] == ["docker", "local"]
