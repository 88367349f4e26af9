"""Children of the manager. Each owner waits for its own children; orphans without an owner are killed and reaped here.

The manager is the subreaper of its descendants. The parent of a zygote ends at once, so the zygote becomes a child of
the manager and is reaped here; a supervisor above never sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shared.walls import syscalls

_INTERVAL_S: Final = 2.0


def become_subreaper() -> None:
    """Adopt, from now on, every descendant of this process whose parent dies."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)


class _Child(NamedTuple):
    pid: int
    session: int
    ended: bool
    """A zombie."""


class ChildProcesses:
    """Sessions that the manager's processes lead. They distinguish its own children from orphans.

    Other child processes of the manager (`subprocess`, asyncio) stay in the manager's own session. A sandboxed program
    cannot join that session, because its process left it before the program began.
    """

    def __init__(self) -> None:
        self._leaders: dict[int, bool] = {}
        self._seen_ended: set[int] = set()

    def add_session(self, leader: int, *, forks: bool) -> None:
        """Record that a process leads a new session. `forks`: its child, in the same session, replaces it."""
        self._leaders[leader] = forks

    def remove_session(self, leader: int) -> None:
        """Remove a session whose processes have all been waited for. Safe to call again."""
        self._leaders.pop(leader, None)

    async def reap_orphans(self) -> None:
        """Kill and reap orphans forever, once every two seconds. Only a subreaper gets orphans."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.reap_once()

    def reap_once(self) -> list[int]:
        """Kill all orphans, and reap those that have ended. Return their process ids. Takes about 0.2 ms."""
        own, children = os.getsid(0), list(_children())
        # An orphan in the manager's own session looks like a child whose owner is about to wait for it: check twice.
        late = {child.pid for child in children if child.session == own and child.ended}
        orphans = [child for child in children if child.session != own and not self._owned(child)]
        for child in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        for pid in [child.pid for child in orphans] + sorted(late & self._seen_ended):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen_ended = late
        return [child.pid for child in orphans]

    def _owned(self, child: _Child) -> bool:
        return child.pid in self._leaders or self._leaders.get(child.session, False)


def reap(pidfd: int) -> None:
    """Reap a process that has ended. A process that is not our child is ignored; its own parent reaps it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def _children() -> Iterator[_Child]:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    # Read bytes: the program chooses its name, which may not be valid text.
                    state, _, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
                    yield _Child(int(pid), int(session), state == b"Z")
