"""Memory of described devices while engines run: one that takes more than a device has is stopped.

A GPU refuses an allocation for which it has no memory. A described device cannot, so its use is measured.

Laws (tests/services/gpu_manager/test_memory_excess.py):
  - of the engines on a device that is exceeded, the one that is stopped has the most beyond its declared memory;
  - an engine within its declared memory is not stopped, and neither is one on a GPU that NVML measures.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from services.gpu_manager.device_checks import SLACK
from services.gpu_manager.devices import GIB, DeviceMemory, GpuDevice
from services.gpu_manager.serving import Serving
from shared.policy.serving.model import EngineDied
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

CHECK_S: Final[Seconds] = 2.0
"""Interval of the checks. One reads /proc: about 10 ms for each device."""


@dataclass(slots=True)
class MemoryExcess:
    """Checks of the described devices of one node."""

    memory: DeviceMemory
    serving: Serving

    async def run(self, every_s: Seconds = CHECK_S) -> None:
        """Check the devices until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(every_s)

    async def check(self) -> None:
        """Stop an engine on each described device that is exceeded."""
        for device in self.memory.devices:
            used_bytes = None if device.measured else await asyncio.to_thread(self.memory.used_bytes, device.number)
            if used_bytes is not None and used_bytes > device.memory_gb * GIB * (1 + SLACK):
                await self._stop_one(device, used_bytes / GIB)

    async def _stop_one(self, device: GpuDevice, used_gb: float) -> None:
        most_gb, found = 0.0, None
        declared_gb = {view.instance: view.device_gb for view in self.serving.machine.view()}
        for instance, backend in list(self.serving.backends.items()):
            if device.number in instance.chunk.gpus:
                engine_gb = ((await backend.footprint()).device_bytes or 0) / GIB / instance.chunk.size
                excess_gb = engine_gb - declared_gb.get(instance, 0.0)
                if excess_gb > most_gb:
                    most_gb, found = excess_gb, (instance, engine_gb)
        if found is None:
            return
        instance, engine_gb = found
        reason = (
            f"out of memory: GPU {device.number} has {device.memory_gb:.1f} GB, {used_gb:.1f} GB are in use, "
            f"{engine_gb:.1f} GB of them by {instance.service}, which has {declared_gb.get(instance, 0.0):.1f} GB"
        )
        _log.error("engine_exceeds_memory", instance=str(instance), reason=reason)
        self.serving.handle(EngineDied(instance, reason))
