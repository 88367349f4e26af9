"""Check of device memory before a load or a restore: an engine is not started into memory that is in use."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from services.gpu_manager.backends.protocol import OutOfMemory
from services.gpu_manager.devices import GIB, DeviceMemory
from shared.model_services.entries import ServiceEntry
from shared.policy.serving.model import InstanceId

SLACK: Final = 0.02
"""Share of a GPU's memory by which a measurement may exceed the sum of the declared amounts."""


class MemoryLack(NamedTuple):
    """Too little memory of one GPU for an engine."""

    gpu: int
    device_gb: float
    used_gb: float
    needed_gb: float

    @property
    def lacks_gb(self) -> float:
        """Memory that others have to free."""
        return self.used_gb + self.needed_gb - self.device_gb * (1 + SLACK)


async def memory_lack(
    memory: DeviceMemory, instance: InstanceId, entry: ServiceEntry, own_gb: float
) -> MemoryLack | None:
    """Return the first GPU whose memory in use leaves too little for an engine; None if there is none.

    Args:
        memory: of the node's GPUs. What it cannot measure is not compared.
        instance: the engine.
        entry: its service.
        own_gb: memory of each GPU that the sleeping engine itself has.
    """
    needed_gb = entry.awake_gb(instance.chunk.size)
    for gpu in instance.chunk.gpus:
        used_bytes = await asyncio.to_thread(memory.used_bytes, gpu)
        if used_bytes is not None:
            used_gb = max(0.0, used_bytes / GIB - own_gb)
            lack = MemoryLack(gpu, memory.devices[gpu].memory_gb, used_gb, needed_gb)
            if lack.lacks_gb > 0:
                return lack
    return None


async def check_memory(memory: DeviceMemory, instance: InstanceId, entry: ServiceEntry, own_gb: float) -> None:
    """Raise OutOfMemory if there is a `memory_lack`."""
    if (lack := await memory_lack(memory, instance, entry, own_gb)) is not None:
        raise OutOfMemory(
            f"GPU {lack.gpu} has {lack.device_gb:.1f} GB, {lack.used_gb:.1f} GB are in use, and {instance.service} "
            f"needs {lack.needed_gb:.1f} GB"
        )
