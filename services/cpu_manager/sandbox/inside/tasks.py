"""Number of tasks of one program, which init counts on the Landlock rung of an ordinary user.

The kernel counts tasks (processes and threads) by user, and the programs of an unprivileged manager share its user. So
init counts the tasks of its tree every 10 ms and ends a program above its limit. Costs about 15 us a task.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import contextlib
import os


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
