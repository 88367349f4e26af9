"""GPUs that NVML reports as lost or broken: nothing is granted on them until they answer again.

Laws (tests/services/gpu_manager/test_faulty_gpus.py):
  - a GPU is faulty only if NVML reports one of the faults of `DeviceMemory.fault`. Other errors have no effect;
  - the engines of a faulty GPU leave, its actions are executed again elsewhere, and the leader sets its chunks aside;
  - a GPU without a fault is used again, unless it is given away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from services.gpu_manager.devices import DeviceMemory
from services.gpu_manager.metrics import FAULTY_GPUS
from services.gpu_manager.serving import Serving
from shared.policy.serving.model import DeviceMarked
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

CHECK_S: Final[Seconds] = 5.0
"""Interval of the checks. NVML takes about 1 ms for each GPU."""


@dataclass(slots=True)
class FaultyGpus:
    """Faults of the GPUs of one node."""

    memory: DeviceMemory
    serving: Serving
    is_fenced: Callable[[int], bool] = lambda _: False
    """Whether a GPU must not be used for another reason."""
    changed: Callable[[], None] = lambda: None
    """Called when a GPU has become faulty or good."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Faulty GPU -> reason."""

    async def run(self, every_s: Seconds = CHECK_S) -> None:
        """Check the GPUs until cancelled."""
        while True:
            self.apply(await asyncio.to_thread(self._read))
            await asyncio.sleep(every_s)

    def _read(self) -> dict[int, str]:
        """Return the fault of each faulty GPU. One that cannot be read, by a bug of ours, stays as it is (ADR 0093)."""
        found = dict[int, str]()
        for device in self.memory.devices:
            try:
                found[device.number] = self.memory.fault(device.number)
            except Exception as error:  # noqa: BLE001
                _log.error("gpu_not_checked", gpu=device.number, exc_info=error)
                found[device.number] = self.reasons.get(device.number, "")
        return {number: reason for number, reason in found.items() if reason}

    def apply(self, reasons: dict[int, str]) -> None:
        """Apply the faults of all GPUs. O(instances on the GPUs that have changed)."""
        before, self.reasons = self.reasons, reasons
        for gpu in sorted(reasons.keys() - before.keys()):
            _log.error("gpu_faulty", gpu=gpu, reason=reasons[gpu])
            self.serving.handle(DeviceMarked(gpu, False, reasons[gpu]))
        for gpu in sorted(before.keys() - reasons.keys()):
            _log.info("gpu_good", gpu=gpu, reason=before[gpu])
            if not self.is_fenced(gpu):
                self.serving.handle(DeviceMarked(gpu, True, ""))
        FAULTY_GPUS.set(len(reasons))
        if before.keys() != reasons.keys():
            self.changed()
