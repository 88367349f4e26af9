"""What the tests of cells share: a core to run on, and the demand that nothing is left behind."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit

CORE = frozenset({min(os.sched_getaffinity(0))})
Attack = Callable[..., Awaitable[Exit]]


async def nothing_left(sandbox: LocalSandbox) -> None:
    """Wait (at most ten seconds) until the zygotes have no descendants but spares: an init and one that waits each."""
    for _ in range(500):
        inits, waiting, others = processes_of(sandbox)
        if not others and max(len(inits), len(waiting)) <= sandbox.spares():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"left behind: {inits} {waiting} {others}")


def processes_of(sandbox: LocalSandbox) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    """As the host sees them: inits of cells, their children, and everything else with a cell's ids or ancestors."""
    zygotes = set(sandbox.zygotes().values())
    walls = sandbox._walls
    users = range(walls.uid_base + 1000, walls.uid_base + walls.uid_count)
    inits: dict[int, str] = {}
    children: dict[int, str] = {}
    others: dict[int, str] = {}
    for pid in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            owner = Path(f"/proc/{pid}").stat().st_uid
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        said = f"{state} {owner} {command}"
        if int(parent) in zygotes:
            inits[pid] = said
        elif int(parent) in inits:
            children[pid] = said
        elif int(parent) in children or int(parent) in others or (owner in users and pid not in zygotes):
            others[pid] = said
    return inits, children, others
