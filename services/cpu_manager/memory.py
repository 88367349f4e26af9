"""Memory that a node can lend to environments: what it may use, minus what everything else on the node needs."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
RESERVE_MB = 1024
"""For the machine, the manager with its interpreters (74 MB), and the other services of a stack if they run on this
host too (390 MB for all of them, docs/operations.md)."""
RESERVE_A_CORE_MB = 128
"""For the one program outside environments that each core may run: grading takes 20 to 60 MB each."""


def lendable_mb(set_mb: int, cores: int, root: Path = Path("/")) -> int:
    """Return megabytes for environments: the setting, or usable memory less the reserves, but at least half of it."""
    if set_mb:
        return set_mb
    usable = usable_bytes(root) // MIB
    return max(usable - RESERVE_MB - RESERVE_A_CORE_MB * cores, usable // 2)


def usable_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory, or the smallest memory limit of a control group above this process if it is less."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return min([int(line.split()[1]) * 1024, *_limits(root)])
    raise OSError(f"{root / 'proc/meminfo'} has no line MemTotal")


def _limits(root: Path) -> list[int]:
    limits: list[int] = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        elif not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        else:
            continue
        own = base / path.lstrip("/")
        # In a container the path may be the host's, which is not visible here. The mount itself is then our group.
        for group in (own, *own.parents):
            if group.is_relative_to(base):
                limits += _limit(group / name)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []
