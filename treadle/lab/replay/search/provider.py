"""An external service in virtual time: token bucket, concurrency limit, latency by load, errors, slow-downs, overload.

It is the judge: it counts what it admits by its own limits, without the limits of any client.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from treadle.lab.replay.search.assumptions import Provider

HORIZON_S = 40_000.0
"""Time for which slow-downs are drawn in advance; none comes later."""

Outcome = Literal["ok", "refused", "failed", "hung"]


class ProviderAnswer(NamedTuple):
    """Answer to one call."""

    outcome: Outcome
    after_s: float
    """Seconds from the arrival of the call to the answer; infinity if it hangs."""
    retry_after_s: float = 0.0
    """Its Retry-After."""

    @property
    def admitted(self) -> bool:
        """It has taken a token and a slot: `SimulatedProvider.leave` must follow."""
        return self.outcome in ("ok", "failed")


@dataclass
class SimulatedProvider:
    """One service. Calls arrive in order of time."""

    rules: Provider
    random: Random
    counts: dict[Outcome, int] = field(default_factory=lambda: {"ok": 0, "refused": 0, "failed": 0, "hung": 0})
    admitted_s: list[float] = field(default_factory=list)
    """Times of the calls that were admitted, ascending."""
    most_running: int = 0
    running: int = 0
    _tokens: float = 0.0
    _at_s: float = 0.0
    _arrived_s: deque[float] = field(default_factory=deque)
    """Arrivals of the last second."""
    _slow_s: list[float] = field(default_factory=list)
    """Beginnings and ends of slow-downs, in turn."""

    def __post_init__(self) -> None:
        self._tokens, at_s = self.rules.burst, 0.0
        while self.rules.slow_every_s and at_s < HORIZON_S:
            begin_s = at_s + self.random.expovariate(1.0 / self.rules.slow_every_s)
            at_s = begin_s + self.rules.slow_for_s
            self._slow_s += [begin_s, at_s]

    def slowed(self, now: float) -> float:
        """Return the present factor of the service: 1, or that of a slow-down."""
        return self.rules.slow_factor if bisect_right(self._slow_s, now) % 2 else 1.0

    def call(self, now: float, work: float) -> ProviderAnswer:
        """Return the answer to a call that arrives now. `work`: its latency relative to the median."""
        factor = self.slowed(now)
        self._refill(now)
        answer = self._answer(now, work, factor)
        self.counts[answer.outcome] += 1
        if answer.admitted:
            self._tokens -= 1.0
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.admitted_s.append(now)
        return answer

    def leave(self) -> None:
        """End an admitted call."""
        self.running -= 1

    def limit(self, seconds: float) -> float:
        """Return the calls that the service admits at most in this time from the start, as it has published."""
        return self.rules.burst + self.rules.per_s * seconds

    def _refill(self, now: float) -> None:
        """Add tokens piece by piece, because a slow-down may have begun or ended meanwhile."""
        while self._at_s < now:
            at = bisect_right(self._slow_s, self._at_s)
            until_s = min(now, self._slow_s[at]) if at < len(self._slow_s) else now
            per_s = self.rules.per_s / self.slowed(self._at_s)
            self._tokens = min(self.rules.burst, self._tokens + (until_s - self._at_s) * per_s)
            self._at_s = until_s

    def _answer(self, now: float, work: float, factor: float) -> ProviderAnswer:
        rules = self.rules
        while self._arrived_s and self._arrived_s[0] <= now - 1.0:
            self._arrived_s.popleft()
        self._arrived_s.append(now)
        beyond = 1.0 - rules.overload * max(rules.per_s, rules.burst) / factor / len(self._arrived_s)
        if self.random.random() < max(rules.hangs, beyond):
            return ProviderAnswer("hung", math.inf)
        if self._tokens < 1.0 - 1e-9:
            wait_s = (1.0 - self._tokens) * factor / rules.per_s
            return ProviderAnswer("refused", rules.refusal_s, float(math.ceil(wait_s)))
        if self.running >= max(1, int(rules.concurrency / factor)):
            return ProviderAnswer("refused", rules.refusal_s, 1.0)
        load = self.running / rules.concurrency
        after_s = rules.latency_s * work * factor * (1.0 + rules.load_slope * load * load)
        return ProviderAnswer("failed" if self.random.random() < rules.errors else "ok", after_s)
