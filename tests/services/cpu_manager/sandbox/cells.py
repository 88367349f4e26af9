"""Shared parts of the tests of cells: a core to run on, and the check that nothing is left."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit

CORE = frozenset({min(os.sched_getaffinity(0))})
Attack = Callable[..., Awaitable[Exit]]


async def nothing_left(sandbox: LocalSandbox) -> None:
    """Wait (at most ten seconds) until the zygotes have no descendants but spares (an init and one process each)."""
    for _ in range(500):
        inits, waiting, others = processes_of(sandbox)
        if not others and max(len(inits), len(waiting)) <= sandbox.spares():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"left behind: {inits} {waiting} {others}")


def processes_of(sandbox: LocalSandbox) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    """Return inits of cells, their children, and other processes with a cell's user or ancestors, as on the host."""
    zygotes = set(sandbox.zygotes().values())
    walls = sandbox._walls
    users = range(walls.uid_base + 1000, walls.uid_base + walls.uid_count)
    found = {pid: seen for pid in pids() if (seen := describe(pid)) is not None}
    inits = {pid: text for pid, (parent, _, text) in found.items() if parent in zygotes}
    children = {pid: text for pid, (parent, _, text) in found.items() if parent in inits}
    others = {
        pid: text
        for pid, (parent, owner, text) in found.items()
        if pid not in inits and pid not in children and pid not in zygotes and (parent in children or owner in users)
    }
    return inits, children, others


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def describe(pid: int) -> tuple[int, int, str] | None:
    """Return parent, owner and a description of a process; None if it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        owner = Path(f"/proc/{pid}").stat().st_uid
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(parent), owner, f"{state} {owner} {command}"
