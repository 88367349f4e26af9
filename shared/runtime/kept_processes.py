"""Records of processes that outlive their service, such as the guards of engines.

The supervisor ends the orphans of a service when it ends. It leaves those that have a record in the home of the stack,
and `KEEP_VARIABLE`: the next process of the service adopts them. They end by themselves if none does, and with the
stack. After a supervisor that was killed, `treadle up` and `treadle down` end what is recorded here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from shared.runtime.identity import Identity

KEEP_VARIABLE: Final = "TREADLE_KEEP"
"""Variable in the environment of a process that outlives its service. Its value does not matter."""
RECORD: Final = "guard.json"
"""Name of a record in the folder of its process."""
ENGINES: Final = "engines"
"""Folder below `run/` of a home: one folder for each node, and in it one for each engine."""


class KeptProcess(msgspec.Struct, frozen=True):
    """A process that outlives its service. It leads a session of its own."""

    pid: int
    started: int
    """Clock ticks after boot."""
    boot: str
    """Id of that boot."""

    def identity(self) -> Identity | None:
        """Return the process while it runs; None if it has ended, or another one has its pid."""
        found = Identity(self.pid, self.started)
        return found if self.boot == boot_id() and found.alive() else None


def boot_id() -> str:
    """Return the id of this boot of the kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_kept(path: Path) -> KeptProcess | None:
    """Return a record; None if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptProcess)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def kept_processes(home: Path) -> Iterator[Identity]:
    """Yield the recorded processes of a home that still run."""
    with suppress(OSError):
        for path in sorted((home / "run" / ENGINES).glob(f"*/*/{RECORD}")):
            record = read_kept(path)
            if record is not None and (found := record.identity()) is not None:
                yield found
