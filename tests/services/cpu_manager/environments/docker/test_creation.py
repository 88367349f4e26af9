"""Failed creations of environments: each has the right cause (trainer or us), and leaves nothing behind."""

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from services.cpu_manager.environments.docker.claim import Owner
from services.cpu_manager.environments.docker.container import name_of
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.protocol import BadEnvironment, RuntimeUnavailable
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.docker.containers import (
    CORE,
    ActingEnvironment,
    containers_of,
    docker_output,
    node_name,
)

pytestmark = [pytest.mark.docker]

_numbers = itertools.count(1)


class Node:
    """A runtime and the name of its node."""

    def __init__(self, name: str, runtime: DockerRuntime) -> None:
        self.name = name
        self.runtime = runtime

    async def makes(self, image: str, **spec: Any) -> None:
        await self.runtime.create("made", EnvironmentSpec(image=image, **spec), CORE)


@contextlib.contextmanager
def changed(image: str, lines: str) -> Iterator[str]:
    """An image like this one, with these lines of a Dockerfile."""
    made = f"{image}-{next(_numbers)}"
    build = ["docker", "build", "--quiet", "--tag", made, "-"]
    subprocess.run(build, input=f"FROM {image}\n{lines}\n", text=True, capture_output=True, timeout=60, check=True)
    try:
        yield made
    finally:
        docker_output("image", "rm", "--force", made)


@pytest_asyncio.fixture
async def node(docker: None) -> AsyncIterator[Node]:
    name = node_name()
    runtime = await DockerRuntime.open(name)
    yield Node(name, runtime)
    await runtime.close()
    assert containers_of(name) == []


async def test_set_up_lines_run_in_order_in_the_working_directory(node: Node, bare_image: str) -> None:
    setup = ["echo 1 > a", "cat a > b; echo $WORD >> b"]
    async with ActingEnvironment.making(
        node.runtime, bare_image, setup=setup, workdir="/new/work", env={"WORD": "w"}
    ) as made:
        assert (await made.exec("cat", "/new/work/b")).output["stdout"] == "1\nw\n"
        assert await made.output_of("pwd") == "/new/work"


async def test_a_failed_set_up_line_is_reported_with_its_output(node: Node, bare_image: str) -> None:
    with pytest.raises(BadEnvironment, match=r"'echo first; echo why; false' failed: exit code 1\nfirst\nwhy"):
        await node.makes(bare_image, setup=["true", "echo first; echo why; false", "touch /never"])


async def test_a_set_up_that_takes_too_long_is_the_trainers_fault(node: Node, bare_image: str) -> None:
    with pytest.raises(BadEnvironment, match="longer than 8 s"):
        await node.makes(bare_image, setup=["sleep 300"], setup_timeout_s=8.0)


async def test_a_working_directory_that_is_a_file_is_the_trainers_fault(node: Node, bare_image: str) -> None:
    with pytest.raises(BadEnvironment, match="etc/passwd"):
        await node.makes(bare_image, workdir="/etc/passwd")


async def test_an_image_whose_user_does_not_exist_is_refused(node: Node, bare_image: str) -> None:
    with changed(bare_image, "USER nobodyknows") as image, pytest.raises(BadEnvironment, match="nobodyknows"):
        await node.makes(image)


async def test_an_image_of_an_ordinary_user_works_as_that_user(node: Node, bare_image: str) -> None:
    with changed(bare_image, "USER nobody\nENV COLOUR=blue\nWORKDIR /tmp") as image:
        async with ActingEnvironment.making(node.runtime, image) as made:
            assert (
                await made.output_of("id -u; pwd; echo $COLOUR; touch mine && echo done") == "65534\n/tmp\nblue\ndone"
            )


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1, 0.25, 0.5, 0.8])
async def test_a_cancelled_creation_leaves_nothing(node: Node, bare_image: str, after_s: float) -> None:
    await node.runtime.prepare(bare_image)
    making = asyncio.create_task(node.makes(bare_image, setup=["sleep 300"]))
    await asyncio.wait({making}, timeout=after_s)
    making.cancel()
    await asyncio.wait({making})
    assert making.cancelled()
    await node.runtime.close()
    assert containers_of(node.name) == []


async def test_a_container_that_has_the_name_goes_first(node: Node, bare_image: str) -> None:
    owner = Owner(node.name)
    labels = [word for label in owner.filters for word in ("--label", label)]
    left = docker_output("create", "--name", name_of(owner, "made"), *labels, bare_image, "true")
    await node.makes(bare_image)
    assert left not in containers_of(node.name)


async def test_a_volume_that_somebody_removed_is_filled_again(node: Node, bare_image: str) -> None:
    await node.runtime.prepare(bare_image)
    (volume,) = (name for name in docker_output("volume", "ls", "--quiet").split() if node.name in name)
    docker_output("volume", "rm", volume)
    with pytest.raises(RuntimeUnavailable):
        await node.makes(bare_image)
    await node.makes(bare_image)


async def test_an_unreachable_engine_is_reported_at_once(tmp_path: Any) -> None:
    with pytest.raises(RuntimeUnavailable, match="out of reach"):
        await DockerRuntime.open("nowhere", url=f"unix://{tmp_path}/docker.sock")
