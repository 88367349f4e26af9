"""Children of the manager: each owner waits for its own, and orphans that nobody owns are ended here.

The manager is the subreaper of its descendants. A zygote, whose parent ends at once, thereby becomes the manager's own
child: it is waited for here, and a supervisor above never sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from services.cpu_manager.sandbox.walls import syscalls

_LOOK_S: Final = 2.0


def become_subreaper() -> None:
    """Adopt every descendant of this process whose own parent dies, from now on."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)


class _Child(NamedTuple):
    pid: int
    session: int
    ended: bool
    """A zombie."""


class ChildProcesses:
    """The sessions in which the manager has started processes, which tell its own children from orphans.

    Whatever else the manager runs (`subprocess`, asyncio) stays in the manager's own session. A sandboxed program
    cannot enter that session: it left it before it began.
    """

    def __init__(self) -> None:
        self._leaders: dict[int, bool] = {}
        self._seen_ended: set[int] = set()

    def launched(self, leader: int, *, forks: bool) -> None:
        """A process leads a new session. `forks`: a child of its own replaces it, in the same session."""
        self._leaders[leader] = forks

    def gone(self, leader: int) -> None:
        """Nothing that its owner knows is left of that session. Safe to call again."""
        self._leaders.pop(leader, None)

    async def reap_orphans(self) -> None:
        """Kill and reap orphans for ever, a look every two seconds. Only a subreaper gets any."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.look()

    def look(self) -> list[int]:
        """Kill the orphans there are, and reap those that have ended. Returns the process ids. About 0.2 ms."""
        own, children = os.getsid(0), list(_children())
        # An orphan in the manager's own session looks like a child whose owner is about to wait for it: look twice.
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
    """Wait for a process that has ended. One that is not our child has another who waits for it."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def _children() -> Iterator[_Child]:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    # Bytes: the name may be no text. The program chooses it.
                    state, _, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
                    yield _Child(int(pid), int(session), state == b"Z")
