"""The real engine pulls from a registry on the loopback: once a node, retried after an error."""

import asyncio
import contextlib
import itertools
import os
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import BadEnvironment
from services.cpu_manager.kinds import EnvRead
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import CORE, ActingEnvironment, node_name
from tests.services.cpu_manager.environments.docker.registry import LoopbackRegistry

pytestmark = [pytest.mark.docker]

_numbers = itertools.count(1)


@pytest_asyncio.fixture
async def registry(docker: None) -> AsyncIterator[LoopbackRegistry]:
    async with LoopbackRegistry.serving() as served:
        yield served
        for image in served.images:
            remove_from_engine(image)


def remove_from_engine(image: str) -> None:
    """Remove the image from the engine, if it is there."""
    remove = ["docker", "image", "rm", "--force", image]
    subprocess.run(remove, capture_output=True, timeout=60, check=False)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[DockerRuntime]:
    made = await DockerRuntime.open(node_name())
    try:
        yield made
    finally:
        await made.close()


def new_name() -> str:
    """No engine has ever seen it."""
    return f"treadletest{os.getpid()}-{next(_numbers)}"


async def test_an_image_is_pulled_once_for_all_requests_and_then_used(registry: LoopbackRegistry) -> None:
    name = new_name()
    image = registry.add(name)
    async with opened() as runtime:
        await asyncio.gather(*(runtime.prepare(image) for _ in range(16)))
        async with ActingEnvironment.making(runtime, image) as made:
            # There is nothing but one file in it: no shell, no libraries.
            read = await made.environment.act("env.read", EnvRead(path="/hello"), CORE, 20)
            assert read.output["content"] == name
            end = await made.exec("ls")
            assert (end.ended_by, end.passed, end.output["exit_code"]) == ("done", False, 127)
    blobs = {key: count for key, count in registry.asked.items() if key.startswith("sha256:")}
    assert set(blobs.values()) == {1}


async def test_a_pull_is_retried_after_a_registry_error(registry: LoopbackRegistry) -> None:
    image = registry.add(new_name())
    registry.down = 2
    async with opened() as runtime, ActingEnvironment.making(runtime, image) as made:
        assert made.environment.alive
    assert registry.down == 0


async def test_an_image_that_does_not_exist_is_its_trajectorys_error_alone(registry: LoopbackRegistry) -> None:
    good, missing = registry.add(new_name()), f"{registry.address}/{new_name()}:latest"
    async with opened() as runtime:
        with pytest.raises(BadEnvironment, match=missing):
            await runtime.create("bad", EnvironmentSpec(image=missing), CORE)
        async with ActingEnvironment.making(runtime, good) as made:
            assert made.environment.alive


async def test_an_image_for_other_machines_is_refused(registry: LoopbackRegistry) -> None:
    image = registry.add(new_name(), architecture="riscv64")
    async with opened() as runtime:
        with pytest.raises(BadEnvironment, match="made for linux/riscv64"):
            await runtime.create("bad", EnvironmentSpec(image=image), CORE)


async def test_preparing_what_cannot_be_had_raises_nothing(registry: LoopbackRegistry) -> None:
    async with opened() as runtime:
        await runtime.prepare(f"{registry.address}/{new_name()}:latest")
