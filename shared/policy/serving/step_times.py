"""Measured times of steps: exponentially weighted means by (service, degree, level).

Evict and restore differ by engine and level by more than ten times (vLLM level 1 copies on each sleep, level 2 reads
the weights again; facts, A1). So the level is chosen by measurement, and by declared defaults before the first one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import InstanceId, Level

Direction = Literal["evict", "restore"]


@dataclass(slots=True)
class StepTimes:
    """Means of one node. Each method is O(1) if its docstring has no other cost."""

    config: ServingConfig
    _means: dict[str, dict[tuple[int, Direction, Level], float]] = field(default_factory=dict)
    """Service -> (degree, direction, level) -> seconds. Bounded by the declared services."""

    def record(self, instance: InstanceId, direction: Direction, level: Level, took_s: float) -> None:
        """Record a step that succeeded. `restore` from `cold` is a load, `evict` to `cold` a stop."""
        means = self._means.setdefault(instance.service, {})
        key = (instance.chunk.size, direction, level)
        before = means.get(key, took_s)
        means[key] = before + self.config.ewma_weight * (took_s - before)

    def evict_s(self, instance: InstanceId, level: Level) -> float:
        """Expected time to evict to a level."""
        known = self._means.get(instance.service, {}).get((instance.chunk.size, "evict", level))
        return self.config.evict_s[level] if known is None else known

    def restore_s(self, instance: InstanceId, level: Level) -> float:
        """Expected time to restore from a level."""
        known = self._means.get(instance.service, {}).get((instance.chunk.size, "restore", level))
        return self.config.restore_s[level] if known is None else known

    def measured(self, instance: InstanceId) -> dict[str, float]:
        """Measured means of an instance's service and degree, as `evict asleep1` -> seconds. O(its means)."""
        means = self._means.get(instance.service, {})
        return {f"{way} {level}": mean for (size, way, level), mean in means.items() if size == instance.chunk.size}

    def forget(self, service: str) -> None:
        """Remove a service's means. Steps that are under way may add them again: see `NodeServing`."""
        self._means.pop(service, None)
