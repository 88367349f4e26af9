"""Backends of the conformance servers: as processes that they start, and as engines given by their URL."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from services.gpu_manager.backends.engine_folders import EngineFolders
from services.gpu_manager.backends.engine_server import EngineServer, EngineSettings
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.process import ProcessBackend
from services.gpu_manager.backends.protocol import Backend, EngineDeadlines
from services.gpu_manager.backends.sglang import SglangBackend
from services.gpu_manager.backends.vllm import VllmBackend
from services.gpu_manager.devices import DeviceMemory
from shared.model_services.entries import EngineCanary
from shared.runtime.http import HttpClient
from treadle.mesh import mesh_command
from treadle.testing.llamacpp import gemma_weights

HERE = Path(__file__).parent
QUICK = EngineDeadlines(
    start_s=60.0, evict_s=10.0, restore_s=10.0, canary_s=10.0, read_s=5.0, settle_s=0.05, grace_s=5.0, kill_s=20.0
)
"""Limits of tests: long enough for two shared cores; those that are reached in a test are set by it."""
CANARY = EngineCanary(prompt="2+2=", expect="4")


def command(server: str, switches: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the command that starts a conformance server as a process."""
    return (sys.executable, str(HERE / server), "--port", "{port}", "--switches", json.dumps(switches or {}))


def real_command() -> tuple[str, ...]:
    """Return the command that starts a real model behind vLLM's sleep contract."""
    return mesh_command(
        "treadle.testing.sleeping_vllm", str(gemma_weights()), "--port", "{port}", "--enable-sleep-mode"
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # the state of a server that a test drives has no event
            await asyncio.sleep(0.01)


@dataclass
class Engines:
    """Makes backends for a test, and stops their processes after it."""

    client: HttpClient
    folders: EngineFolders
    ports: Ports = field(default_factory=Ports)
    memory: DeviceMemory | None = None
    servers: list[EngineServer] = field(default_factory=list)

    def server(self, settings: EngineSettings) -> EngineServer:
        server = EngineServer(settings, self.client, self.ports, self.folders, self.memory)
        self.servers.append(server)
        return server

    def started(self, *argv: str, deadlines: EngineDeadlines = QUICK, **settings: Any) -> EngineServer:
        """Return the server of an engine that a command starts."""
        launch = EngineLaunch(argv, "tiny", (0,), settings.pop("env", {}))
        settings = {"canary": CANARY, **settings}
        return self.server(EngineSettings("tiny", launch=launch, deadlines=deadlines, **settings))

    def given(self, url: str, *, deadlines: EngineDeadlines = QUICK, **settings: Any) -> EngineServer:
        """Return the server of an engine that runs already."""
        settings = {"canary": CANARY, **settings}
        return self.server(EngineSettings("tiny", url=url, deadlines=deadlines, **settings))

    def vllm(self, url: str, **changes: float) -> VllmBackend:
        return VllmBackend(self.given(url, deadlines=replace(QUICK, **changes)))

    def sglang(self, url: str, **changes: float) -> SglangBackend:
        return SglangBackend(self.given(url, deadlines=replace(QUICK, **changes)))

    async def close(self) -> None:
        for server in self.servers:
            if not server.is_given:
                await server.stop()


KINDS: dict[str, Callable[[Engines], Backend]] = {
    "process": lambda engines: ProcessBackend(engines.started(*command("vllm_server.py", {"dev_mode": False}))),
    "vllm": lambda engines: VllmBackend(engines.started(*command("vllm_server.py"))),
    "vllm, old": lambda engines: VllmBackend(
        engines.started(*command("vllm_server.py", {"old_answers": True, "gauge": False, "aborts": False}))
    ),
    "vllm, real model": lambda engines: VllmBackend(
        engines.started(*real_command(), env={"VLLM_SERVER_DEV_MODE": "1"})
    ),
    "sglang": lambda engines: SglangBackend(engines.started(*command("sglang_server.py"))),
    "sglang, old": lambda engines: SglangBackend(
        engines.started(*command("sglang_server.py", {"has_ready": False, "has_loads": False}))
    ),
}
"""Kind -> a backend that starts its engine as a process."""
