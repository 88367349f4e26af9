"""What one program has used so far, held against its limits."""

from __future__ import annotations

import asyncio
from typing import Final

from services.cpu_manager.sandbox.protocol import EndedBy, Limits
from services.cpu_manager.sandbox.spares import Spare
from services.cpu_manager.sandbox.watch import Usage, Watch, look_aside, process_of

LOOK_S: Final = 0.02
_SELDOM_S: Final = 0.25
_REST: Final = 4
"""A look that takes long, at many files or processes, is followed by four times as long for everything else."""


class Meter:
    """Looks at the tree of one cell. `usage` is what all looks so far have found; a look that fails changes nothing."""

    def __init__(self, watch: Watch, spare: Spare, limits: Limits, cores: int) -> None:
        self._watch = watch
        self._spare = spare
        self._limits = limits
        self._cores = cores
        self._init = 0
        self.usage = Usage()
        self.exact = watch.exact
        """The kernel holds memory and processes to their limits, and a look costs a file or two."""

    def look(self) -> None:
        """Look at once, without what can wait for the program."""
        try:
            self._merge(self._watch.look(self._tree(), quick=True))
        except OSError:  # out of descriptors, say: it is killed and reported as before
            return

    def look_aside(self) -> asyncio.Future[Usage]:
        """Look at everything, in a thread. The result is for `take`."""
        return look_aside(self._watch, self._tree())

    def take(self, look: asyncio.Future[Usage]) -> None:
        """Add what a look in a thread has found."""
        if not isinstance(look.exception(), OSError):
            self._merge(look.result())

    def breach(self) -> tuple[EndedBy, str] | None:
        """The limit that the program has passed, and the reason for people."""
        usage, limits = self.usage, self._limits
        if usage.cpu_s > limits.cpu_s:
            return "cpu-limit", f"used {usage.cpu_s:.2f} s of CPU, allowed {limits.cpu_s:g}"
        if usage.out_of_memory or (not self.exact and usage.peak_bytes > limits.memory_bytes):
            return "memory-limit", f"used more than {limits.memory_bytes} bytes of memory"
        if usage.processes > limits.pids:
            return "signal", f"ran {usage.processes} processes, allowed {limits.pids}"
        if usage.disk_bytes > limits.disk_bytes:
            return "signal", f"filled {usage.disk_bytes} bytes of disk, allowed {limits.disk_bytes}"
        return None

    def next_look_s(self, took_s: float) -> float:
        """Seconds until the program could have reached a limit."""
        if not self.exact:
            return max(LOOK_S, took_s * _REST)
        soonest = (self._limits.cpu_s - self.usage.cpu_s) / self._cores
        return min(max(soonest, LOOK_S), _SELDOM_S)

    def _tree(self) -> int:
        """Process id of the cell's init; 0 before it is known."""
        if self._init == 0 and not self.exact and self._spare.pidfd >= 0:
            self._init = process_of(self._spare.pidfd)
        return self._init

    def _merge(self, found: Usage) -> None:
        before = self.usage
        self.usage = Usage(
            cpu_s=max(found.cpu_s, before.cpu_s),
            peak_bytes=max(found.peak_bytes, before.peak_bytes),
            processes=found.processes,
            disk_bytes=found.disk_bytes,
            out_of_memory=found.out_of_memory or before.out_of_memory,
        )
