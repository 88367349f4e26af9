"""Bounds and times of the router's policy."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """Times and bounds by which workers leave rotation and return.

    A frozen worker leaves rotation after `stall_s + canary_s`, so within 30 s with the defaults, also if progress is
    reported and time passes in ticks of 1 s (tests/shared/policy/routing/test_router_health.py).
    """

    stall_s: float = 15.0
    """Time without a byte after which a canary is sent. Longer than the pauses of most decoding batches."""
    canary_s: float = 8.0
    """Time after which a canary without an answer has failed. The service ends its call then."""
    first_canary_s: float = 5.0
    """Pause before a failed worker's next canary. It doubles with each that fails."""
    most_canary_s: float = 60.0
    most_failures: int = 5
    """Failures in a row that open the circuit breaker."""
    least_answers: float = 20.0
    """Weighted answers without which their share of failures means nothing."""
    failed_share: float = 0.5
    """Share of failures that opens the circuit breaker."""
    half_life_s: float = 30.0
    """Age at which an answer has half its weight."""
    first_open_s: float = 5.0
    """Time for which the circuit breaker is open. It doubles with each probe that fails."""
    most_open_s: float = 60.0
    first_pause_s: float = 0.5
    """Pause after the answer 503 or 429. It doubles with each in a row."""
    most_pause_s: float = 5.0


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """Bounds and times of one router."""

    most_waiting: int = 10_000
    """Most waiting calls of the mesh."""
    kv_idle_s: float = 60.0
    """Time after a trajectory's last call for which its KV reservation stays: most tool calls are shorter."""
    pin_idle_s: float = 3600.0
    """Time after a trajectory's last call for which its pin stays, as AIBrix keeps its sessions."""
    most_pins: int = 200_000
    """Most pins. Above it the pin that was idle for the longest time is removed. Pins with calls always stay."""
    most_repeats: int = 2
    """Times that a call may be sent to workers that have failed it, if there are no others."""
    retry_s: float = 1.0
    """Retry-After if no better time is known."""
    health: HealthConfig = field(default_factory=HealthConfig)
