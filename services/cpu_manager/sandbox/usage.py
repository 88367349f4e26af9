"""Usage of a running process tree: from its control group, or from /proc if there is none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from services.cpu_manager.sandbox.disk_usage import disk_usage
from services.cpu_manager.sandbox.walls.cgroups import Group

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_THREADS: Final = 64
"""Most parallel samples. A sample of a fork bomb can take seconds; samples of other programs must not wait for it."""
_GONE: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a tree at one moment. `peak_bytes` covers its past if the kernel records it."""

    cpu_s: float = 0.0
    peak_bytes: int = 0
    processes: int = 0
    """Includes threads, as the kernel counts them for RLIMIT_NPROC and the `pids` of a control group."""
    disk_bytes: int = 0
    out_of_memory: bool = False


class UsageSampler(Protocol):
    """Sampler of one cell."""

    exact: bool
    """True if the kernel itself enforces the limits of memory and processes. Then only CPU time is sampled."""

    def sample(self, init: int, *, quick: bool = False) -> Usage:
        """Return the usage of the tree under process `init` (0 if its id is not known yet).

        `quick` leaves out what may wait for a program: memory maps, which a fork locks, and files.
        """
        ...


def sample_in_thread(sampler: UsageSampler, init: int) -> asyncio.Future[Usage]:
    """Measure in a thread. Costs about 0.1 ms more than on the event loop.

    A memory map can be read only while its process does not fork. A forking process without a core can hold the lock
    for seconds, and the event loop has other programs to serve.
    """
    return asyncio.get_running_loop().run_in_executor(_threads(), sampler.sample, init)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "watchdog")


@dataclass(slots=True)
class GroupSampler:
    """Sampler that reads the kernel's counts: a file or two per sample."""

    group: Group
    exact: bool = True

    def sample(self, init: int, *, quick: bool = False) -> Usage:  # noqa: ARG002  # the group contains its processes
        return Usage(
            cpu_s=self.group.cpu_s(),
            peak_bytes=self.group.peak_memory_bytes(),
            out_of_memory=self.group.out_of_memory(),
        )


@dataclass(slots=True)
class TreeSampler:
    """Sampler that sums over /proc: about 50 us a process. `home` is measured if no tmpfs limits it."""

    suspicious_bytes: int
    """Below this cheap upper bound the exact share of each page is not read."""
    home: str = ""
    disk_bytes: int = 0
    """Disk usage at which measuring `home` stops."""
    pids: int = sys.maxsize
    """Number of processes at which the sample stops: it must be short even for a fork bomb."""
    earlier_cpu_s: float = 0.0
    """CPU time of earlier programs, which init had reaped before this one."""
    exact_bytes: int = 0
    """The largest sum for which the exact share has been read."""
    exact: bool = False

    def sample(self, init: int, *, quick: bool = False) -> Usage:
        pids = process_tree(init, self.pids + 1) if init else []
        if len(pids) - 1 > self.pids:
            return Usage(processes=len(pids) - 1)
        cpu_s, resident, held, tasks = -self.earlier_cpu_s, 0, 0, 0
        for pid in pids:
            with contextlib.suppress(*_GONE):  # any other error must not count a process as zero
                # Read bytes: the program chooses its name, which may not be valid text.
                fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
                # Its own user and system time, and that of children it has waited for. Init's own time does not count.
                cpu_s += sum(map(int, fields[13:15] if pid == init else fields[11:15])) * _TICK_S
                tasks += max(int(fields[17]), 1) if pid != init else 0
                own = int(fields[21]) * _PAGE if fields[0] != b"Z" else resident_bytes(pid)
                resident, held = resident + own, max(held, own)
        if quick:
            return Usage(cpu_s=max(cpu_s, 0.0), peak_bytes=held, processes=tasks)
        if resident > self.suspicious_bytes or (len(pids) > 2 and resident > self.exact_bytes):
            # Forked processes share pages, so their sum is only an upper bound: count each page once. Near the limit do
            # it always (copies on write do not change the sum); else, for the report, only if the sum has grown.
            self.exact_bytes = max(resident, self.exact_bytes)
            held = sum(_proportional_bytes(pid, init) for pid in pids)
        disk = 0
        if self.home:
            with contextlib.suppress(OSError):  # out of descriptors, say: what was counted above still counts
                disk = disk_usage(self.home, self.disk_bytes)
        return Usage(cpu_s=max(cpu_s, 0.0), peak_bytes=held, processes=tasks, disk_bytes=disk)


def process_tree(init: int, most: int = sys.maxsize) -> list[int]:
    """Return `init` and all its descendants. Init adopts the orphans of its cell, so this is its whole tree.

    The walk stops after more than `most` processes.
    """
    found = [init]
    for pid in found:
        if len(found) > most:
            break
        with contextlib.suppress(OSError):
            for thread in (_PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    found += map(int, (thread / "children").read_text().split())
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, even if its first thread has ended."""
    for place in _memory_paths(pid):
        with contextlib.suppress(OSError, IndexError):
            if pages := int((place / "statm").read_text().split()[1]):
                return pages * _PAGE
    return 0


def _proportional_bytes(pid: int, init: int) -> int:
    """Return the memory of a process, counting its share of shared pages.

    An ordinary user may not read that for a process that has made itself unreadable (PR_SET_DUMPABLE): then all of its
    pages count. Init is unreadable too; it is ours and counts as 0.
    """
    for place in _memory_paths(pid):
        try:
            for line in (place / "smaps_rollup").read_bytes().splitlines():
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
        except PermissionError:
            return 0 if pid == init else resident_bytes(pid)
        except OSError:
            continue
    return 0


def _memory_paths(pid: int) -> Iterator[Path]:
    """Paths with a process's memory. The entry of the process itself is empty once its first thread has ended."""
    yield _PROC / str(pid)
    with contextlib.suppress(OSError):
        yield from (_PROC / str(pid) / "task").iterdir()


def pid_of(pidfd: int) -> int:
    """Return the process id of a pidfd in our own pid namespace; 0 if the process has ended."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return max(int(line.split()[1]), 0)
    return 0
