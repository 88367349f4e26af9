"""Short functions for tests in an environment, and inspection of it from outside."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from services.cpu_manager.environments.protocol import ActEnd, Environment
from services.cpu_manager.kinds import IN_ENVIRONMENTS
from shared.messages.environments import EnvironmentSpec
from tests.services.cpu_manager.environments.models import CALL

CORES = sorted(os.sched_getaffinity(0))
CORE = frozenset(CORES[:1])
SMALL = EnvironmentSpec(memory_mb=256, disk_mb=64, pids=64)
WITH_MODEL = EnvironmentSpec(memory_mb=256, disk_mb=64, pids=64, model=True)


async def act(
    environment: Environment, kind: str, *, cores: frozenset[int] = CORE, timeout_s: float = 20.0, **params: Any
) -> ActEnd:
    """One action: `kind` without its `env.`."""
    name = f"env.{kind}"
    return await environment.act(name, msgspec.convert(params, IN_ENVIRONMENTS[name].params), cores, timeout_s)


async def output_of(environment: Environment, line: str, *, cores: frozenset[int] = CORE) -> str:
    """Return the output of a line that must succeed."""
    end = await act(environment, "bash", line=line, cores=cores)
    assert end.passed, end
    return str(end.output["output"]).rstrip("\n")


async def run(environment: Environment, program: str) -> ActEnd:
    """Run a Python program that may call its model."""
    return await act(environment, "exec", argv=["python3", "-c", CALL + program])


async def printed(environment: Environment, program: str) -> str:
    """Return what a program prints that must succeed."""
    end = await run(environment, program)
    assert end.passed, end
    return str(end.output["stdout"]).rstrip("\n")


async def in_background(environment: Environment, mark: str, code: str = "while True: pass") -> None:
    """Leave a Python program running that can be `found` by its mark."""
    begun = f"begun-{mark}"
    program = f"open({begun!r}, 'w'); exec({code!r})"
    await act(environment, "write", path=f"{mark}.py", content=program)
    await output_of(environment, f"python3 {mark}.py & until [ -e {begun} ]; do sleep 0.01; done")


def cpu_s_of(pid: int) -> float:
    """CPU time of a process and its threads so far, in the kernel's own nanoseconds."""
    with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[0]) / 1e9


def found(mark: str) -> list[int]:
    """Processes of this machine with `mark` among their arguments, but zombies."""
    pids = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123
                    if mark.encode() in file.read():
                        pids.append(int(name))
            except OSError:
                continue
    return pids


async def until_found(mark: str) -> None:
    await until(lambda: bool(found(mark)), f"{mark} never ran")


async def until_gone(mark: str) -> None:
    await until(lambda: not found(mark), f"{mark} still runs")


async def until(holds: Callable[[], bool], problem: str) -> None:
    """Wait ten seconds at most."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(problem)
