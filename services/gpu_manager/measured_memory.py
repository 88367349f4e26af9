"""Memory of the engines of one node: measured before a load or a restore, and compared with what engines declare.

The machine counts what engines declare. One that uses more leaves too little for others, which have done nothing wrong.

Laws (tests/services/gpu_manager/test_measured_memory.py, ADR 0096):
  - an engine that finds too little memory, because others use more than they declare, has the one stopped that has the
    most beyond its declaration. Its own step is tried again afterwards;
  - if what engines have beyond their declarations explains no lack, none is stopped for it;
  - a measurement that raises an unexpected error stops nothing, and is logged (ADR 0093).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.gpu_manager.backends.protocol import Backend, OutOfMemory
from services.gpu_manager.device_checks import check_memory, memory_lack
from services.gpu_manager.devices import GIB, DeviceMemory
from services.gpu_manager.engine_failures import failure_reason, measured_footprint
from shared.model_services.entries import ServiceEntry
from shared.policy.serving.model import EngineDied, InstanceId
from shared.policy.serving.node_view import InstanceView
from shared.runtime import log

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class EngineExcess:
    """An engine that uses more memory of each of its GPUs than it declares."""

    instance: InstanceId
    declared_gb: float
    used_gb: float
    sleeps: bool

    @property
    def excess_gb(self) -> float:
        """What it uses beyond its declaration."""
        return self.used_gb - self.declared_gb

    def __str__(self) -> str:
        """Return a text for people."""
        each = " of each GPU" if self.instance.chunk.size > 1 else ""
        sleeps = " asleep" if self.sleeps else ""
        return (
            f"{self.instance.service} declares {self.declared_gb:.1f} GB{each}{sleeps}, and uses {self.used_gb:.1f} GB"
        )


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """Memory of the engines of one node."""

    memory: DeviceMemory
    backends: Mapping[InstanceId, Backend]
    views: Callable[[], Sequence[InstanceView]]
    exceeded: Callable[[EngineDied], None]
    """Called with the engine that has to be stopped."""

    @asynccontextmanager
    async def checked(self, instance: InstanceId, entry: ServiceEntry, own_gb: float) -> AsyncIterator[None]:
        """Check the memory for a load or a restore, which is the body. If it is too little, find the engine at fault.

        Args:
            instance: the engine.
            entry: its service.
            own_gb: memory of each GPU that the sleeping engine itself has.

        Raises:
            OutOfMemory: there is too little before the body, or it raises this.
        """
        try:
            await check_memory(self.memory, instance, entry, own_gb)
            yield
        except OutOfMemory:
            try:
                await self._stop_excess(instance, entry, own_gb)
            except Exception as error:  # noqa: BLE001
                failure_reason(error, instance, "memory")  # logs it
            raise

    async def _stop_excess(self, instance: InstanceId, entry: ServiceEntry, own_gb: float) -> None:
        lack = await memory_lack(self.memory, instance, entry, own_gb)
        if lack is None:
            return
        found = await self.excess_on(lack.gpu, lack.lacks_gb, instance)
        if found is not None:
            where = f"GPU {lack.gpu} has {lack.device_gb:.1f} GB"
            self.stop(found, f"{found}; {where}, and {instance.service} needs {lack.needed_gb:.1f} GB")

    async def excess_on(self, gpu: int, lacks_gb: float, beside: InstanceId | None = None) -> EngineExcess | None:
        """Return the engine on a GPU that has the most beyond its declared memory.

        None: what engines have beyond it together is less than what lacks; or that engine is quarantined, so that it
        could not be stopped. Engines whose memory cannot be measured count as within it. Those of `beside` too.
        """
        views = {view.instance: view for view in self.views()}
        found: list[EngineExcess] = []
        for instance, backend in list(self.backends.items()):
            if gpu not in instance.chunk.gpus or instance == beside:
                continue
            used_gb = ((await measured_footprint(instance, backend)).device_bytes or 0) / GIB / instance.chunk.size
            view = views.get(instance)
            declared_gb = 0.0 if view is None else view.device_gb
            if used_gb > declared_gb:
                found.append(EngineExcess(instance, declared_gb, used_gb, view is not None and view.level is not None))
        if not found or sum(one.excess_gb for one in found) < lacks_gb:
            return None
        most = max(found, key=lambda one: one.excess_gb)
        view = views.get(most.instance)
        return None if view is not None and view.state == "quarantined" else most

    def stop(self, found: EngineExcess, why: str) -> None:
        """Have an engine stopped, as one that died of too little memory."""
        _log.error("engine_exceeds_memory", instance=str(found.instance), reason=why)
        self.exceeded(EngineDied(found.instance, f"out of memory: {why}"))
