"""Number of tasks of one program, by which init allows or refuses its forks on the Landlock rung.

The kernel counts tasks (processes and threads) by user, and the programs of an unprivileged manager share its user. So
the filter passes every fork and every new thread to init. Init counts the tasks of its tree, and answers EAGAIN at the
limit. No fork begins while init counts. The count can miss forks that were allowed a moment before. Each task is in at
most one fork, so a tree has fewer than twice as many tasks as its limit; the watchdog ends a program above the limit.

Costs about 20 us for a fork that needs no count, and 20 us a process for a count. A count is needed after as many
allowed forks as the last count had room for.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import errno
import os


class Forks:
    """Allows the forks of successive programs, each with its own limit."""

    def __init__(self) -> None:
        self._limit = 0
        self._room = 0

    def begin(self, limit: int) -> None:
        """Begin with a program that may have `limit` tasks. It has one already."""
        self._limit, self._room = limit, limit - 1

    def allow(self) -> None:
        """Allow one more task. Raises OSError (EAGAIN) at the limit."""
        if self._room <= 0:
            self._room = self._limit - tasks_below(os.getpid(), self._limit)
        if self._room <= 0:
            raise BlockingIOError(errno.EAGAIN, "processes")
        self._room -= 1


def tasks_below(init: int, enough: int) -> int:
    """Return the number of threads of all processes below `init`. The count stops at `enough`.

    Orphans become children of init during the count, so it reads its own children until it finds no new ones.
    """
    seen: set[int] = set()
    tasks = 0
    while new := [pid for pid in _children(init, init) if pid not in seen]:
        for pid in new:  # grows
            seen.add(pid)
            for thread in _threads(pid):
                tasks += 1
                new += [child for child in _children(pid, thread) if child not in seen]
            if tasks >= enough:
                return tasks
    return tasks


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _children(pid: int, thread: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
        return [int(number) for number in listing.read().split()]
    return []
