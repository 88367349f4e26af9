"""Engines at rest: asleep, with nothing to do. A decision reads none of them one by one unless it gives them up.

An engine rests from the end of a stimulus until the next change of its own (`NodeState.touch`), so what is counted here
stays true: its memory, and the GPUs that it joins. Nodes with many services have hundreds of them (evict on execution,
ARL-Tangram 5.3), and the engines that are awake are as few as have room.

Oracle: tests/shared/policy/serving/restless.py, a machine in which no engine rests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from shared.policy.model.chunks import SIZES, Chunk
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import InstanceId

_JOINED: Final = tuple(size for size in SIZES if size > 1)


@dataclass(slots=True)
class RestingEngines:
    """Engines at rest on one node. A method is O(GPUs of the engine) if its docstring has no other cost."""

    gpus: list[dict[InstanceId, EngineInstance]]
    """GPU -> engines at rest on it."""
    host_gb: float = 0.0
    """Host memory that they may use together."""
    _device_gb: list[float] = field(init=False)
    _counted: dict[InstanceId, tuple[float, float, bool]] = field(default_factory=dict)
    """Device memory on each of its GPUs, host memory, and whether it is in `_chunks`, as they were added."""
    _chunks: dict[Chunk, int] = field(default_factory=dict)
    """Chunk of several GPUs -> engines at rest on it."""
    _joined: list[int] = field(init=False)
    """GPU -> GPUs of these chunks that have it, as bits."""

    def __post_init__(self) -> None:
        self._device_gb = [0.0 for _ in self.gpus]
        self._joined = [0 for _ in self.gpus]

    def add(self, one: EngineInstance) -> None:
        """Count an engine that has come to rest."""
        chunk, device_gb, host_gb = one.id.chunk, one.device_gb, one.host_gb
        joins = chunk.size > 1 and one.claim != "cold"
        self._counted[one.id] = device_gb, host_gb, joins
        self.host_gb += host_gb
        for gpu in one.gpus:
            self.gpus[gpu][one.id] = one
            self._device_gb[gpu] += device_gb
        if joins:
            self._count(chunk, 1)

    def remove(self, one: EngineInstance) -> None:
        """Remove an engine that changes. No effect if it is not at rest. Call it before the change or after it."""
        counted = self._counted.pop(one.id, None)
        if counted is None:
            return
        chunk = one.id.chunk
        self.host_gb = self.host_gb - counted[1] if self._counted else 0.0  # no rounding error outlives them
        for gpu in one.gpus:
            del self.gpus[gpu][one.id]
            self._device_gb[gpu] = self._device_gb[gpu] - counted[0] if self.gpus[gpu] else 0.0
        if counted[2]:
            self._count(chunk, -1)

    def device_gb(self, gpu: int) -> float:
        """Device memory that they may use on a GPU."""
        return self._device_gb[gpu]

    def joined(self, gpu: int) -> int:
        """Return the GPUs of engines at rest that have several GPUs, this one among them, as bits. O(1)."""
        return self._joined[gpu]

    def overlapping(self, one: EngineInstance) -> dict[InstanceId, EngineInstance]:
        """Engines at rest that share a GPU with an instance. O(engines at rest on its GPUs)."""
        return {name: other for gpu in one.gpus for name, other in self.gpus[gpu].items()}

    def _count(self, chunk: Chunk, change: int) -> None:
        """Count an engine on a chunk of several GPUs."""
        before = self._chunks.get(chunk, 0)
        self._chunks[chunk] = before + change
        if not self._chunks[chunk]:
            del self._chunks[chunk]
        if min(before, before + change) == 0:
            for gpu in chunk.gpus:
                larger = (Chunk(gpu - gpu % size, size) for size in _JOINED)  # each has all GPUs of the one before
                self._joined[gpu] = max((each.mask for each in larger if each in self._chunks), default=0)
