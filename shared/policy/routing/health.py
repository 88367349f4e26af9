"""Health of one worker: a circuit breaker over its answers, and progress.

Laws (tests/shared/policy/routing/test_health.py):
  - breaker: `most_failures` failures in a row, or `failed_share` of at least `least_answers` recent answers, open it.
    When its time is over, one call at a time probes it. A success closes it, a failure opens it for twice as long;
  - progress: a worker is failed if no byte of any of its calls came for `stall_s` *and* a canary failed. So one in a
    long prefill stays, and a frozen one leaves, whatever its `/health` answers. A failed worker gets canaries with
    growing pauses, and is ready again after one that succeeds;
  - back-pressure: after 503 or 429 nothing begins for a short time. It is no failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from shared.policy.routing.config import HealthConfig
from shared.policy.routing.model import WorkerState

Outcome = Literal["ok", "aborted", "failed", "unreachable", "overloaded"]


@dataclass(slots=True)
class WorkerHealth:
    """Health of one worker. Each method is O(1). `now` never decreases."""

    config: HealthConfig
    drained: bool = False
    failed: bool = False
    """It makes no progress."""
    reason: str = ""
    running: int = 0
    """Calls in flight."""
    probe: str = ""
    """Call that probes a half-open breaker."""
    in_a_row: int = 0
    """Failures since the last success."""
    open_until_s: float = 0.0
    """End of the time for which it is open; 0: that is over, or it is closed."""
    open_s: float = 0.0
    """Time for which the breaker was opened last; 0: it is closed."""
    paused_until_s: float = 0.0
    """Nothing begins before; 0: it is not paused."""
    pause_s: float = 0.0
    """Pause after the last pushback; 0: none since the last success."""
    progress_s: float = 0.0
    """Last byte of a call, or the time at which calls began."""
    asked_s: float | None = None
    """Time of the canary that is under way."""
    canary_at_s: float = 0.0
    """Earliest time of the next canary."""
    canary_pause_s: float = 0.0
    """Pause before the next canary of a failed worker."""
    _answers: float = 0.0
    """Recent answers, weighted by age."""
    _failures: float = 0.0
    _weighed_s: float = field(default=-inf)

    def state(self, now: float) -> WorkerState:
        """Return the state now."""
        if self.failed:
            return "failed"
        if self.drained:
            return "draining"
        if self.open_s:
            return "open" if self.open_until_s and now < self.open_until_s else "probing"
        return "ready"

    def usable(self, now: float) -> bool:
        """Return whether calls may be placed on it."""
        state = self.state(now)
        return state == "ready" or (state == "probing" and not self.probe)

    def doubtful(self, now: float) -> bool:
        """Return whether others are better: it has asked for a pause, or failed a call since its last success."""
        return now < self.paused_until_s or bool(self.in_a_row or self.open_s)

    def may_start(self, now: float) -> bool:
        """Return whether a call may begin."""
        return self.usable(now) and now >= self.paused_until_s

    def started(self, call: str, now: float) -> None:
        """Note that a call begins."""
        if not self.running:
            self.progress_s = now
        self.running += 1
        if self.state(now) == "probing":
            self.probe = call

    def progressed(self, now: float) -> None:
        """Note bytes of an answer."""
        self.progress_s = now

    def ended(self, call: str, outcome: Outcome, now: float) -> None:
        """Note the end of a call."""
        self.running -= 1
        was_probe, self.probe = call == self.probe, "" if call == self.probe else self.probe
        if outcome == "aborted":
            return
        if outcome == "overloaded":
            self.pause_s = min(self.config.most_pause_s, self.pause_s * 2 or self.config.first_pause_s)
            self.paused_until_s = now + self.pause_s
            return
        self._weigh(now)
        self._answers += 1
        if outcome == "ok":
            self.progress_s = now
            self.in_a_row = 0
            self.pause_s = self.paused_until_s = 0.0
            if was_probe:
                self.open_s = self.open_until_s = self._answers = self._failures = 0.0
            return
        self.in_a_row += 1
        self._failures += 1
        many = self._answers >= self.config.least_answers
        if was_probe or (not self.open_s and self.in_a_row >= self.config.most_failures):
            self._open(now, f"{self.in_a_row} calls in a row have failed")
        elif not self.open_s and many and self._failures >= self.config.failed_share * self._answers:
            self._open(now, f"{self._failures / self._answers:.0%} of its recent calls have failed")

    def _open(self, now: float, reason: str) -> None:
        self.open_s = min(self.config.most_open_s, self.open_s * 2 or self.config.first_open_s)
        self.open_until_s, self.reason = now + self.open_s, reason

    def _weigh(self, now: float) -> None:
        weight = 0.5 ** ((now - self._weighed_s) / self.config.half_life_s) if self._weighed_s > -inf else 0.0
        self._answers *= weight
        self._failures *= weight
        self._weighed_s = now

    # ---- progress ----------------------------------------------------------------------------------------------------

    def due_s(self) -> float:
        """Return when `tick` has something to do; infinity: never."""
        times = [inf]
        if self.open_until_s:
            times.append(self.open_until_s)
        if self.paused_until_s:
            times.append(self.paused_until_s)
        if self.asked_s is not None:
            times.append(self.asked_s + self.config.canary_s)
        elif self.failed:
            times.append(self.canary_at_s)
        elif self.running:
            times.append(max(self.canary_at_s, self.progress_s + self.config.stall_s))
        return min(times)

    def tick(self, now: float) -> bool:
        """Let time pass. Return whether a canary is needed now."""
        if self.paused_until_s and now >= self.paused_until_s:
            self.paused_until_s = 0.0
        if self.open_until_s and now >= self.open_until_s:
            self.open_until_s = 0.0
        if self.asked_s is not None:
            if now >= self.asked_s + self.config.canary_s:
                self.canary_answered(ok=False, now=now)
            return False
        stalled = self.running > 0 and now >= self.progress_s + self.config.stall_s
        if (self.failed or stalled) and now >= self.canary_at_s:
            self.asked_s = now
            return True
        return False

    def canary_answered(self, *, ok: bool, now: float) -> None:
        """Note the result of a canary. One that was not asked for, or that is late, counts only if it has succeeded."""
        asked, self.asked_s = self.asked_s is not None, None
        if ok:
            self.failed, self.canary_pause_s = False, 0.0
            self.canary_at_s = now + self.config.stall_s
        elif asked:
            pause_s = self.canary_pause_s * 2 or self.config.first_canary_s
            self.canary_pause_s = min(self.config.most_canary_s, pause_s)
            self.canary_at_s = now + self.canary_pause_s
            self.failed = True
            self.reason = "none of its calls makes progress, and a call of one token failed"

    def retry_at_s(self, now: float) -> float:
        """Return the earliest time at which calls may be placed on it again; infinity if it is drained."""
        if self.drained:
            return inf
        if self.failed:
            return max(now, self.canary_at_s)
        return max(now, self.open_until_s) if self.open_s else now

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert self.running >= 0, "each end has its begin"
        assert not self.probe or self.open_s, "only a half-open breaker is probed"
        assert 0 <= self._failures <= self._answers + 1e-6
