"""The container engine: an image for the bench's environments, and the cost of an action through the engine's API."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import aiodocker
from aiodocker.exceptions import DockerError
from aiodocker.types import JSONValue

from treadle.lab.bench.figures import BenchError
from treadle.testing.small_image import small_image

CALL_S = 60.0


@contextmanager
def bench_image() -> Iterator[str]:
    """Create a small image with Python; delete it at the end.

    Raises:
        BenchError: no engine answers here.
    """
    try:
        with small_image(f"treadle-bench-{os.getpid()}:python", python=True) as tag:
            yield tag
    except FileNotFoundError as error:
        raise BenchError(f"--docker needs a container engine and its command: {error}") from error
    except subprocess.CalledProcessError as error:
        raise BenchError(f"--docker: {error.stderr.strip() or error}") from error


async def by_the_engine(image: str, times: int) -> list[float]:
    """Return the seconds of `docker update` of the cores and `docker exec` of `true`, for comparison.

    Raises:
        BenchError: the engine fails.
    """
    docker = aiodocker.Docker()
    try:
        async with asyncio.timeout(CALL_S):
            config: dict[str, JSONValue] = {"Image": image, "Cmd": ["sleep", "1000"], "NetworkDisabled": True}
            container = await docker.containers.create(config)
            try:
                await container.start()
                return [await _update_and_exec(docker, container) for _ in range(times)]
            finally:
                await container.delete(force=True)
    except (DockerError, TimeoutError) as error:
        raise BenchError(f"the container engine: {error}") from error
    finally:
        await docker.close()


async def _update_and_exec(docker: aiodocker.Docker, container: aiodocker.containers.DockerContainer) -> float:
    began = perf_counter()
    body = {"CpusetCpus": str(min(os.sched_getaffinity(0)))}
    await docker._query_json(f"containers/{container.id}/update", method="POST", data=body)  # no call in aiodocker
    execution = await container.exec(["true"])
    async with execution.start() as stream:
        while await stream.read_out() is not None:
            pass
    return perf_counter() - began
