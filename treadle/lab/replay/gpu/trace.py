"""Calls of model services, and the services."""

from __future__ import annotations

from dataclasses import dataclass

from shared.policy.model.elasticity import Elasticity

DEGREES = (1, 2, 4, 8)
"""§4.1: discrete numbers of GPUs."""


@dataclass(frozen=True, slots=True)
class GpuCall:
    """The call of one trajectory."""

    trajectory: int
    service: str
    due_s: float
    """End of the trajectory's generation."""
    single_s: float
    """Execution on one GPU."""


Calls = tuple[GpuCall, ...]


@dataclass(frozen=True, slots=True)
class ModelService:
    """One model."""

    name: str
    weights_gb: float
    elasticity: Elasticity
    profile_s: float
    """Execution on one GPU that schedulers expect (§6.1: profiled in advance)."""
    concurrency: int = 1
    degrees: tuple[int, ...] = DEGREES

    def seconds(self, single_s: float, degree: int) -> float:
        """Return the execution time of a call on so many GPUs."""
        return self.elasticity.duration(single_s, degree)


@dataclass(frozen=True)
class GpuBatch:
    """One batch: its services and its calls, by the time at which they are due."""

    services: tuple[ModelService, ...]
    calls: Calls
