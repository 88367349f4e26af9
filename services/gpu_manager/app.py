"""The GPU manager as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import psutil
from fastapi import FastAPI

from services.gpu_manager.adoption import adopt_engines
from services.gpu_manager.backends.engine_folders import EngineFolders, state_folder
from services.gpu_manager.declared_entries import NodeLimits
from services.gpu_manager.declaring import DeclaredServices
from services.gpu_manager.delayed_report import DelayedReport
from services.gpu_manager.devices import GIB, find_devices
from services.gpu_manager.engine_factory import EngineFactory
from services.gpu_manager.executor import GpuExecutor
from services.gpu_manager.faulty_gpus import FaultyGpus
from services.gpu_manager.kernel_actions import KernelActions
from services.gpu_manager.kinds import GPUS, KERNELS
from services.gpu_manager.memory_excess import MemoryExcess
from services.gpu_manager.metrics import observe
from services.gpu_manager.own_chunk import own_entry, own_spec, with_own
from services.gpu_manager.ownership import Hooks, OwnedGpus, check_no_release, hooks_of
from services.gpu_manager.ownership_records import OwnershipRecords
from services.gpu_manager.pages import PagePublisher
from services.gpu_manager.prewarming import Prewarming
from services.gpu_manager.reporting import cold_start_s, page_of, service_capacity, services_of
from services.gpu_manager.routes import GpuManagerState, readiness
from services.gpu_manager.service_entries import load_entries
from services.gpu_manager.serving import Serving
from services.gpu_manager.settings import GpuManagerSettings
from shared.bus.connection import connect, with_retries
from shared.bus.tail import Tail
from shared.messages.outcomes import ServicesChanged
from shared.messages.targets import RESIDENCIES
from shared.model_services.entries import ServiceEntry
from shared.node.agent import NodeAgent
from shared.node.artifacts import StoredArtifacts
from shared.node.connection import START_S, open_node
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import NodeMemory, ServiceSet
from shared.policy.serving.node_serving import NodeServing
from shared.policy.serving.node_view import InstanceView
from shared.policy.serving.ownership import GpuOwnership
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.http import HttpClient, open_http
from shared.runtime.http_streams import open_streams
from shared.runtime.settings import load
from shared.runtime.units import Seconds

_log = log.get(__name__)

CONNECT_S = 10.0
PREWARM_PART = 0.9
"""Part of `max_wait_s` for which a restore before the first request waits: then it never becomes overdue."""
STOP_S = 25.0
"""Longest wait of a stopping node for its engines, in seconds."""


def _any_address(_: str) -> str:
    """RefuseHolder no address: those of engines come from the operator."""
    return ""


def _owned_gpus(
    settings: GpuManagerSettings,
    hooks: Hooks | None,
    records: OwnershipRecords,
    serving: Serving,
    executor: GpuExecutor,
    http: HttpClient,
) -> OwnedGpus | None:
    """Return the ownership of the GPUs; None without hooks.

    Raises:
        WrongSetting: a record cannot be read, or a GPU is not held and there are no hooks.
    """
    if hooks is None:
        check_no_release(records, executor.gpus)
        return None
    machine = GpuOwnership(executor.gpus, settings.release_after_s, recorded=records.read(executor.gpus))
    usage = executor.resources[GPUS]
    return OwnedGpus(machine, records, serving, usage, hooks, http, settings.node, serving.clock)


def declared_entries(serving: Serving) -> dict[str, ServiceEntry]:
    """Return the services of the file and of REST. That of kernels is shown to nobody."""
    return {name: entry for name, entry in serving.declared.items() if name != KERNELS}


def declared_views(machine: NodeServing) -> list[InstanceView]:
    """Return the engines of those services."""
    return [view for view in machine.view() if view.instance.service != KERNELS]


def create_app(settings: GpuManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The GPU manager's ASGI app. `uvicorn --factory services.gpu_manager.app:create_app`.

    Raises:
        WrongSetting: a setting, the file of services or the described devices cannot be used.
    """
    settings = settings or load(GpuManagerSettings)
    entries = load_entries(settings.services)
    found = find_devices(settings.devices)
    hooks = hooks_of(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[GpuManagerState]:
        redis_url, device_gb = settings.treadle.redis_url, tuple(one.memory_gb for one in found.devices)
        host_gb = settings.host_memory_gb or psutil.virtual_memory().total / GIB / 2
        config = ServingConfig(max_wait_s=settings.max_wait_s, hung_after_s=settings.hung_after_s)
        machine = NodeServing(NodeMemory(device_gb, host_gb), config)
        folders = EngineFolders(state_folder(settings.state, settings.treadle.home, settings.node), settings.lease_s)
        async with (
            folders.used(),
            open_node(redis_url, name="gpu_manager", node=settings.node, node_class=settings.node_class) as node,
            open_http(_any_address) as http,
            open_streams(connect_s=CONNECT_S, key=settings.engine_key) as streams,
            connect(redis_url, name="gpu_manager-residencies") as residencies,
            Background() as background,
        ):
            factory = EngineFactory(http, found.memory, folders, settings.engine_key)
            own = {KERNELS: own_entry(device_gb)} if device_gb else {}
            serving = Serving(machine, with_own(factory.backend), found.memory, clock, dict(own), http=streams)
            for entry in own.values():
                serving.handle(ServiceSet(own_spec(entry)))
            background.start(serving.failed(), name="engines")
            artifacts = StoredArtifacts(node.redis)
            kernels = KernelActions(found.devices, artifacts, settings.cuda_library, settings.output_bytes)
            executor = GpuExecutor(serving, streams, clock, len(device_gb), settings.output_bytes, kernels, Random())
            owned = _owned_gpus(settings, hooks, OwnershipRecords(folders.root), serving, executor, http)

            def released() -> tuple[int, ...]:
                return () if owned is None else owned.machine.unavailable

            faulty = FaultyGpus(found.memory, serving, lambda gpu: gpu in released())

            def state_of(gpu: int) -> tuple[str, str]:
                state, why = ("", "") if owned is None else owned.state_of(gpu)
                return state, faulty.reasons.get(gpu, why)

            def report() -> ServicesChanged:
                view, now, wrong = machine.view(), clock.monotonic(), declared.problems
                of = node.identity, serving.declared, view, device_gb, faulty.reasons, released(), now, wrong
                return services_of(*of, offset_s=clock.unix() - now)

            def acquire_s() -> Seconds:
                return 0.0 if owned is None else owned.acquire_s

            agent = NodeAgent(
                node,
                executor,
                clock=clock,
                report=observe(node.outbox.put),
                cold_start_s=lambda: cold_start_s(declared_views(machine), acquire_s()),
                service_capacity=lambda: service_capacity(serving.declared, machine.view(), acquire_s()),
                services=report,
            )
            limits = NodeLimits(settings.allow_commands, device_gb)
            declared = DeclaredServices(node.redis, serving, entries, limits, frozenset(own))
            pages = PagePublisher(
                node.redis,
                lambda: declared.completed(
                    page_of(
                        node.identity,
                        declared_entries(serving),
                        declared_views(machine),
                        found.devices,
                        clock,
                        state_of,
                        serving.addresses() if settings.publish_addresses else {},
                    )
                ),
                settings.heartbeat_s,
            )

            def changed() -> None:
                agent.report_services()
                pages.changed()

            serving.changed = DelayedReport(changed).changed
            faulty.changed = changed
            if owned is not None:
                owned.changed, owned.faulty = changed, lambda: faulty.reasons
                owned.begin()
            await with_retries(declared.refresh, what="reading declared services", limit_s=START_S)
            background.start(folders.renewing(), name="lease of engines")
            await adopt_engines(factory, serving)
            background.start(declared.run(settings.heartbeat_s), name="declared services")
            background.start(pages.run(), name="pages")
            prewarming = Prewarming(
                serving,
                f"{GPUS}@{settings.node_class}",
                lambda: set(range(executor.gpus)) - {*released(), *faulty.reasons},
                lambda: executor.resources[GPUS].owned,
                PREWARM_PART * settings.max_wait_s,
                clock,
            )
            background.start(prewarming.follow(Tail(residencies, {RESIDENCIES: "0"})), name="wishes for residency")
            background.start(prewarming.run(), name="prewarming")
            background.start(faulty.run(), name="faults of GPUs")
            background.start(MemoryExcess(found.memory, serving).run(), name="memory of described devices")
            if owned is not None:
                background.start(owned.run(lambda: agent.met_leader), name="ownership of GPUs")
            try:
                async with agent.running(heartbeat_s=settings.heartbeat_s):
                    app.state.agent = agent
                    _log.info(
                        "node_started",
                        node=node.identity.node,
                        gpus=found.reason,
                        services=sorted(declared_entries(serving)),
                    )
                    yield GpuManagerState(agent=agent)
            finally:
                await asyncio.shield(serving.stop(STOP_S))
                await pages.remove(node.identity.node)
                found.memory.close()

    return build_app("gpu_manager", lifespan, ready=readiness, description=__doc__ or "")
