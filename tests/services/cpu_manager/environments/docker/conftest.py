"""A runtime on the real engine for each test module, with both kinds of handle; images from this machine's files.

``tools_image``  has a shell and Python; ``bare_image`` has a shell and no Python
"""

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from services.cpu_manager.environments.docker.runtime import DockerRuntime
from tests.services.cpu_manager.environments.docker.containers import ActingEnvironment, node_name
from treadle.testing.small_image import small_image


@pytest.fixture(scope="session")
def bare_image(docker: None) -> Iterator[str]:
    with small_image(f"treadletest{os.getpid()}:bare") as tag:
        yield tag


@pytest.fixture(scope="session")
def tools_image(docker: None) -> Iterator[str]:
    with small_image(f"treadletest{os.getpid()}:tools", python=True) as tag:
        yield tag


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["direct", "through the engine"])
async def runtime(request: pytest.FixtureRequest, docker: None) -> AsyncIterator[DockerRuntime]:
    """A runtime with direct handles, then one through the engine."""
    if request.param == "direct" and os.geteuid() != 0:
        pytest.skip("writing a container's control groups needs root")
    made = await DockerRuntime.open(node_name(), direct=request.param == "direct")
    yield made
    await made.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def acting(runtime: DockerRuntime, bare_image: str) -> AsyncIterator[ActingEnvironment]:
    """One environment in an image without Python."""
    async with ActingEnvironment.making(runtime, bare_image) as made:
        yield made
