"""One node with GPUs in virtual time: `NodeServing` decides about engines, and its steps take the given times.

The node checks the law that matters most: a GPU has the calls of one service at a time. Each degree of a service is a
service of its own here (§5.3), because an engine's memory on each GPU depends on the degree. All engines begin asleep,
as after the preparation of §5.3. Sleeping engines share one copy of the weights in host memory, and use no device
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Final

from shared.policy.model.chunks import Chunk
from shared.policy.model.chunks import Chunk as GrantedChunk
from shared.policy.serving import model
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    InstanceId,
    Level,
    ModelServiceSpec,
    NodeMemory,
    Step,
)
from shared.policy.serving.node_serving import NodeServing
from treadle.lab.replay.gpu.assumptions import Engines, GpuCluster
from treadle.lab.replay.gpu.trace import ModelService
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

ASLEEP: Final[Level] = "asleep1"
BUDGET_S: Final = 1e7
"""Deadline of a holder: none ends in a replay."""

ResidentChunks = dict[str, frozenset[GrantedChunk]]
"""Service -> chunks that hold it."""


def restore_s(service: ModelService, degree: int, engines: Engines) -> float:
    """Seconds of a restore: a wake-up, and the copy of each GPU's part of the weights."""
    return engines.restore_s or engines.wake_s + service.weights_gb / degree / engines.copy_gb_s


class SimulatedGpuNode:
    """Engines of one node."""

    def __init__(
        self, time: VirtualTime, services: Mapping[str, ModelService], cluster: GpuCluster, engines: Engines,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._time, self._services, self._engines, self._changed = time, services, engines, changed
        self.restores = 0
        self._admitted: dict[str, Callable[[], None]] = {}
        self._using: dict[str, InstanceId] = {}
        self._resident: set[InstanceId] = set()
        self._wake_s = inf
        config = ServingConfig(
            hung_after_s=inf,
            evict_s={"cold": 5.0, ASLEEP: engines.evict_s},
            restore_s={"cold": engines.cold_s, ASLEEP: _mean(restore_s(one, 4, engines) for one in services.values())},
        )
        self.serving = NodeServing(NodeMemory((cluster.device_gb,) * cluster.gpus), config)
        for service in services.values():
            for degree in service.degrees:
                if engines.work_gb + service.weights_gb / degree <= cluster.device_gb:
                    self._prepare(service, degree, cluster.gpus)

    def want(self, holder: str, service: str, numbers: tuple[int, ...], admitted: Callable[[], None]) -> None:
        """Make a service resident on a chunk and call `admitted`."""
        self._admitted[holder] = admitted
        instance = InstanceId(_of_degree(service, len(numbers)), Chunk(numbers[0], len(numbers)))
        self._handle(model.Wanted(holder, instance, self._time.now + BUDGET_S))

    def end(self, holder: str) -> None:
        """End a holder."""
        del self._using[holder]
        self._handle(model.HolderEnded(holder))

    def resident(self) -> ResidentChunks:
        """Return the chunks that hold each service."""
        found: dict[str, set[GrantedChunk]] = {name: set() for name in self._services}
        for one in self._resident:
            found[one.service.partition("@")[0]].add(GrantedChunk(*one.chunk))
        return {name: frozenset(chunks) for name, chunks in found.items()}

    def _prepare(self, service: ModelService, degree: int, gpus: int) -> None:
        name = _of_degree(service.name, degree)
        awake_gb = service.weights_gb / degree + self._engines.work_gb
        spec = ModelServiceSpec(name, awake_gb, (ASLEEP, "cold"), (degree,), concurrency=service.concurrency)
        self.serving.handle(0.0, model.ServiceSet(spec))
        for first in range(0, gpus - degree + 1, degree):
            self.serving.handle(0.0, model.Found(InstanceId(name, Chunk(first, degree)), ASLEEP))

    def _handle(self, stimulus: model.Stimulus) -> None:
        changed = False
        for command in self.serving.handle(self._time.now, stimulus):
            changed = self._execute(command) or changed
        wake_s = self.serving.next_wake_s()
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            self._time.at(wake_s, lambda: self._wake(wake_s))
        if changed:
            self._changed()

    def _wake(self, wake_s: float) -> None:
        if wake_s == self._wake_s:
            self._wake_s = inf
            self._handle(model.TimePassed())

    def _execute(self, command: model.Command) -> bool:
        """Execute a command; return whether residency has changed."""
        match command:
            case model.Evict(instance, _):
                self._step(instance, "evict", self._engines.evict_s)
            case model.Restore(instance):
                self.restores += 1
                service, degree = instance.service.split("@")
                self._step(instance, "restore", restore_s(self._services[service], int(degree), self._engines))
            case model.RunCanary(instance):
                self._step(instance, "canary", self._engines.canary_s)
            case model.Admit(holder, instance):
                self._admit(holder, instance)
            case model.ResidencyChanged(instance, state, _):
                before = instance in self._resident
                (self._resident.add if state == "resident" else self._resident.discard)(instance)
                return before != (instance in self._resident)
            case _:
                raise SimulationError(f"a node in which nothing fails commands {command}")
        return False

    def _step(self, instance: InstanceId, step: Step, took_s: float) -> None:
        self._time.after(took_s, partial(self._handle, model.Stepped(instance, step, "ok", took_s=took_s)))

    def _admit(self, holder: str, instance: InstanceId) -> None:
        for other, used in self._using.items():
            if used != instance and used.chunk.overlaps(instance.chunk):
                raise SimulationError(f"{holder} uses {instance} beside {other} on {used}")
        self._using[holder] = instance
        self._time.after(0.0, self._admitted.pop(holder))


def _of_degree(service: str, degree: int) -> str:
    return f"{service}@{degree}"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
