"""Measured times of steps: exponentially weighted means by (service, chunk, level), and by degree for other chunks.

Evict and restore differ by engine and level by more than ten times (vLLM level 1 copies on each sleep, level 2 reads
the weights again; facts, A1), and GPUs of one node by their links to the host. So the level is chosen by measurement,
and by declared defaults before the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.policy.model.chunks import Chunk
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import InstanceId, Level

Direction = Literal["evict", "restore"]


@dataclass(slots=True)
class StepTimes:
    """Means of one node. Each method is O(1) if its docstring has no other cost."""

    config: ServingConfig
    _means: dict[str, dict[tuple[Chunk | int, Direction, Level], float]] = field(default_factory=dict)
    """Service -> (chunk or degree, direction, level) -> seconds. Bounded by the chunks of the declared services."""
    _load_s: dict[str, float] = field(default_factory=dict)
    """Service -> declared time of a load."""

    def declare(self, service: str, load_s: float | None) -> None:
        """Set the expected time of a service's loads until one is measured; None: the default."""
        if load_s is None:
            self._load_s.pop(service, None)
        else:
            self._load_s[service] = load_s

    def record(self, instance: InstanceId, direction: Direction, level: Level, took_s: float) -> None:
        """Record a step that succeeded. `restore` from `cold` is a load, `evict` to `cold` a stop."""
        means = self._means.setdefault(instance.service, {})
        of: Chunk | int
        for of in (instance.chunk, instance.chunk.size):
            before = means.get((of, direction, level), took_s)
            means[of, direction, level] = before + self.config.ewma_weight * (took_s - before)

    def evict_s(self, instance: InstanceId, level: Level) -> float:
        """Expected time to evict to a level."""
        known = self._known(instance, "evict", level)
        return self.config.evict_s[level] if known is None else known

    def restore_s(self, instance: InstanceId, level: Level) -> float:
        """Expected time to restore from a level."""
        known = self._known(instance, "restore", level)
        if known is None and level == "cold":
            known = self._load_s.get(instance.service)
        return self.config.restore_s[level] if known is None else known

    def _known(self, instance: InstanceId, direction: Direction, level: Level) -> float | None:
        """Mean of the chunk; of the degree, if the service was not measured there."""
        means = self._means.get(instance.service)
        if means is None:
            return None
        own = means.get((instance.chunk, direction, level))
        return means.get((instance.chunk.size, direction, level)) if own is None else own

    def measured(self, instance: InstanceId) -> dict[str, float]:
        """Measured means of an instance, else of its degree, as `evict asleep1` -> seconds. O(means of its service)."""
        means, found = self._means.get(instance.service, {}), dict[str, float]()
        for of in (instance.chunk.size, instance.chunk):
            found |= {f"{way} {level}": mean for (each, way, level), mean in means.items() if each == of}
        return found

    def forget(self, service: str) -> None:
        """Remove a service's times. Steps that are under way may add means again: see `NodeServing`."""
        self._means.pop(service, None)
        self._load_s.pop(service, None)
