"""Memory of described devices while engines run: one that takes more than a device has is stopped.

A GPU refuses an allocation for which it has no memory. A described device cannot, so its use is measured.

Laws (tests/services/gpu_manager/test_memory_excess.py):
  - of the engines on a device that is exceeded, the one that is stopped has the most beyond its declared memory;
  - an engine within its declared memory is not stopped, and neither is one on a GPU that NVML measures;
  - a device or an engine that cannot be measured now stops no check of the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.device_checks import SLACK
from services.gpu_manager.devices import GIB, DeviceMemory, GpuDevice
from services.gpu_manager.serving import Serving
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
    _unread: set[int] = field(default_factory=set)
    """Devices whose last measurement has failed: it was logged."""

    async def run(self, every_s: Seconds = CHECK_S) -> None:
        """Check the devices until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(every_s)

    async def check(self) -> None:
        """Stop an engine on each described device that is exceeded."""
        for device in self.memory.devices:
            if device.measured or (used_bytes := await self._used_bytes(device)) is None:
                continue
            used_gb, most_gb = used_bytes / GIB, device.memory_gb * (1 + SLACK)
            if used_gb > most_gb:
                engines = self.serving.measured_memory
                found = await engines.excess_on(device.number, used_gb - most_gb)
                if found is not None:
                    where = f"GPU {device.number} has {device.memory_gb:.1f} GB, and {used_gb:.1f} GB are in use"
                    engines.stop(found, f"{found}; {where}")

    async def _used_bytes(self, device: GpuDevice) -> int | None:
        """Return the bytes in use; None if they cannot be measured, also by an unexpected error (ADR 0093)."""
        try:
            used_bytes = await asyncio.to_thread(self.memory.used_bytes, device.number)
        except Exception as error:  # noqa: BLE001
            if device.number not in self._unread:
                _log.error("device_not_measured", gpu=device.number, exc_info=error)
            self._unread.add(device.number)
            return None
        self._unread.discard(device.number)
        return used_bytes
