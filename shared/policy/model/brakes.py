"""Values of brakes: what an external service has answered to calls that a quota limits, and what follows for the next.

`resources.brakes` changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

UpstreamState = Literal["ok", "slowed", "open", "half-open", "exhausted"]
"""State of an external service. `slowed`: it has asked for fewer calls. `open`: its circuit breaker is open, because it
fails. `half-open`: one probe is due or under way. `exhausted`: its account has no credit."""


@dataclass(frozen=True, slots=True)
class Brake:
    """Brake of one quota. Times are absolute seconds."""

    not_before_s: float = 0.0
    """Time before which nothing is granted."""
    most: int | None = None
    """Most calls at once; None: no limit of the brake."""
    peak: int = 0
    """Most calls at once when it pushed back or failed. Above it, `most` becomes None again."""
    successes: int = 0
    """Successes since `most` changed."""
    pushbacks: int = 0
    """Pushbacks in a row, each to a call that was granted after the one before."""
    slowed_s: float = -1.0
    """Time of the last decrease of `most`."""
    mode: Literal["", "open", "exhausted"] = ""
    """Not empty: of the attempts that report answers, one is granted at a time, the probe."""
    since_s: float = 0.0
    """Time of the last change of `mode`. Answers to calls that were granted before it do not change it again."""
    probe: str = ""
    """`QuotaHold.key` of the probe that is under way."""
    probe_s: float = 0.0
    """Time before which no probe is granted."""
    probes: int = 0
    """Probes of this mode that have failed."""
    failures: int = 0
    """Failures in a row."""
    answers: float = 0.0
    """Number of answers, weighted by age."""
    failed: float = 0.0
    """The part of them that were failures."""
    counted_s: float = 0.0
    """Time to which these weights belong."""
    reason: str = ""

    def state(self, now: float) -> UpstreamState:
        """State of the service, for people."""
        if self.mode == "exhausted":
            return "exhausted"
        if self.mode:
            return "half-open" if self.probe or now >= self.probe_s else "open"
        return "slowed" if self.most is not None or now < self.not_before_s else "ok"

    def free_s(self, now: float) -> float:
        """Return the time before which nothing is granted; at least `now`."""
        return max(now, self.not_before_s, self.probe_s if self.mode else now)

    def closed_s(self, now: float) -> float:
        """Return the time before which nothing is granted, also if a probe that is under way succeeds; at least
        `now`.
        """
        return max(now, self.not_before_s) if self.probe else self.free_s(now)

    def blocks(self, calls: int, now: float) -> bool:
        """Return whether no call may begin now, beside so many that have begun."""
        if now < self.not_before_s:
            return True
        if self.mode:
            return bool(self.probe) or now < self.probe_s
        return self.most is not None and calls >= self.most

    def why(self, quota: str, now: float) -> str:
        """Return why no call may begin now, as a text; empty if only calls under way prevent it."""
        because = f": {self.reason}" if self.reason else ""
        if self.mode == "exhausted":
            return f"the provider of quota {quota!r} is out of credit{because}; {self._next(now)}"
        if self.mode:
            return f"the provider of quota {quota!r} fails{because}; {self._next(now)}"
        if now < self.not_before_s:
            return f"the provider of quota {quota!r} wants no call before {_text(self.not_before_s)}{because}"
        return ""

    def _next(self, now: float) -> str:
        free_s = self.free_s(now)
        if self.probe or free_s <= now:
            return "one call asks it again now"
        return f"one call asks it again at {_text(free_s)}"


class AnsweredCall(NamedTuple):
    """Attempt whose call was answered."""

    key: str
    """`QuotaHold.key`."""
    granted_s: float
    running: int
    """Attempts that hold the quota, this one included."""


def _text(time_s: float) -> str:
    """Time of the day. It is at most about an hour ahead."""
    second = math.ceil(time_s) % 86_400
    return f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC"
