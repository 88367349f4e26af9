"""What the tests of containers share: a live environment to act in, and looks at it from outside."""

import contextlib
import itertools
import os
import subprocess
from collections.abc import AsyncIterator
from typing import Any, Self

from services.cpu_manager.environments.docker.runtime import ContainerEnvironment, DockerRuntime
from services.cpu_manager.environments.protocol import ActEnd
from shared.messages.environments import EnvironmentSpec
from shared.messages.kinds import EnvBash, EnvExec

CORE = frozenset({min(os.sched_getaffinity(0))})
_numbers = itertools.count(1)


def node_name() -> str:
    """A node of this test run alone: what carries another's name is left in peace."""
    return f"test-{os.getpid()}-{next(_numbers)}"


class Acting:
    """An environment, and short words for what the tests do in it."""

    def __init__(self, environment: ContainerEnvironment) -> None:
        self.environment = environment

    @classmethod
    @contextlib.asynccontextmanager
    async def making(cls, runtime: DockerRuntime, image: str, **spec: Any) -> AsyncIterator[Self]:
        trajectory = f"t{next(_numbers)}"
        environment = await runtime.create(trajectory, EnvironmentSpec(image=image, **spec), CORE)
        try:
            yield cls(environment)
        finally:
            await environment.close()

    async def exec(self, *argv: str, timeout_s: float = 20.0) -> ActEnd:
        return await self.environment.act("env.exec", EnvExec(argv=list(argv)), CORE, timeout_s)

    async def bash(self, line: str, timeout_s: float = 20.0, cores: frozenset[int] = CORE) -> ActEnd:
        return await self.environment.act("env.bash", EnvBash(line=line), cores, timeout_s)

    async def says(self, line: str) -> str:
        """What a line says that has to succeed."""
        end = await self.bash(line)
        assert end.passed, end
        return str(end.output["output"]).rstrip("\n")


def docker_says(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def containers_of(node: str) -> list[str]:
    return docker_says("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=treadle.node={node}").split()
