"""Detection of a node's runtimes. Labels of the node give the reason for a missing one. An engine may come later."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from redis.asyncio import Redis

from services.cpu_manager.environments.docker.claim import NO_MESH
from services.cpu_manager.environments.docker.cleanup import CleanupRecord, forget, record_path
from services.cpu_manager.environments.docker.engine import EngineFacts
from services.cpu_manager.environments.docker.image_budget import ImageLedger, NoImageLedger, StoredImageLedger
from services.cpu_manager.environments.docker.runtime import DockerRuntime
from services.cpu_manager.environments.local.runtime import LocalRuntime
from services.cpu_manager.environments.protocol import Runtime, RuntimeUnavailable
from services.cpu_manager.environments.runtimes import DOCKER, Runtimes
from services.cpu_manager.forwarder.models import Models
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Sandbox
from services.cpu_manager.settings import NO_ENGINE, CpuManagerSettings
from shared.messages.environments import LOCAL
from shared.runtime import log

_log = log.get(__name__)


UNSEEN_BUDGET_MB = 102_400
"""Budget for images if the engine's disk is on another host."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MeshContext:
    """The mesh's data for its containers, images and models."""

    identity: str = NO_MESH
    """Identity of its store."""
    redis: Redis | None = None
    """The store; None: pulled images are remembered only in memory."""
    models: Models | None = None
    """Access of environments to their models; None: there is none."""

    def ledger(self, node: str, engine: str) -> ImageLedger:
        return StoredImageLedger(self.redis, node, engine) if self.redis is not None and engine else NoImageLedger()


@dataclass(frozen=True, slots=True)
class DetectedRuntimes:
    """The runtimes of this node."""

    runtimes: Runtimes
    labels: dict[str, str]
    """For people, in /v1/nodes: `runtime.<name>`, its description or the reason for its absence."""


@asynccontextmanager
async def open_runtimes(
    settings: CpuManagerSettings, sandbox: Sandbox, mesh: MeshContext
) -> AsyncIterator[DetectedRuntimes]:
    """Open all available runtimes for this mesh; at the end close them with every environment."""
    found: list[Runtime] = []
    labels: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in (LOCAL, DOCKER):
        try:
            runtime, label = await (_local(settings, sandbox, mesh) if name == LOCAL else _docker(settings, mesh))
        except RuntimeUnavailable as error:
            _log.info("runtime_unavailable", runtime=name, reason=str(error))
            label, missing[name] = f"none: {error}", str(error)
        else:
            found.append(runtime)
        labels[_label(name)] = label
    detected = DetectedRuntimes(Runtimes(found, missing), labels)
    try:
        yield detected
    finally:
        await detected.runtimes.close()


async def await_engine(settings: CpuManagerSettings, detected: DetectedRuntimes, mesh: MeshContext) -> None:
    """Wait for a container engine that was not available at the node's start; then add its runtime.

    The engine did not answer, or another manager owned this node's containers. Surviving environments of an earlier
    manager are ended, because the inventory has already reported them as absent.
    """
    while True:
        await asyncio.sleep(settings.engine_retry_s)
        try:
            docker, label = await _docker(settings, mesh)
        except RuntimeUnavailable as error:
            detected.labels[_label(DOCKER)] = f"none: {error}"
            continue
        detected.runtimes.add(docker)
        detected.labels[_label(DOCKER)] = label
        left = await docker.survivors()
        await asyncio.gather(*(environment.close() for environment in left))
        _log.info("engine_connected", version=label, ended=len(left))
        return


def _label(runtime: str) -> str:
    return f"runtime.{runtime}"


async def _local(settings: CpuManagerSettings, sandbox: Sandbox, mesh: MeshContext) -> tuple[Runtime, str]:
    if not isinstance(sandbox, LocalSandbox):
        raise RuntimeUnavailable("this node has no sandbox")
    runtime = await LocalRuntime.open(sandbox, output_bytes=settings.output_bytes, models=mesh.models)
    return runtime, sandbox.ladder.chosen.value


async def _docker(settings: CpuManagerSettings, mesh: MeshContext) -> tuple[DockerRuntime, str]:
    if settings.engine == NO_ENGINE:
        raise RuntimeUnavailable("disabled by CPU_MANAGER_ENGINE")
    record = record_path(settings.treadle.home, settings.node)
    docker = await DockerRuntime.open(
        settings.node,
        mesh=mesh.identity,
        url=settings.engine,
        output_bytes=settings.output_bytes,
        on_empty=lambda: forget(record),
        ledger=lambda facts: mesh.ledger(settings.node, facts.id),
        budget_bytes=partial(_image_budget, settings),
        pulls=settings.pulls,
        models=mesh.models,
    )
    if record is not None:
        try:
            CleanupRecord(settings.node, mesh.identity, docker.engine_url).write(record)
        except OSError as error:
            _log.warning("record_not_written", record=str(record), problem=str(error))
    return docker, docker.facts.version


def _image_budget(settings: CpuManagerSettings, facts: EngineFacts) -> int:
    """Return the budget in bytes."""
    if settings.image_budget_mb:
        return settings.image_budget_mb * _MIB
    try:
        return shutil.disk_usage(facts.root).total // 2
    except OSError:
        return UNSEEN_BUDGET_MB * _MIB
