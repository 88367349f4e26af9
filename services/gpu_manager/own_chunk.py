"""Model service of this manager's own that CUDA kernels use: an engine without a process that needs a whole GPU.

So the machine of engines (ADR 0072) drains and evicts what is on the GPU before a kernel runs, and the leader's ledger
(ADR 0071) grants its chunk to nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from services.gpu_manager.backends.protocol import Backend, Capabilities, Footprint, Level, Residency
from services.gpu_manager.kinds import KERNELS
from shared.model_services.entries import MemoryNeed, ServiceEntry
from shared.policy.serving.model import InstanceId, ModelServiceSpec

SHARE: Final = 0.98
"""Share of the smallest GPU's memory that it needs. The rest is what the driver itself may use."""


def own_entry(device_gb: Iterable[float]) -> ServiceEntry:
    """Return the entry of the service. No file and no caller has it."""
    memory = MemoryNeed(awake=SHARE * min(device_gb), host=0.0)
    return ServiceEntry(backend="process", model=KERNELS, command=["-"], memory_gb=memory, min_residency_s=0.0)


def own_spec(entry: ServiceEntry) -> ModelServiceSpec:
    """Return the specification of the service: evicted first, at no cost."""
    return ModelServiceSpec(KERNELS, entry.memory_gb.awake, priority=1000)


Backends = Callable[[InstanceId, ServiceEntry], Backend]


def with_own(backend: Backends) -> Backends:
    """Return a maker of backends, those of this manager's own service included."""

    def made(instance: InstanceId, entry: ServiceEntry) -> Backend:
        return OwnChunk() if instance.service == KERNELS else backend(instance, entry)

    return made


class OwnChunk:
    """Backend of the service. Nothing is started: a kernel's own processes hold the GPU while it runs."""

    flags = Capabilities(("cold",), write_back=False, preserves_graphs=False, needs_idle=True, can_autowake=False)
    url = ""

    def __init__(self) -> None:
        self._taken = False

    async def prepare(self) -> None:
        """Take the GPU."""
        self._taken = True

    async def evict(self, level: Level) -> None:
        """Leave the GPU."""
        del level
        self._taken = False

    async def restore(self) -> None:
        """Take the GPU."""
        self._taken = True

    async def residency(self) -> Residency:
        """Return whether it has the GPU."""
        return "resident" if self._taken else "cold"

    async def footprint(self) -> Footprint:
        """Return that nothing is measured: between two kernels no memory is in use."""
        return Footprint(None, None)

    async def canary(self) -> None:
        """Do nothing: each kernel is probed after a fault."""

    async def abort(self) -> None:
        """Do nothing: a kernel that loses its GPU is cancelled by its executor."""

    async def stop(self) -> None:
        """Leave the GPU."""
        self._taken = False

    async def ended(self) -> str:
        """Wait forever: there is no process."""
        await asyncio.Event().wait()
        return ""
