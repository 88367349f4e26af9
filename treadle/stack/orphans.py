"""Orphans: processes that services left behind, and that became children of the supervisor.

Every process of a stack carries the name of its service in its environment (``TREADLE_UNIT``). An orphan of a service
that has died is ended; a daemon of a living one is left alone until the stack stops. A service whose children drop the
name, as the zygotes of the CPU manager do, is its own subreaper, so that they get here only after its death.
"""

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from shared.runtime.identity import Identity, identify
from treadle.stack.process import UNIT

DEAD_GRACE_S = 1.0
"""What a dead service left may end by itself. The zygotes of a dead CPU manager thaw and end their environments."""


class Orphans:
    """The children of this process that it has not started. Blocking calls of about a millisecond."""

    def __init__(self) -> None:
        self._condemned: dict[Identity, float] = {}
        """And when each is killed, on the monotonic clock."""

    def settle(self, living: Mapping[str, int], dead: Collection[str]) -> float | None:
        """Reap orphans that have ended, and condemn those of the dead. Call after each SIGCHLD.

        A death shows its orphans at once: the kernel hands children on before it reports the end of their parent. What
        an orphan leaves follows it. A daemon of a living service that has both dropped the name and left the session is
        taken for an orphan when another service dies.

        Args:
            living: name and process of each service, with all else that this process has started.
            dead: names of the services whose process has ended since the last call.
        Returns:
            Seconds until `kill_due` has something to do; None: never.
        """
        orphans = {orphan for pid in _children(living.values()) if (orphan := _reaped_or_alive(pid)) is not None}
        inherited = [self._condemned.pop(gone) for gone in set(self._condemned) - orphans]
        now = time.monotonic()
        for orphan in orphans - self._condemned.keys():
            unit = _unit(orphan.pid)
            nobodys = unit is None and _session(orphan.pid) not in living.values()
            if unit in dead or (nobodys and (dead or inherited)):
                self._condemned[orphan] = max(inherited, default=now + DEAD_GRACE_S)
        return max(0.0, min(self._condemned.values()) - now) if self._condemned else None

    def kill_due(self) -> None:
        """Kill the condemned whose grace is over."""
        now = time.monotonic()
        for orphan, due in self._condemned.items():
            if due <= now and orphan.alive():
                with suppress(ProcessLookupError):
                    os.kill(orphan.pid, signal.SIGKILL)

    def kill_all(self, ours: Collection[int]) -> bool:
        """Kill and reap every child that is not `ours`. Returns whether there was any."""
        found = _children(ours)
        for pid in found:
            if _reaped_or_alive(pid) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return bool(found)


def _children(ours: Collection[int]) -> list[int]:
    return [child.pid for child in psutil.Process().children() if child.pid not in ours]


def _reaped_or_alive(pid: int) -> Identity | None:
    """The process while it runs; None once it has ended, and then it is reaped."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return identify(pid)


def _unit(pid: int) -> str | None:
    """The service by whose name a process was started; None where it carries none."""
    mark = f"{UNIT}=".encode()
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
