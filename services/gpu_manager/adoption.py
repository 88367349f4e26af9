"""Adoption of the engines that a former manager of this node has left by a crash (ADR 0077).

Each recorded engine ends in a known state: it is adopted, and its residency is read from it; or it is killed.
An unexpected error around one engine has this engine killed, and no other (ADR 0093).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from services.gpu_manager.backends.engine_folders import EngineFolder
from services.gpu_manager.backends.engine_process import discard
from services.gpu_manager.backends.protocol import Backend
from services.gpu_manager.engine_factory import EngineFactory
from services.gpu_manager.engine_failures import failure_reason
from services.gpu_manager.serving import Serving
from shared.model_services.entries import ServiceEntry
from shared.policy.model.chunks import SIZES, Chunk
from shared.policy.serving.model import InstanceId
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

DISCARD_S: Final[Seconds] = 20.0
"""Limit for the end of engines that are not adopted."""


async def adopt_engines(factory: EngineFactory, serving: Serving) -> None:
    """Adopt the engines of a former manager, and kill those that do not fit. Call it after the services were set."""
    taken: set[InstanceId] = set()
    left: list[EngineFolder] = []
    for folder in factory.folders.found():
        record = folder.record
        instance = InstanceId(record.service, Chunk(record.first, record.size))
        entry = serving.declared.get(record.service)
        backend = None
        if entry is not None and instance not in taken and _fits(instance, entry, len(factory.memory.devices)):
            backend = _adopted(factory, instance, entry, folder)
        if backend is None:
            left.append(folder)
            continue
        taken.add(instance)
        _log.info("engine_adopted", instance=str(instance), engine=folder.pid)
        serving.adopt(instance, backend)
    await _discard(left)


def _adopted(factory: EngineFactory, instance: InstanceId, entry: ServiceEntry, folder: EngineFolder) -> Backend | None:
    """Return the backend of an engine; None if it cannot be adopted, also by an unexpected error (ADR 0093)."""
    try:
        return factory.adopt(instance, entry, folder)
    except Exception as error:  # noqa: BLE001
        _log.warning("engine_not_adopted", instance=str(instance), reason=failure_reason(error, instance, "adopt"))
        return None


def _fits(instance: InstanceId, entry: ServiceEntry, gpus: int) -> bool:
    first, size = instance.chunk
    return size in SIZES and size in entry.degrees and first % size == 0 and 0 <= first <= gpus - size


async def _discard(folders: Iterable[EngineFolder]) -> None:
    async def one(folder: EngineFolder) -> None:
        record = folder.record
        try:
            if processes := await discard(folder, DISCARD_S):
                _log.warning("engine_not_stopped", service=record.service, processes=sorted(processes))
        except Exception as error:  # noqa: BLE001
            instance = InstanceId(record.service, Chunk(record.first, record.size))
            _log.warning("engine_not_stopped", service=record.service, reason=failure_reason(error, instance, "stop"))

    await asyncio.gather(*map(one, folders))
