"""Through the engine: an end or failure between two of its calls leaves a container that is known to be frozen."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from tests.services.cpu_manager.environments.docker.containers import ActingEnvironment, docker_output, node_name

pytestmark = [pytest.mark.docker]


@pytest_asyncio.fixture
async def runtime(docker: None) -> AsyncIterator[DockerRuntime]:
    made = await DockerRuntime.open(node_name(), direct=False)
    yield made
    await made.close()


def is_frozen(acting: ActingEnvironment) -> bool:
    return docker_output("inspect", "--format", "{{.State.Paused}}", acting.environment.handle.container) == "true"


@pytest.mark.parametrize("call", ["unpause", "update", "pause"])
async def test_an_action_cancelled_at_any_call_leaves_it_frozen(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    post, asked = runtime._engine.post, asyncio.Event()

    async def watched(path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        if path.endswith(f"/{call}"):
            asyncio.get_running_loop().call_later(0.004, asked.set)
        return await post(path, what, body)

    async with ActingEnvironment.making(runtime, bare_image) as acting:
        await acting.output_of("kept=yes; (while :; do :; done) & true")
        monkeypatch.setattr(runtime._engine, "post", watched)
        action = asyncio.create_task(acting.bash("true"))
        await asked.wait()
        action.cancel()
        await asyncio.wait({action})
        assert action.cancelled()
        assert is_frozen(acting)
        assert await acting.output_of("echo $kept") == "yes"


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("call", ["unpause", "pause"])
async def test_a_call_whose_answer_was_lost_succeeds_when_repeated(
    runtime: DockerRuntime, bare_image: str, monkeypatch: pytest.MonkeyPatch, call: str, *, before: bool
) -> None:
    """The repeat succeeds whether or not the engine executed the call (`before` the answer was lost)."""
    post = runtime._engine.post
    lost: list[str] = []

    async def losing(path: str, what: str, body: Mapping[str, Any] | None = None) -> Any:
        if not path.endswith(f"/{call}") or lost:
            return await post(path, what, body)
        lost.append(path)
        if before:
            await post(path, what, body)
        raise RuntimeUnavailable("the engine did not answer")

    async with ActingEnvironment.making(runtime, bare_image) as acting:
        await acting.output_of("kept=yes")
        monkeypatch.setattr(runtime._engine, "post", losing)
        end = await acting.bash("true")
        assert lost
        if call == "unpause":
            assert end.ended_by == "lost"
            assert is_frozen(acting)
            assert await acting.output_of("echo $kept") == "yes"
        else:  # nothing keeps cores that were not granted
            assert not acting.environment.alive
