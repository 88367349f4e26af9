"""When to start a service again that has died. Pure: durations in, a duration out."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Exponential pauses, forgotten once the service has run well for a while.

    A single crash costs 0.2 s, so that a killed proxy is back before its clients give up; a service that cannot run
    is tried every 30 s, so that it comes back by itself when what it lacked is there again.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    forgiven_after_s: float = 30.0
    hopeless_after: int = 5
    failures: int = 0
    """Ends in a row, none of them after ``forgiven_after_s`` or more."""

    def ended(self, ran_s: float) -> float:
        """The service ended after ``ran_s`` seconds: how many seconds to wait before it is started again."""
        self.failures = 1 if ran_s >= self.forgiven_after_s else self.failures + 1
        return float(min(self.longest_s, self.first_s * 2 ** (self.failures - 1)))

    @property
    def hopeless(self) -> bool:
        """Whether to call it a crash loop rather than an accident."""
        return self.failures >= self.hopeless_after
