"""The CPU manager as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI
from redis.asyncio import Redis

from services.cpu_manager.acting import Acting
from services.cpu_manager.cores import Cores, usable_cores
from services.cpu_manager.cpu_executor import CpuExecutor, units_of
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.environments.detection import DetectedRuntimes, MeshContext, await_engine, open_runtimes
from services.cpu_manager.environments.runtimes import DOCKER
from services.cpu_manager.forwarder.forwarder import ModelForwarder, open_forwarder
from services.cpu_manager.grading import Grading
from services.cpu_manager.kinds import MEMORY, STARTS
from services.cpu_manager.memory import lendable_mb
from services.cpu_manager.metrics import observe
from services.cpu_manager.model_waits import ModelWaits
from services.cpu_manager.routes import CpuManagerState, readiness
from services.cpu_manager.sandbox.child_processes import become_subreaper
from services.cpu_manager.sandboxed_graders import SandboxedGraders, open_graders
from services.cpu_manager.settings import NO_ENGINE, CpuManagerSettings
from services.cpu_manager.topology import topology
from shared.bus.connection import with_retries
from shared.bus.identity import mesh_identity
from shared.node.agent import NodeAgent
from shared.node.artifacts import StoredArtifacts
from shared.node.connection import START_S, NodeConnection, open_node
from shared.node.resource_usage import ResourceUsage
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.settings import load

_log = log.get(__name__)


def create_app(settings: CpuManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The CPU manager's ASGI app. `uvicorn --factory services.cpu_manager.app:create_app`."""
    settings = settings or load(CpuManagerSettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[CpuManagerState]:
        become_subreaper()
        usable = frozenset(sorted(usable_cores())[: settings.cores or None])
        redis_url = settings.treadle.redis_url
        async with (
            open_graders(settings, usable) as graders,
            open_node(redis_url, name="cpu_manager", node=settings.node, node_class=settings.node_class) as connection,
            open_forwarder(connection.redis) as models,
            _runtimes(settings, graders, connection.redis, models) as (detected, mesh),
            Background() as background,
        ):
            cores = Cores(topology(settings.topology, usable))
            agent, registry = await _assemble(settings, cores, graders, detected, connection, clock)
            waits = ModelWaits(connection.redis, settings.node, registry, background, settings.model_idle_s)
            reports = models.reports_to(waits.changed) if settings.model_idle_s else nullcontext()
            async with agent.running(heartbeat_s=settings.heartbeat_s):
                if graders.child_processes is not None:
                    background.start(graders.child_processes.reap_orphans(), name="orphans")
                if _may_get_engine(settings, detected):
                    background.start(_add_engine(settings, detected, agent, mesh), name="engine")
                app.state.agent = agent
                with reports:
                    yield CpuManagerState(agent=agent, graders=graders)

    return build_app("cpu_manager", lifespan, ready=readiness, description=__doc__ or "")


@asynccontextmanager
async def _runtimes(
    settings: CpuManagerSettings, graders: SandboxedGraders, redis: Redis, models: ModelForwarder
) -> AsyncIterator[tuple[DetectedRuntimes, MeshContext]]:
    """Open the runtimes, and return them with the mesh that they belong to."""
    identity = await with_retries(lambda: mesh_identity(redis), what="reading the mesh's identity", limit_s=START_S)
    mesh = MeshContext(identity, redis, models)
    async with open_runtimes(settings, graders.sandbox, mesh) as detected:
        yield detected, mesh


def _may_get_engine(settings: CpuManagerSettings, detected: DetectedRuntimes) -> bool:
    return settings.engine != NO_ENGINE and DOCKER not in detected.runtimes.names


async def _add_engine(
    settings: CpuManagerSettings, detected: DetectedRuntimes, agent: NodeAgent, mesh: MeshContext
) -> None:
    await await_engine(settings, detected, mesh)
    await agent.publish_offer()


async def _assemble(
    settings: CpuManagerSettings,
    cores: Cores,
    graders: SandboxedGraders,
    detected: DetectedRuntimes,
    connection: NodeConnection,
    clock: Clock,
) -> tuple[NodeAgent, EnvironmentRegistry]:
    """Assemble the node's parts. Adopt every environment that outlived the previous manager."""
    creates = bool(detected.runtimes.names) or _may_get_engine(settings, detected)
    resources = units_of(
        cores,
        slots=settings.slots,
        memory_mb=lendable_mb(settings.memory_mb, len(cores.all)) if creates else 0,
        starts=settings.starts or max(1, len(cores.all) // 2),
    )
    identity, report = connection.identity, observe(connection.outbox.put)
    registry = EnvironmentRegistry(
        node=identity.node,
        incarnation=identity.incarnation,
        acting=Acting(detected.runtimes, clock, settings.output_bytes, settings.guard_s),
        memory=resources.get(MEMORY, ResourceUsage(0)),
        report=report,
        clock=clock,
        starts=resources.get(STARTS, ResourceUsage(0)),
    )
    executor = CpuExecutor(
        resources,
        cores,
        Grading(
            graders.graders,
            graders.sandbox,
            settings.output_bytes,
            settings.guard_s,
            StoredArtifacts(connection.redis),
            settings.artifact_bytes,
        ),
        registry,
        ChainMap(detected.labels, graders.labels),
    )
    agent = NodeAgent(
        connection,
        executor,
        environments=registry,
        parking=executor,
        clock=clock,
        report=report,
        cold_start_s=graders.cold_start_s,
    )
    registry.adopt(await detected.runtimes.survivors())
    capacity = {name: usage.exist for name, usage in resources.items()}
    _log.info("node_started", node=identity.node, capacity=capacity, **executor.offer().labels)
    return agent, registry
