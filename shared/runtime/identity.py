"""Identity of a process: a pid and when the process began."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told apart from a later one that got the same pid."""

    pid: int
    started: int
    """Clock ticks after boot, field 22 of /proc/<pid>/stat."""

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """Who runs under ``pid`` now: None when nobody does, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # the name may be no text, and hold spaces and brackets
    except OSError:
        return None
    state, *fields = stat.rpartition(b")")[2].split()
    return None if state in b"ZX" else Identity(pid, int(fields[18]))
