"""Measurements of one batch under one system."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class GpuRun:
    """Times of the calls in the order of their ends, seconds."""

    system: str
    gpus: int
    queue_s: list[float] = field(default_factory=list)
    """From the end of the generation until the call has GPUs, or its turn on an engine."""
    execution_s: list[float] = field(default_factory=list)
    overhead_s: list[float] = field(default_factory=list)
    """What the system adds: evictions, restores, canaries, network."""
    degrees: list[int] = field(default_factory=list)
    restores: int = 0
    """Engines that were restored or loaded."""
    ended_s: float = 0.0

    def add(self, queue_s: float, execution_s: float, overhead_s: float, degree: int) -> None:
        """Add a call."""
        self.queue_s.append(queue_s)
        self.execution_s.append(execution_s)
        self.overhead_s.append(overhead_s)
        self.degrees.append(degree)

    @property
    def calls(self) -> int:
        return len(self.queue_s)

    @property
    def act_s(self) -> float:
        """Mean completion time of a trajectory's call."""
        return self.mean_queue_s + self.mean_execution_s + self.mean_overhead_s

    @property
    def mean_queue_s(self) -> float:
        return float(np.mean(self.queue_s))

    @property
    def mean_execution_s(self) -> float:
        return float(np.mean(self.execution_s))

    @property
    def mean_overhead_s(self) -> float:
        return float(np.mean(self.overhead_s))

    @property
    def p99_s(self) -> float:
        """99th percentile of the completion times."""
        return float(np.quantile(np.add(np.add(self.queue_s, self.execution_s), self.overhead_s), 0.99))

    @property
    def overhead_share(self) -> float:
        """Overhead / execution."""
        return self.mean_overhead_s / self.mean_execution_s

    @property
    def swaps(self) -> float:
        """Restores per 1,000 calls."""
        return 1000.0 * self.restores / self.calls

    @property
    def degree(self) -> float:
        """Mean degree of parallelism."""
        return float(np.mean(self.degrees))

    def document(self) -> dict[str, Any]:
        """Return a part of the document of `--json`."""
        return {
            "system": self.system,
            "gpus": self.gpus,
            "calls": self.calls,
            "act_s": self.act_s,
            "queue_s": self.mean_queue_s,
            "execution_s": self.mean_execution_s,
            "overhead_s": self.mean_overhead_s,
            "p99_s": self.p99_s,
            "swaps_per_1000": self.swaps,
            "degree": self.degree,
            "ended_s": self.ended_s,
        }
