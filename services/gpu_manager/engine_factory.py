"""Backends of the declared model services: one for each instance, that is service, degree and chunk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.backends.engine_server import EngineServer, EngineSettings
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.process import ProcessBackend
from services.gpu_manager.backends.protocol import Backend, EngineCanary, EngineDeadlines
from services.gpu_manager.backends.sglang import SglangBackend
from services.gpu_manager.backends.torch import TorchBackend
from services.gpu_manager.backends.vllm import VllmBackend
from services.gpu_manager.devices import DeviceMemory
from services.gpu_manager.service_entries import ServiceEntry
from shared.policy.serving.model import InstanceId
from shared.runtime.http import HttpClient

_BACKENDS: Final[dict[str, Callable[[EngineServer], Backend]]] = {
    "process": ProcessBackend,
    "vllm": VllmBackend,
    "sglang": SglangBackend,
    "torch": TorchBackend,
}
_NONE: Final = EngineCanary(prompt="-", expect="-")
"""EngineCanary of a service that declares none. It is not sent (`Serving`)."""
_TORCH_SERVER: Final = (
    "-P",
    "-m",
    "treadle.mesh",
    "services.gpu_manager.torch_server",
    "--model",
    "{model}",
    "--port",
    "{port}",
)


@dataclass(slots=True)
class EngineFactory:
    """Makes backends."""

    http: HttpClient
    memory: DeviceMemory
    key: str = ""
    ports: Ports = field(default_factory=Ports)

    def backend(self, instance: InstanceId, entry: ServiceEntry) -> Backend:
        """Return the backend of an instance. Nothing is started yet."""
        settings = EngineSettings(
            model=entry.model,
            canary=entry.canary or _NONE,
            launch=self._launch(instance, entry),
            url=entry.url_of(instance.chunk.size),
            health=entry.health,
            key=self.key,
            deadlines=EngineDeadlines(start_s=entry.start_s),
        )
        return _BACKENDS[entry.backend](EngineServer(settings, self.http, self.ports, self.memory))

    def _launch(self, instance: InstanceId, entry: ServiceEntry) -> EngineLaunch | None:
        if entry.url_of(instance.chunk.size):
            return None
        command = entry.command_of(instance.chunk.size) or [sys.executable, *_TORCH_SERVER]
        return EngineLaunch(tuple(command), entry.model, tuple(instance.chunk.gpus), entry.env)
