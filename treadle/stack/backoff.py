"""Pauses before an ended service is started again. Pure: durations in, a duration out."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential pauses, reset when the service has run well for a while.

    A single crash costs 0.2 s, so that a killed proxy is back before its clients give up. A service that cannot run is
    tried every 30 s, so that it recovers by itself when what it needs is back.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    forgiven_after_s: float = 30.0
    hopeless_after: int = 5
    failures: int = 0
    """Consecutive ends, each before ``forgiven_after_s``."""

    def ended(self, ran_s: float) -> float:
        """Record an end after ``ran_s`` seconds. Return the seconds to wait before the next start."""
        self.failures = 1 if ran_s >= self.forgiven_after_s else self.failures + 1
        return float(min(self.longest_s, self.first_s * 2 ** (self.failures - 1)))

    @property
    def hopeless(self) -> bool:
        """Whether this is a crash loop."""
        return self.failures >= self.hopeless_after
