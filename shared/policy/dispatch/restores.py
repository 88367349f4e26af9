"""Restores of model services under way, as nodes report them: for work whose deadline comes while it waits for one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Restores:
    """Expected ends of restores. Bounded by the reported services of present nodes."""

    _ready_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """Node -> service -> time at which an engine of it is expected to be resident."""

    def report(self, node: str, restoring: Mapping[str, float], now: float) -> None:
        """Apply a node's report: service -> seconds until its restore is expected to end. O(services)."""
        self._ready_s[node] = {name: now + left_s for name, left_s in restoring.items() if 0.0 < left_s < math.inf}

    def forget(self, node: str) -> None:
        """Forget a node that has gone."""
        self._ready_s.pop(node, None)

    def ready_s(self, service: str, nodes: Iterable[str]) -> float:
        """Return the earliest expected end of a restore of a service on these nodes; 0: none is under way. O(nodes)."""
        found = (self._ready_s.get(node, {}).get(service, math.inf) for node in nodes)
        earliest_s = min(found, default=math.inf)
        return earliest_s if earliest_s < math.inf else 0.0
