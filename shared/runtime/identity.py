"""Identity of a process: its pid and start time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, distinguished from a later one with the same pid."""

    pid: int
    started: int
    """Clock ticks after boot, field 22 of /proc/<pid>/stat."""

    def alive(self) -> bool:
        """Return whether this process still runs. A zombie does not."""
        return identify(self.pid) == self


def identify(pid: int) -> Identity | None:
    """Return the process that runs under ``pid`` now. None: there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # bytes: the name may be invalid text, with spaces and brackets
    except OSError:
        return None
    state, *fields = stat.rpartition(b")")[2].split()
    return None if state in b"ZX" else Identity(pid, int(fields[18]))
