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
    """Wait (at most five seconds) until the zygotes have no descendants and no process of a slot's user is left."""
    for _ in range(500):
        left = processes_of(sandbox)
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"left behind: {left}")


def slot_users(sandbox: LocalSandbox) -> range:
    """The user ids that only this sandbox's programs have; empty for an ordinary user's."""
    walls = sandbox._walls
    return range(walls.uid_base + 1000, walls.uid_base + walls.uid_count)


def processes_of(sandbox: LocalSandbox) -> dict[int, str]:
    """Every process that runs with the files, ids or parents of a cell, as the host sees it; zygotes excepted."""
    zygotes = set(sandbox.zygotes().values())
    family = set(zygotes)
    users = slot_users(sandbox)
    found: dict[int, str] = {}
    for pid in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            owner = Path(f"/proc/{pid}").stat().st_uid
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) in family or owner in users:
            family.add(pid)
            found[pid] = f"{fields[0]} {owner} {command}"
    return {pid: text for pid, text in found.items() if pid not in zygotes}
