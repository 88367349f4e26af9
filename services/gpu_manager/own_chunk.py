"""Model service of this manager's own that CUDA kernels use: an engine without a process, alone awake on its GPU.

So the machine of engines (ADR 0072) drains and evicts what is awake on the GPU before a kernel runs, and the leader's
ledger (ADR 0071) grants its chunk to nothing else meanwhile. Engines that sleep there stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from services.gpu_manager.backends.protocol import Backend, Capabilities, Footprint, Level, Residency
from services.gpu_manager.kinds import KERNELS
from shared.model_services.entries import MemoryNeed, ServiceEntry
from shared.policy.serving.model import InstanceId, ModelServiceSpec

SHARE: Final = 0.98
"""Share of the smallest GPU's memory that it needs if there are no other services. The rest is what the driver itself
may use."""
LEAST_GB: Final = 4.0
"""Memory that it needs at least: a case's tensors, twice, and the driver's context."""
MARGIN_GB: Final = 0.01


def own_entry(device_gb: Sequence[float], awake_gb: Iterable[float] = ()) -> ServiceEntry:
    """Return the entry of the service. No file and no caller has it.

    It needs so much that no awake engine has room beside it, and no more: what sleeping engines keep has room. It never
    needs more than the smallest GPU has, so on larger ones an awake engine may stay, which executes nothing meanwhile.

    Args:
        device_gb: memory of the node's GPUs.
        awake_gb: memory that the node's services need on each GPU.
    """
    smallest, least_awake = min(device_gb), min(awake_gb, default=0.0)
    needed_gb = max(LEAST_GB, max(device_gb) - least_awake + MARGIN_GB) if least_awake else SHARE * smallest
    memory = MemoryNeed(awake=min(smallest, needed_gb), host=0.0)
    return ServiceEntry(backend="process", model=KERNELS, command=["-"], memory_gb=memory, min_residency_s=0.0)


def own_spec(entry: ServiceEntry) -> ModelServiceSpec:
    """Return the specification of the service: evicted first, at no cost."""
    return ModelServiceSpec(KERNELS, entry.awake_gb(1), priority=1000)


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
