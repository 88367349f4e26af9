"""The CPU manager as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TypedDict

from fastapi import FastAPI
from redis.asyncio import Redis

from services.cpu_manager.acting import Acting
from services.cpu_manager.attempts import Attempts
from services.cpu_manager.cores import Cores, usable_cores
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.environments.detection import DetectedRuntimes, MeshContext, await_engine, open_runtimes
from services.cpu_manager.environments.runtimes import DOCKER
from services.cpu_manager.grading import Grading
from services.cpu_manager.kinds import CORES, IN_ENVIRONMENTS, MEMORY, SLOTS, STARTS
from services.cpu_manager.memory import lendable_mb
from services.cpu_manager.metrics import observe
from services.cpu_manager.node_executor import NodeExecutor, open_executor
from services.cpu_manager.node_manager import NodeManager
from services.cpu_manager.outbox import Outbox
from services.cpu_manager.resource_usage import ResourceUsage
from services.cpu_manager.routes import CpuManagerState, readiness
from services.cpu_manager.sandbox.child_processes import become_subreaper
from services.cpu_manager.settings import NO_ENGINE, CpuManagerSettings
from services.cpu_manager.topology import topology
from shared.bus import functions
from shared.bus.connection import connect, with_retries
from shared.bus.identity import mesh_identity
from shared.bus.nodes import next_generation
from shared.messages.nodes import Hello
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.settings import load

_log = log.get(__name__)

STORE_S = 30.0
"""Seconds of retries against Valkey at the start. After them the process ends and its supervisor restarts it."""


class Offer(TypedDict):
    """Fields of a hello that may grow while the node runs."""

    kinds: list[str]
    labels: dict[str, str]
    runtimes: list[str]


def _hello(
    settings: CpuManagerSettings,
    generation: int,
    usages: dict[str, ResourceUsage],
    executor: NodeExecutor,
    detected: DetectedRuntimes,
) -> Hello:
    return Hello(
        node=settings.node,
        incarnation=uuid.uuid4().hex[:12],
        node_class=settings.node_class,
        capacity={name: usage.exist for name, usage in usages.items()},
        prefetches=[CORES],
        generation=generation,
        **_offer(executor, detected),
    )


def _offer(executor: NodeExecutor, detected: DetectedRuntimes) -> Offer:
    runtimes = detected.runtimes.names
    return Offer(
        kinds=sorted([*executor.graders, *(IN_ENVIRONMENTS if runtimes else ())]),
        labels=executor.labels | detected.labels,
        runtimes=runtimes,
    )


def create_app(settings: CpuManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The CPU manager's ASGI app. `uvicorn --factory services.cpu_manager.app:create_app`."""
    settings = settings or load(CpuManagerSettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[CpuManagerState]:
        become_subreaper()
        usable = frozenset(sorted(usable_cores())[: settings.cores or None])
        url = settings.treadle.redis_url
        async with (
            open_executor(settings, usable) as executor,
            connect(url, name="cpu_manager") as redis,
            connect(url, name="cpu_manager-reader") as reader,
            _runtimes(settings, executor, redis) as (detected, mesh),
            Background() as background,
        ):
            cores = Cores(topology(settings.topology, usable))
            node, outbox = await _assemble(settings, cores, executor, detected, redis, reader, clock)
            background.start(outbox.run(), name="outbox")
            background.start(node.run(), name="grants")
            if executor.child_processes is not None:
                background.start(executor.child_processes.reap_orphans(), name="orphans")
            background.start(node.heartbeats(settings.heartbeat_s), name="heartbeats")
            if _may_get_engine(settings, detected):
                background.start(_add_engine(settings, executor, detected, node, mesh), name="engine")
            app.state.node, app.state.outbox = node, outbox
            yield CpuManagerState(node=node, outbox=outbox, executor=executor)
            await node.stop()

    return build_app("cpu_manager", lifespan, ready=readiness, description=__doc__ or "")


@asynccontextmanager
async def _runtimes(
    settings: CpuManagerSettings, executor: NodeExecutor, redis: Redis
) -> AsyncIterator[tuple[DetectedRuntimes, MeshContext]]:
    """Open the runtimes, and return them with the mesh that they belong to."""
    await with_retries(lambda: functions.load(redis), what="loading functions", limit_s=STORE_S)
    identity = await with_retries(lambda: mesh_identity(redis), what="reading the mesh's identity", limit_s=STORE_S)
    mesh = MeshContext(identity, redis)
    async with open_runtimes(settings, executor.sandbox, mesh) as detected:
        yield detected, mesh


def _may_get_engine(settings: CpuManagerSettings, detected: DetectedRuntimes) -> bool:
    return settings.engine != NO_ENGINE and DOCKER not in detected.runtimes.names


async def _add_engine(
    settings: CpuManagerSettings,
    executor: NodeExecutor,
    detected: DetectedRuntimes,
    node: NodeManager,
    mesh: MeshContext,
) -> None:
    await await_engine(settings, detected, mesh)
    await node.offer(**_offer(executor, detected))


async def _assemble(
    settings: CpuManagerSettings,
    cores: Cores,
    executor: NodeExecutor,
    detected: DetectedRuntimes,
    redis: Redis,
    reader: Redis,
    clock: Clock,
) -> tuple[NodeManager, Outbox]:
    """Assemble the node's parts. Adopt every environment that outlived the previous manager."""
    memory_mb = lendable_mb(settings.memory_mb, len(cores.all))
    slots, memory = ResourceUsage(settings.slots, owned=settings.slots), ResourceUsage(memory_mb, owned=memory_mb)
    at_once = settings.starts or max(1, len(cores.all) // 2)
    starts = ResourceUsage(at_once, owned=at_once)
    usages = {CORES: cores.usage, SLOTS: slots}
    if detected.runtimes.names or _may_get_engine(settings, detected):
        usages[MEMORY], usages[STARTS] = memory, starts
    started = partial(next_generation, redis, settings.node)
    generation = await with_retries(started, what="counting this start", limit_s=STORE_S)
    hello = _hello(settings, generation, usages, executor, detected)
    outbox = Outbox(redis)
    report = observe(outbox.put)
    registry = EnvironmentRegistry(
        node=hello.node,
        incarnation=hello.incarnation,
        acting=Acting(detected.runtimes, clock, settings.output_bytes, settings.guard_s),
        memory=memory,
        report=report,
        clock=clock,
        starts=starts,
    )
    attempts = Attempts(
        node=hello.node,
        incarnation=hello.incarnation,
        cores=cores,
        slots=slots,
        grading=Grading(executor.graders, executor.sandbox, settings.output_bytes, settings.guard_s),
        registry=registry,
        report=report,
        clock=clock,
    )
    outbox.may_gather = attempts.busy
    registry.adopt(await detected.runtimes.survivors())
    _log.info("node_started", node=hello.node, capacity=hello.capacity, **hello.labels)
    return NodeManager(redis, reader, hello, attempts, outbox, usages, clock, executor.cold_start_s), outbox
