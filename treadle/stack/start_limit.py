"""Time limit of a start. It counts from the last progress, so that a start on a busy machine does not fail.

Progress is CPU time of the process and of its children. A process that compiles or loads a file makes some. One that
waits for something that does not come makes none. Pure, except ``cpu_seconds``.
"""

from dataclasses import dataclass, field

import psutil

BUSY_SHARE = 0.05
"""Share of a core, averaged over the limit, that counts as progress. A waiting service and its probes use 0.01."""
LONGEST = 10
"""A start ends after this many limits despite its progress, because an endless loop makes some for ever."""


@dataclass(slots=True)
class StartLimit:
    """The limit of one start. Times are seconds of one monotonic clock."""

    limit_s: float
    """From ``STACK_START_TIMEOUT``."""
    began: float
    _since: float = field(init=False)
    """Time of the last progress."""
    _cpu_s: float = field(default=0.0, init=False)
    """CPU time at the last progress."""

    def __post_init__(self) -> None:
        self._since = self.began

    def reached(self, now: float, cpu_s: float) -> str | None:
        """Return what the start has exceeded, for people, or None.

        Args:
            now: the present time.
            cpu_s: CPU time of the starting process. Lower than before if it has been started again.
        """
        self._cpu_s = min(self._cpu_s, cpu_s)
        if cpu_s - self._cpu_s >= BUSY_SHARE * self.limit_s:
            self._cpu_s, self._since = cpu_s, now
        if now - self.began >= LONGEST * self.limit_s:
            return f"after {now - self.began:.0f} s, {LONGEST} times STACK_START_TIMEOUT"
        if now - self._since >= self.limit_s:
            return f"after {self.limit_s:.0f} s without progress (STACK_START_TIMEOUT={self.limit_s:g})"
        return None


def cpu_seconds(pid: int | None) -> float:
    """Return CPU time of a process and its descendants, ended ones included; 0 if there is no such process."""
    if pid is None:
        return 0.0
    try:
        process = psutil.Process(pid)
        return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))
    except psutil.Error:  # it, or one of them, has just ended
        return 0.0
