"""A container without network reaches its own model at a loopback address, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import BadEnvironment
from shared.messages.environments import MODEL_PORT, EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import (
    CORE,
    ActingEnvironment,
    containers_of,
    docker_output,
    node_name,
)
from tests.services.cpu_manager.environments.models import CALL, ModelMesh, connections_of, model_mesh
from tests.services.trajectory_router.conftest import StartRouter, start_router
from tests.services.trajectory_router.engine import free_port

__all__ = ["start_router"]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="entering a container's network namespace needs root"),
]


@pytest.fixture
async def mesh(start_router: StartRouter, redis_url: str, database_url: str) -> AsyncIterator[ModelMesh]:
    async with model_mesh(await start_router(1, port=free_port()), redis_url, database_url) as made:
        yield made


@pytest.fixture
async def models(docker: None, mesh: ModelMesh) -> AsyncIterator[DockerRuntime]:
    made = await DockerRuntime.open(node_name(), models=mesh.forwarder)
    yield made
    await made.close()


async def printed(container: ActingEnvironment, program: str) -> str:
    end = await container.exec("python3", "-c", CALL + program)
    assert end.passed, end
    return str(end.output["stdout"]).rstrip("\n")


async def test_a_program_in_a_container_calls_its_model(
    models: DockerRuntime, mesh: ModelMesh, tools_image: str
) -> None:
    trajectory = (await mesh.opened())["id"]
    async with ActingEnvironment.making(models, tools_image, trajectory=trajectory, model=True) as container:
        assert await printed(container, "print(openai().read().decode())") == mesh.engine.whole().decode().rstrip()
        streamed = await printed(container, "print(repr(openai(stream=True).read()))")
        assert streamed == repr(b"".join(mesh.engine.events()))
        assert mesh.forwarder._keys is not None
        assert mesh.forwarder._keys.of(trajectory) not in await container.output_of("env")
        (found,) = containers_of(models._owner.node)
        assert docker_output("inspect", "--format", "{{.HostConfig.NetworkMode}}", found) == "none"
        assert mesh.forwarder._keys.of(trajectory) not in docker_output("inspect", found)
        refused = "import socket\ntry: socket.create_connection(%r, 2)\nexcept OSError as error: print(error.errno)"
        assert await printed(container, refused % (("10.0.0.1", 80),)) == "101"
        assert await printed(container, refused % (("127.0.0.1", URL(mesh.router.url).port),)) == "111"
    for _ in range(500):
        if connections_of(mesh.forwarder) == 0:
            break
        await asyncio.sleep(0.02)
    assert (connections_of(mesh.forwarder), mesh.forwarder._listeners) == (0, {})


async def test_a_successor_serves_the_container_again(mesh: ModelMesh, docker: None, tools_image: str) -> None:
    trajectory, node = (await mesh.opened())["id"], node_name()
    first = await DockerRuntime.open(node, models=mesh.forwarder)
    async with ActingEnvironment.making(first, tools_image, trajectory=trajectory, model=True) as container:
        assert await printed(container, "print(openai().status)") == "200"
        first._claim.close()
        mesh.forwarder.forget(trajectory)
        second = await DockerRuntime.open(node, models=mesh.forwarder)
        (survivor,) = await second.survivors()
        adopted = ActingEnvironment(survivor)  # type: ignore[arg-type]
        assert await printed(adopted, "print(openai().status)") == "200"
        await survivor.close()
        await second.close()
    await first.close()


async def test_where_the_manager_cannot_enter_it_is_refused(mesh: ModelMesh, docker: None, tools_image: str) -> None:
    through_the_engine = await DockerRuntime.open(node_name(), models=mesh.forwarder, direct=False)
    with pytest.raises(BadEnvironment, match="root on the engine's host"):
        async with ActingEnvironment.making(through_the_engine, tools_image, model=True):
            pass
    await through_the_engine.close()


async def test_a_container_that_has_the_port_is_refused(
    models: DockerRuntime, mesh: ModelMesh, tools_image: str
) -> None:
    async with ActingEnvironment.making(models, tools_image) as container:
        await container.bash(f"python3 -m http.server {MODEL_PORT} --bind 127.0.0.1 > /dev/null 2>&1 & sleep 1")
        handle = container.environment.handle
        with pytest.raises(OSError, match="in use"):
            await handle.listen(MODEL_PORT)  # type: ignore[union-attr]


async def test_a_runtime_without_access_refuses_it(docker: None, tools_image: str) -> None:
    plain = await DockerRuntime.open(node_name())
    with pytest.raises(BadEnvironment, match="reaches no model"):
        await plain.create("t", EnvironmentSpec(image=tools_image, model=True), CORE)
    await plain.close()
