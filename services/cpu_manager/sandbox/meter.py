"""Usage of one program so far, compared with its limits."""

from __future__ import annotations

import asyncio
from typing import Final

from services.cpu_manager.sandbox.protocol import EndedBy, Limits
from services.cpu_manager.sandbox.spares import Spare
from services.cpu_manager.sandbox.usage import Usage, UsageSampler, pid_of, sample_in_thread

SAMPLE_S: Final = 0.02
_SELDOM_S: Final = 0.25
_LONGEST_REST_S: Final = 1.0
_REST: Final = 4
"""After a sample that took long (many files or processes), the watchdog pauses for four times as long."""


class Meter:
    """Measures the tree of one cell. `usage` combines all samples so far; a failed sample changes nothing."""

    def __init__(self, sampler: UsageSampler, spare: Spare, limits: Limits, cores: int) -> None:
        self._sampler = sampler
        self._spare = spare
        self._limits = limits
        self._cores = cores
        self._init = 0
        self.usage = Usage()
        self.exact = sampler.exact
        """True if the kernel enforces the limits of memory and processes. A sample then costs a file or two."""

    def sample(self) -> None:
        """Measure at once, without what would have to wait for the program."""
        try:
            self._merge(self._sampler.sample(self._tree(), quick=True))
        except OSError:  # for example out of descriptors: the program is killed and reported as before
            return

    def sample_in_thread(self) -> asyncio.Future[Usage]:
        """Measure everything, in a thread. Pass the result to `add`."""
        return sample_in_thread(self._sampler, self._tree())

    def add(self, measured: asyncio.Future[Usage]) -> None:
        """Add a sample that was taken in a thread."""
        failed = measured.exception()
        if failed is None:
            self._merge(measured.result())
        elif not isinstance(failed, OSError):
            context = {"message": "a sample of a program failed", "exception": failed}
            asyncio.get_running_loop().call_exception_handler(context)

    def breach(self) -> tuple[EndedBy, str] | None:
        """Return the limit that the program has exceeded and the reason for people, or None."""
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

    def next_sample_s(self, took_s: float) -> float:
        """Return the seconds until the program could reach a limit at the earliest."""
        if not self.exact:
            return min(max(SAMPLE_S, took_s * _REST), _LONGEST_REST_S)
        soonest = (self._limits.cpu_s - self.usage.cpu_s) / self._cores
        return min(max(soonest, SAMPLE_S), _SELDOM_S)

    def _tree(self) -> int:
        """Return the process id of the cell's init; 0 before it is known."""
        if self._init == 0 and not self.exact and self._spare.pidfd >= 0:
            self._init = pid_of(self._spare.pidfd)
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
