"""Finding, at the start of a node, which runtimes it has; each that it lacks says why in the node's labels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.cpu_manager.environments.choice import DOCKER, Runtimes
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.local.runtime import LocalRuntime
from services.cpu_manager.environments.protocol import Runtime, RuntimeUnavailable
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Sandbox
from services.cpu_manager.settings import NO_ENGINE, CpuManagerSettings
from shared import log
from shared.messages.environments import LOCAL

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Opened:
    """What environments can be made with here."""

    runtimes: Runtimes
    labels: dict[str, str]
    """For people, in /v1/nodes: `runtime.<name>`, what it is or why it is not there."""


@asynccontextmanager
async def open_runtimes(settings: CpuManagerSettings, sandbox: Sandbox) -> AsyncIterator[Opened]:
    """Open what there is, and close it with every environment at the end."""
    found: list[Runtime] = []
    labels: dict[str, str] = {}
    for name, opening in ((LOCAL, _local), (DOCKER, _docker)):
        try:
            runtime, label = await opening(settings, sandbox)
        except RuntimeUnavailable as error:
            _log.info("no_runtime", runtime=name, reason=str(error))
            label = f"none: {error}"
        else:
            found.append(runtime)
        labels[f"runtime.{name}"] = label
    opened = Opened(Runtimes(found), labels)
    try:
        yield opened
    finally:
        await opened.runtimes.close()


async def _local(settings: CpuManagerSettings, sandbox: Sandbox) -> tuple[Runtime, str]:
    if not isinstance(sandbox, LocalSandbox):
        raise RuntimeUnavailable("no sandbox can be had")
    return await LocalRuntime.open(sandbox, output_bytes=settings.output_bytes), sandbox.ladder.chosen.value


async def _docker(settings: CpuManagerSettings, _: Sandbox) -> tuple[Runtime, str]:
    if settings.engine == NO_ENGINE:
        raise RuntimeUnavailable("switched off by CPU_MANAGER_ENGINE")
    docker = await DockerRuntime.open(settings.node, url=settings.engine, output_bytes=settings.output_bytes)
    return docker, docker.facts.version
