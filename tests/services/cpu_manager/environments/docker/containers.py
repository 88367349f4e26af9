"""Common parts of the container tests: an environment to act in, and inspection of it from outside."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any, Self

from services.cpu_manager.environments.docker.runtime import ContainerEnvironment, DockerRuntime
from services.cpu_manager.environments.protocol import ActEnd
from services.cpu_manager.kinds import EnvBash, EnvExec
from shared.messages.environments import EnvironmentSpec

CORE = frozenset({min(os.sched_getaffinity(0))})
_numbers = itertools.count(1)


def node_name() -> str:
    """Name of a node of this test run alone; containers of other names are not touched."""
    return f"test-{os.getpid()}-{next(_numbers)}"


class ActingEnvironment:
    """An environment with short methods for tests."""

    def __init__(self, environment: ContainerEnvironment) -> None:
        self.environment = environment

    @classmethod
    @contextlib.asynccontextmanager
    async def making(
        cls, runtime: DockerRuntime, image: str, *, trajectory: str = "", **spec: Any
    ) -> AsyncIterator[Self]:
        trajectory = trajectory or f"t{next(_numbers)}"
        environment = await runtime.create(trajectory, EnvironmentSpec(image=image, **spec), CORE)
        try:
            yield cls(environment)
        finally:
            await environment.close()

    async def exec(self, *argv: str, timeout_s: float = 20.0) -> ActEnd:
        return await self.environment.act("env.exec", EnvExec(argv=list(argv)), CORE, timeout_s)

    async def bash(self, line: str, timeout_s: float = 20.0, cores: frozenset[int] = CORE) -> ActEnd:
        return await self.environment.act("env.bash", EnvBash(line=line), cores, timeout_s)

    async def output_of(self, line: str) -> str:
        """Return the output of a line that must succeed."""
        end = await self.bash(line)
        assert end.passed, end
        return str(end.output["output"]).rstrip("\n")


def docker_output(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def containers_of(node: str) -> list[str]:
    return docker_output("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=treadle.node={node}").split()
