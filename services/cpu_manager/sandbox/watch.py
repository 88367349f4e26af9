"""What a running tree has used so far: from its control group, or by walking /proc where there is none."""

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

from services.cpu_manager.sandbox.walls.cgroups import Group
from services.cpu_manager.sandbox.weight import weigh

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")
_THREADS: Final = 64
"""A look at a fork bomb can take seconds; the looks at other programs must not wait for it."""
_GONE: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Usage:
    """A tree at one moment. `peak_bytes` covers its past where the kernel keeps it."""

    cpu_s: float = 0.0
    peak_bytes: int = 0
    processes: int = 0
    """With their threads, as the kernel counts them against RLIMIT_NPROC and the `pids` of a control group."""
    disk_bytes: int = 0
    out_of_memory: bool = False


class Watch(Protocol):
    """Looks at one cell."""

    exact: bool
    """The kernel itself holds memory and processes to their limits; only CPU time is watched."""

    def look(self, init: int, *, quick: bool = False) -> Usage:
        """Usage of the tree under process `init` (0 when it never was seen).

        `quick` leaves out what can wait for a program: its memory maps, which a fork locks, and its files.
        """
        ...


def look_aside(watch: Watch, init: int) -> asyncio.Future[Usage]:
    """A look in a thread, about 0.1 ms more.

    A memory map can be read only while its process does not fork. A process that forks and gets no core can hold it for
    seconds, while the event loop has other programs to serve.
    """
    return asyncio.get_running_loop().run_in_executor(_threads(), watch.look, init)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "watchdog")


@dataclass(slots=True)
class GroupWatch:
    """Counts kept by the kernel: a file or two per look."""

    group: Group
    exact: bool = True

    def look(self, init: int, *, quick: bool = False) -> Usage:  # noqa: ARG002  # the group knows its processes
        return Usage(
            cpu_s=self.group.cpu_s(),
            peak_bytes=self.group.peak_memory_bytes(),
            out_of_memory=self.group.out_of_memory(),
        )


@dataclass(slots=True)
class TreeWatch:
    """Sums over /proc, about 50 us a process. `home` is weighed where no tmpfs limits it."""

    suspicious_bytes: int
    """Below this cheap upper bound nobody asks for the exact share of each page."""
    home: str = ""
    disk_bytes: int = 0
    """Beyond this nobody weighs on."""
    pids: int = sys.maxsize
    """Beyond this nobody looks on: against a fork bomb the look itself must stay short."""
    spent_s: float = 0.0
    """CPU time of programs that init had reaped before this one."""
    weighed_bytes: int = 0
    """The largest sum for which the exact share has been asked."""
    exact: bool = False

    def look(self, init: int, *, quick: bool = False) -> Usage:
        pids = tree_of(init, self.pids + 1) if init else []
        if len(pids) - 1 > self.pids:
            return Usage(processes=len(pids) - 1)
        cpu_s, resident, held, tasks = -self.spent_s, 0, 0, 0
        for pid in pids:
            with contextlib.suppress(*_GONE):  # whatever else fails must not make a process weigh nothing
                # Bytes: the name may be no text. The program chooses it.
                fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
                # Own user and system time, and that of the dead it waited for; init's own is not the program's.
                cpu_s += sum(map(int, fields[13:15] if pid == init else fields[11:15])) * _TICK_S
                tasks += max(int(fields[17]), 1) if pid != init else 0
                own = int(fields[21]) * _PAGE if fields[0] != b"Z" else resident_bytes(pid)
                resident, held = resident + own, max(held, own)
        if quick:
            return Usage(cpu_s=max(cpu_s, 0.0), peak_bytes=held, processes=tasks)
        if resident > self.suspicious_bytes or (len(pids) > 2 and resident > self.weighed_bytes):
            # Forked processes share pages, so their sum is only a bound: count each page once. Near the limit always
            # (copies on write do not change the sum), else, for the report, when the sum has grown.
            self.weighed_bytes = max(resident, self.weighed_bytes)
            held = sum(_proportional(pid, init) for pid in pids)
        disk = weigh(self.home, self.disk_bytes) if self.home else 0
        return Usage(cpu_s=max(cpu_s, 0.0), peak_bytes=held, processes=tasks, disk_bytes=disk)


def tree_of(init: int, most: int = sys.maxsize) -> list[int]:
    """`init` and everything below it. Orphans of a cell are adopted by its init, so this is its whole tree.

    The walk ends once it has found more than `most`.
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
    """Memory of a process, whichever of its threads are left."""
    for place in _places(pid):
        with contextlib.suppress(OSError, IndexError):
            if pages := int((place / "statm").read_text().split()[1]):
                return pages * _PAGE
    return 0


def _proportional(pid: int, init: int) -> int:
    """Memory of a process, of shared pages its share.

    An ordinary user may not ask for that where a process has made itself unreadable (PR_SET_DUMPABLE): it weighs all
    of its pages. So has init, which is ours and weighs nothing.
    """
    for place in _places(pid):
        try:
            for line in (place / "smaps_rollup").read_bytes().splitlines():
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
        except PermissionError:
            return 0 if pid == init else resident_bytes(pid)
        except OSError:
            continue
    return 0


def _places(pid: int) -> Iterator[Path]:
    """Where /proc tells of a process's memory: nothing at the process itself once its first thread has ended."""
    yield _PROC / str(pid)
    with contextlib.suppress(OSError):
        yield from (_PROC / str(pid) / "task").iterdir()


def process_of(pidfd: int) -> int:
    """The process behind a pidfd, in our own pid namespace; 0 when it is gone."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return max(int(line.split()[1]), 0)
    return 0
