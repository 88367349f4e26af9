"""Check of device memory before a load or a restore: an engine is not started into memory that is in use."""

from __future__ import annotations

import asyncio
from typing import Final

from services.gpu_manager.backends.protocol import OutOfMemory
from services.gpu_manager.devices import GIB, DeviceMemory
from shared.model_services.entries import ServiceEntry
from shared.policy.serving.model import InstanceId

SLACK: Final = 0.02
"""Share of a GPU's memory by which a measurement may exceed the sum of the declared amounts."""


async def check_memory(memory: DeviceMemory, instance: InstanceId, entry: ServiceEntry, own_gb: float) -> None:
    """Compare the memory in use with what an engine needs, where it can be measured.

    Args:
        memory: of the node's GPUs.
        instance: the engine.
        entry: its service.
        own_gb: memory of each GPU that the sleeping engine itself has.

    Raises:
        OutOfMemory: there is too little.
    """
    needed_gb = entry.awake_gb(instance.chunk.size)
    for gpu in instance.chunk.gpus:
        used_bytes = await asyncio.to_thread(memory.used_bytes, gpu)
        if used_bytes is None:
            continue
        device = memory.devices[gpu]
        used_gb = max(0.0, used_bytes / GIB - own_gb)
        if used_gb + needed_gb > device.memory_gb * (1 + SLACK):
            raise OutOfMemory(
                f"GPU {gpu} has {device.memory_gb:.1f} GB, {used_gb:.1f} GB are in use, and {instance.service} "
                f"needs {needed_gb:.1f} GB"
            )
