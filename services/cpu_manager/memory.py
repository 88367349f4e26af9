"""How much memory a node lends to environments: what it may use at all, less what everything else here needs."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
RESERVE_MB = 1024
"""For the machine, the manager with its interpreters (74 MB), and a stack's other services where they run here too
(390 MB all together, docs/operations.md)."""
RESERVE_A_CORE_MB = 128
"""For the one program outside of environments that each core may run: verdicts take 20 to 60 MB each."""


def lendable_mb(set_mb: int, cores: int, root: Path = Path("/")) -> int:
    """Megabytes for environments: as set, else of what this process may use; never less than half of that."""
    if set_mb:
        return set_mb
    usable = usable_bytes(root) // MIB
    return max(usable - RESERVE_MB - RESERVE_A_CORE_MB * cores, usable // 2)


def usable_bytes(root: Path = Path("/")) -> int:
    """The machine's memory, or the tightest limit of a control group above this process where that is less."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return min([int(line.split()[1]) * 1024, *_limits(root)])
    raise OSError(f"{root / 'proc/meminfo'} does not say how much memory there is")


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
        # In a container the path may be the host's, which is not visible here; the mount itself is then our group.
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
