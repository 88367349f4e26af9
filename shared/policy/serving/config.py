"""Bounds and times of one node's model services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.policy.serving.model import Level


def _evict_s() -> dict[Level, float]:
    return {"cold": 5.0, "asleep1": 5.0, "asleep2": 0.5}


def _restore_s() -> dict[Level, float]:
    return {"cold": 60.0, "asleep1": 2.0, "asleep2": 6.5}


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Bounds and times, in seconds."""

    max_wait_s: float = 30.0
    """Wait of a holder after which it goes before holders of resident instances, and minimum residency ends."""
    max_drain_s: float = 120.0
    """Time for which a fenced instance's holders may go on. Then they are aborted."""
    abort_limit_s: float = 10.0
    """Time in which aborted holders have to end. Then the engine is stopped."""
    found_limit_s: float = 60.0
    """Time in which the residency of an expected engine has to be found. Then the engine is stopped."""
    first_probe_s: float = 30.0
    """Pause before the first probe of a quarantined instance. It doubles with each failure in a row."""
    most_probe_s: float = 600.0
    most_deaths: int = 3
    """Deaths of an engine, without a successful holder between them, that quarantine its instance."""
    most_failed_calls: int = 3
    """Calls in a row that an engine fails before it has to answer a canary."""
    most_waiting: int = 10_000
    """Most waiting holders of the node."""
    hung_after_s: float = 30.0
    """Time for which an engine with holders may answer none of them. Then its liveness is checked."""
    retry_s: float = 1.0
    """`retry_in_s` at least, and if no better time is known."""
    yield_s: float = 0.75
    """Time for which a late load offers its GPUs; 0: never. The leader reads that its holders were refused, and its
    grant to another service arrives: some milliseconds. It is less than `retry_s`, so that its own holders come back.
    """
    bad_device_retry_s: float = 60.0
    """`retry_in_s` for a chunk with a bad GPU."""
    ewma_weight: float = 0.3
    """Weight of the newest measurement of a step."""
    evict_s: Mapping[Level, float] = field(default_factory=_evict_s)
    """Evict time by level before the first measurement. Those of vLLM with an 8B model (facts, A1)."""
    restore_s: Mapping[Level, float] = field(default_factory=_restore_s)
    """Restore time by level before the first measurement; `cold`: of a load."""
