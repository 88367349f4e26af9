"""Backends of the declared model services: one for each instance, that is service, degree and chunk."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from services.gpu_manager.backends.engine_folders import EngineFolder, EngineFolders
from services.gpu_manager.backends.engine_server import EngineServer, EngineSettings
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.process import ProcessBackend
from services.gpu_manager.backends.protocol import Backend, EngineDeadlines
from services.gpu_manager.backends.sglang import SglangBackend
from services.gpu_manager.backends.torch import TorchBackend
from services.gpu_manager.backends.vllm import VllmBackend
from services.gpu_manager.devices import DeviceMemory
from services.gpu_manager.specs import revision
from shared.model_services.entries import EngineCanary, ServiceEntry
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
    folders: EngineFolders
    key: str = ""
    ports: Ports = field(default_factory=Ports)

    def backend(self, instance: InstanceId, entry: ServiceEntry) -> Backend:
        """Return the backend of an instance. Nothing is started yet."""
        return _BACKENDS[entry.backend](self._server(instance, entry))

    def adopt(self, instance: InstanceId, entry: ServiceEntry, folder: EngineFolder) -> Backend | None:
        """Return the backend of an engine that a former manager has started; None if it cannot be adopted.

        It must run, be started as its service would be now, and have no change under way: its state is then unknown.
        """
        server = self._server(instance, entry)
        if server.is_given or folder.step or server.settings.digest != folder.record.digest:
            return None
        return _BACKENDS[entry.backend](server) if server.adopt(folder) else None

    def _server(self, instance: InstanceId, entry: ServiceEntry) -> EngineServer:
        launch = self._launch(instance, entry)
        settings = EngineSettings(
            model=entry.model,
            canary=entry.canary or _NONE,
            launch=launch,
            url=entry.url_of(instance.chunk.size),
            health=entry.health,
            key=self.key,
            service=instance.service,
            digest=_digest(entry, launch),
            deadlines=EngineDeadlines(start_s=entry.start_s),
        )
        return EngineServer(settings, self.http, self.ports, self.folders, self.memory)

    def _launch(self, instance: InstanceId, entry: ServiceEntry) -> EngineLaunch | None:
        if entry.url_of(instance.chunk.size):
            return None
        command = entry.command_of(instance.chunk.size) or [sys.executable, *_TORCH_SERVER]
        return EngineLaunch(tuple(command), entry.model, tuple(instance.chunk.gpus), entry.env)


def _digest(entry: ServiceEntry, launch: EngineLaunch | None) -> str:
    """Return a digest of all that an engine was started with."""
    if launch is None:
        return ""
    start = [revision(entry), launch.command, launch.model, launch.devices, dict(launch.env)]
    return hashlib.blake2b(msgspec.json.encode(start, order="sorted"), digest_size=16).hexdigest()
