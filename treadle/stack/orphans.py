"""Orphans: processes that services left behind and that became children of the supervisor.

Every process of a stack has its service's name in its environment (``TREADLE_SERVICE``). When a service has ended, its
orphans are ended. A daemon of a running service stays until the stack stops. Some services have children without the
name, such as the zygotes of the CPU manager. Such a service is its own subreaper, so these get here only after its end.
Guards of engines stay for the next process of their service, until the stack stops. Each has `KEEP_VARIABLE` and a
record in the home: any program can set a variable (tests/treadle/stack/test_orphans.py).
"""

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from shared.runtime.identity import Identity, identify
from shared.runtime.kept_processes import KEEP_VARIABLE, kept_processes
from treadle.stack.process import SERVICE_VARIABLE

ORPHAN_GRACE_S = 1.0
"""Time for the processes of an ended service to end. The zygotes of a dead CPU manager thaw and end environments."""


class Orphans:
    """Children of this process that it has not started. Blocking calls of about a millisecond."""

    def __init__(self, home: Path) -> None:
        """`home`: directory of the stack, with the records of kept processes."""
        self._home = home
        self._kill_times: dict[Identity, float] = {}
        """Orphans to kill -> when, on the monotonic clock."""

    def reap(self, running: Mapping[str, int], ended: Collection[str]) -> float | None:
        """Reap ended orphans, and schedule the end of those whose service has ended. Call after each SIGCHLD.

        An end shows its orphans at once, because the kernel moves children before it reports their parent's end. What
        an orphan leaves is ended with it. A daemon of a running service that has dropped the name and left the session
        is treated as an orphan when another service ends.

        Args:
            running: name and process of each service, with all else that this process has started.
            ended: names of the services whose process has ended since the last call.
        Returns:
            Seconds until `kill_due` has work; None: never.
        """
        orphans = {orphan for pid in _children(running.values()) if (orphan := _reaped_or_alive(pid)) is not None}
        inherited = [self._kill_times.pop(gone) for gone in set(self._kill_times) - orphans]
        now = time.monotonic()
        kept = self._kept(orphans)
        for orphan in orphans - self._kill_times.keys() - kept:
            service = _service_of(orphan.pid)
            unclaimed = service is None and _session(orphan.pid) not in running.values()
            if service in ended or (unclaimed and (ended or inherited)):
                self._kill_times[orphan] = max(inherited, default=now + ORPHAN_GRACE_S)
        return max(0.0, min(self._kill_times.values()) - now) if self._kill_times else None

    def _kept(self, orphans: set[Identity]) -> set[Identity]:
        """Return those that stay. The records are read only if an orphan has the variable."""
        marked = {orphan for orphan in orphans if _variable(orphan.pid, KEEP_VARIABLE) is not None}
        return marked & set(kept_processes(self._home)) if marked else marked

    def kill_due(self) -> None:
        """Kill the scheduled orphans whose grace is over."""
        now = time.monotonic()
        for orphan, due in self._kill_times.items():
            if due <= now and orphan.alive():
                with suppress(ProcessLookupError):
                    os.kill(orphan.pid, signal.SIGKILL)

    def kill_all(self, ours: Collection[int]) -> bool:
        """Kill and reap every child that is not in `ours`. Return whether there was any."""
        found = _children(ours)
        for pid in found:
            if _reaped_or_alive(pid) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return bool(found)


def _children(ours: Collection[int]) -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.pid not in ours]


def _reaped_or_alive(pid: int) -> Identity | None:
    """Return the process while it runs. Once it has ended, reap it and return None."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return identify(pid)


def _service_of(pid: int) -> str | None:
    """Return the service of a process, by its environment; None if there is no name."""
    return _variable(pid, SERVICE_VARIABLE)


def _variable(pid: int, name: str) -> str | None:
    mark = f"{name}=".encode()
    with suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(mark):
                return variable.removeprefix(mark).decode(errors="replace")
    return None


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0
