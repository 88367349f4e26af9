"""Abandoned containers are removed, however long the engine fails, and no others."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from services.cpu_manager.environments.docker import removal
from services.cpu_manager.environments.docker.engine import EngineRefusal
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import (
    CORE,
    ActingEnvironment,
    containers_of,
    docker_output,
    node_name,
)

pytestmark = [pytest.mark.docker]


class FailingRemovals:
    """The engine's removals; the next `fails` of them fail."""

    def __init__(self, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        self._remove = runtime._engine.remove
        self.fails = 0
        self.failed = asyncio.Event()
        monkeypatch.setattr(runtime._engine, "remove", self)

    async def __call__(self, container: str) -> None:
        if self.fails:
            self.fails -= 1
            self.failed.set()
            raise EngineRefusal(500, "driver failed to remove root filesystem: device or resource busy")
        await self._remove(container)


@pytest_asyncio.fixture
async def runtime(docker: None) -> AsyncIterator[DockerRuntime]:
    made = await DockerRuntime.open(node_name(), direct=False)
    yield made
    await made.close()
    assert containers_of(made._owner.node) == []


async def removed(runtime: DockerRuntime) -> None:
    """Wait until no removal is running."""
    async with asyncio.timeout(30):
        while runtime._removal._tasks:
            await asyncio.wait(set(runtime._removal._tasks))


async def test_the_removal_of_an_abandoned_start_does_not_touch_its_successor(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runtime.prepare(bare_image)
    failing_removals, started, post = FailingRemovals(runtime, monkeypatch), asyncio.Event(), runtime._engine.start

    async def start(container: str) -> None:
        await post(container)
        started.set()

    monkeypatch.setattr(runtime._engine, "start", start)
    first = asyncio.create_task(runtime.create("one", EnvironmentSpec(image=bare_image), CORE))
    await started.wait()
    failing_removals.fails = 1
    first.cancel()
    await asyncio.wait({first})
    await failing_removals.failed.wait()
    second = ActingEnvironment(await runtime.create("one", EnvironmentSpec(image=bare_image), CORE))
    await removed(runtime)
    assert await second.output_of("echo exists") == "exists"
    assert containers_of(runtime._owner.node) == [second.environment.handle.container]


async def test_a_start_that_is_abandoned_during_creation_does_not_touch_its_successor(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ActingEnvironment.making(runtime, bare_image):
        pass  # from now on it is known whether the engine bounds what is written, and a creation is one call
    create, asked, exists = runtime._engine.create, asyncio.Event(), asyncio.Event()

    async def slow(name: str, config: Mapping[str, Any]) -> str:
        """Return the first answer after the second container exists."""
        first = not asked.is_set()
        asked.set()
        container = await create(name, config)
        if first:
            await exists.wait()
        return container

    monkeypatch.setattr(runtime._engine, "create", slow)
    first = asyncio.create_task(runtime.create("one", EnvironmentSpec(image=bare_image), CORE))
    await asked.wait()
    first.cancel()
    await asyncio.wait({first})
    try:
        second = ActingEnvironment(await runtime.create("one", EnvironmentSpec(image=bare_image), CORE))
    finally:
        exists.set()
    await removed(runtime)
    assert await second.output_of("echo exists") == "exists"


@pytest.mark.parametrize("after", ["start", "handle"])
@pytest.mark.parametrize("direct", [True, False])
async def test_a_container_removed_while_it_is_connected_to_is_our_failure(
    bare_image: str, monkeypatch: pytest.MonkeyPatch, after: str, *, direct: bool
) -> None:
    runtime = await DockerRuntime.open(node_name(), direct=direct)
    owner: Any = runtime._engine if after == "start" else runtime._creator
    call = getattr(owner, after)

    async def then_remove(container: str) -> Any:
        answer = await call(container)
        docker_output("rm", "--force", container)
        return answer

    monkeypatch.setattr(owner, after, then_remove)
    try:
        with pytest.raises(RuntimeUnavailable, match="removed"):
            await runtime.create("one", EnvironmentSpec(image=bare_image), CORE)
    finally:
        await runtime.close()


async def test_a_removal_is_tried_until_the_engine_does_it(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "_PAUSE_S", 0.01)
    monkeypatch.setattr(removal, "_LONGEST_PAUSE_S", 0.02)
    failing_removals = FailingRemovals(runtime, monkeypatch)
    async with ActingEnvironment.making(runtime, bare_image):
        failing_removals.fails = 5 * removal.ATTEMPTS
    await removed(runtime)
    assert containers_of(runtime._owner.node) == []


async def test_closing_tries_at_once_and_gives_up_on_an_engine_that_does_not(
    bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await DockerRuntime.open(node_name())
    failing_removals = FailingRemovals(runtime, monkeypatch)
    monkeypatch.setattr(removal, "_PAUSE_S", 30.0)
    async with ActingEnvironment.making(runtime, bare_image):
        failing_removals.fails = 10**6
    await failing_removals.failed.wait()
    await asyncio.sleep(0)  # now it pauses for half a minute
    monkeypatch.setattr(removal, "_PAUSE_S", 0.01)
    await runtime.close()
    assert failing_removals.fails == 10**6 - 1 - removal.ATTEMPTS
    (left,) = containers_of(runtime._owner.node)
    docker_output("rm", "--force", "--volumes", left)
    docker_output("volume", "rm", "--force", runtime._creator.agent_volume.name)


async def test_filling_the_volume_survives_the_end_of_its_first_caller(
    bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await DockerRuntime.open(node_name())
    create, sent = runtime._engine.create, asyncio.Event()

    async def slow(name: str, config: Mapping[str, Any]) -> str:
        """Report the container only a moment after its creation."""
        container = await create(name, config)
        if "agent-volume" in name:
            sent.set()
            await asyncio.sleep(0.1)
        return container

    monkeypatch.setattr(runtime._engine, "create", slow)
    making = asyncio.create_task(runtime.create("one", EnvironmentSpec(image=bare_image), CORE))
    await sent.wait()
    making.cancel()
    await asyncio.wait({making})
    await runtime.close()
    assert containers_of(runtime._owner.node) == []
    assert runtime._creator.agent_volume.name not in docker_output("volume", "ls", "--quiet").split()
