"""Identity of a process: its pid and start time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


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
    """Return the process that runs under ``pid`` now. None: there is none, only a zombie, or it cannot be seen."""
    found = look_at(pid)
    return None if found is None or found.ended else Identity(pid, found.started)


class Seen(NamedTuple):
    """What `/proc` shows of a pid."""

    ended: bool
    """Only a zombie is left."""
    started: int
    """As in `Identity`."""


def look_at(pid: int) -> Seen | None:
    """Return what has this pid now. None: nothing has it, or it cannot be read, as without a file descriptor."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()  # bytes: the name may be invalid text, with spaces and brackets
    except OSError:
        return None
    state, *fields = stat.rpartition(b")")[2].split()
    return Seen(state in b"ZX", int(fields[18]))
