"""The GPU manager as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
from fastapi import FastAPI

from services.gpu_manager.adoption import adopt_engines
from services.gpu_manager.backends.engine_folders import EngineFolders, state_folder
from services.gpu_manager.declared_entries import NodeLimits
from services.gpu_manager.declaring import DeclaredServices
from services.gpu_manager.devices import GIB, find_devices
from services.gpu_manager.engine_factory import EngineFactory
from services.gpu_manager.executor import GpuExecutor
from services.gpu_manager.metrics import observe
from services.gpu_manager.pages import PagePublisher
from services.gpu_manager.reporting import cold_start_s, page_of, services_of
from services.gpu_manager.routes import GpuManagerState, readiness
from services.gpu_manager.service_entries import load_entries
from services.gpu_manager.serving import Serving
from services.gpu_manager.settings import GpuManagerSettings
from services.gpu_manager.specs import check_devices
from shared.bus.connection import with_retries
from shared.messages.outcomes import ServicesChanged
from shared.node.agent import NodeAgent
from shared.node.connection import START_S, open_node
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import NodeMemory
from shared.policy.serving.node_serving import NodeServing
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.http import open_http
from shared.runtime.http_streams import open_streams
from shared.runtime.settings import load

_log = log.get(__name__)

CONNECT_S = 10.0
STOP_S = 25.0
"""Longest wait of a stopping node for its engines, in seconds."""


def _any_address(_: str) -> str:
    """RefuseHolder no address: those of engines come from the operator."""
    return ""


def create_app(settings: GpuManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The GPU manager's ASGI app. `uvicorn --factory services.gpu_manager.app:create_app`.

    Raises:
        WrongSetting: a setting, the file of services or the described devices cannot be used.
    """
    settings = settings or load(GpuManagerSettings)
    entries = load_entries(settings.services)
    found = find_devices(settings.devices)
    check_devices(entries, len(found.devices))

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
            Background() as background,
        ):
            factory = EngineFactory(http, found.memory, folders, settings.engine_key)
            serving = Serving(machine, factory.backend, found.memory, clock)
            background.start(serving.failed(), name="engines")
            executor = GpuExecutor(serving, streams, clock, len(device_gb), settings.output_bytes)

            def report() -> ServicesChanged:
                return services_of(node.identity, serving.declared, machine.view(), device_gb, now=clock.monotonic())

            agent = NodeAgent(
                node,
                executor,
                clock=clock,
                report=observe(node.outbox.put),
                cold_start_s=lambda: cold_start_s(machine.view()),
                services=report,
            )
            limits = NodeLimits(settings.allow_commands, device_gb)
            declared = DeclaredServices(node.redis, serving, entries, limits)
            pages = PagePublisher(
                node.redis,
                lambda: declared.completed(
                    page_of(
                        node.identity,
                        serving.declared,
                        machine.view(),
                        found.devices,
                        clock,
                        serving.addresses() if settings.publish_addresses else {},
                    )
                ),
                settings.heartbeat_s,
            )

            def changed() -> None:
                agent.report_services()
                pages.changed()

            serving.changed = changed
            await with_retries(declared.refresh, what="reading declared services", limit_s=START_S)
            background.start(folders.renewing(), name="lease of engines")
            await adopt_engines(factory, serving)
            background.start(declared.run(settings.heartbeat_s), name="declared services")
            background.start(pages.run(), name="pages")
            try:
                async with agent.running(heartbeat_s=settings.heartbeat_s):
                    app.state.agent = agent
                    _log.info(
                        "node_started", node=node.identity.node, gpus=found.reason, services=sorted(serving.declared)
                    )
                    yield GpuManagerState(agent=agent)
            finally:
                await asyncio.shield(serving.stop(STOP_S))
                await pages.remove(node.identity.node)
                found.memory.close()

    return build_app("gpu_manager", lifespan, ready=readiness, description=__doc__ or "")
