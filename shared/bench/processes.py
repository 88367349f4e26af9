"""What processes use: CPU time and memory of a process with all its descendants."""

from collections.abc import Iterable, Mapping

import psutil


def tree(pid: int) -> list[psutil.Process]:
    """The process and every descendant that lives now."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds used by these processes and by their children that have ended, user and system."""
    used = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


def cpu_by_service(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far of each service with its descendants; of the supervisor ``treadle`` without them."""
    return {name: cpu_s(tree(pid)[: 1 if name == "treadle" else None]) for name, pid in pids.items()}


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds each service used; a service that was restarted in between is left out."""
    return {name: after[name] - before[name] for name in before if after.get(name, -1.0) >= before[name]}


def memory_bytes(pid: int) -> int:
    """Memory of a process and its descendants, each shared page counted once in all (PSS).

    Where the kernel hides a process's pages from us its resident set is taken, which is more.
    """
    total = 0
    for process in tree(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.AccessDenied:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
