"""Images select their runtime, and are prepared in the background."""

from __future__ import annotations

import pytest

from services.cpu_manager.environments import runtimes as runtimes_module
from services.cpu_manager.environments.protocol import BadEnvironment
from services.cpu_manager.environments.runtimes import Runtimes
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.node_parts import FakeEnvironment, FakeRuntime, turns


def test_an_image_selects_its_runtime() -> None:
    local, docker = FakeRuntime("local"), FakeRuntime("docker")
    both = Runtimes([local, docker])

    assert both.names == ["docker", "local"]
    assert (both.of("local"), both.of("localhost/local"), both.of("debian:12")) == (local, docker, docker)
    with pytest.raises(BadEnvironment, match="no local runtime"):
        Runtimes([docker]).of("local")


async def test_concurrent_hints_prepare_an_image_once() -> None:
    docker = FakeRuntime("docker")
    runtimes = Runtimes([docker])
    for image in ("a", "b", "a", "local"):
        runtimes.prepare(image)
    await turns()
    assert docker.prepared == ["a", "b"]

    docker.go.set()
    await turns()
    runtimes.prepare("a")
    await turns()
    assert docker.prepared == ["a", "b", "a"]


async def test_hints_are_bounded_and_end_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes_module, "MOST_PREPARING", 2)
    docker = FakeRuntime("docker")
    runtimes = Runtimes([docker])
    for image in ("a", "b", "c"):
        runtimes.prepare(image)
    await turns()
    await runtimes.close()

    assert (docker.prepared, docker.closed) == (["a", "b"], True)


async def test_survivors_of_all_runtimes_are_returned() -> None:
    local, docker = FakeRuntime("local"), FakeRuntime("docker")
    one, another = (FakeEnvironment(runtime.name, EnvironmentSpec(), runtime) for runtime in (local, docker))
    local.standing_by, docker.standing_by = [one], [another]

    assert await Runtimes([local, docker]).survivors() == [one, another]
