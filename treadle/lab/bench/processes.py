"""What processes use: CPU time and memory of a process with all its descendants."""

from collections.abc import Iterable, Mapping

import psutil

SUPERVISOR = "treadle"
CLIENT = "client"
"""The bench itself. It has started everything else, so like the supervisor it stands for itself alone."""
SANDBOXES = "sandboxes"
"""Interpreters and programs in sandboxes."""
MANAGER = "cpu_manager"


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
        own, ended = _times(process)
        used += own + ended
    return used


def cpu_by_service(pids: Mapping[str, int]) -> dict[str, float]:
    """CPU seconds so far of each service with its descendants; to 0.01 s each.

    The CPU manager stands for itself alone; its descendants are ``sandboxes``. So does the supervisor, and so are the
    processes that it has adopted.
    """
    services = {name: tree(pid) for name, pid in pids.items() if name not in (SUPERVISOR, CLIENT)}
    used = {name: cpu_s(processes) for name, processes in services.items()}
    if processes := services.get(MANAGER):
        with_sandboxes = used[MANAGER]
        used[MANAGER], _ = _times(processes[0])
        used[SANDBOXES] = with_sandboxes - used[MANAGER]
    if CLIENT in pids:
        used[CLIENT], _ = _times(psutil.Process(pids[CLIENT]))
    if SUPERVISOR in pids and (everyone := tree(pids[SUPERVISOR])):
        known = {process.pid for processes in services.values() for process in processes}
        own, ended = _times(everyone[0])
        used[SUPERVISOR] = own
        adopted = cpu_s(process for process in everyone[1:] if process.pid not in known)
        used[SANDBOXES] = used.get(SANDBOXES, 0.0) + ended + adopted
    return used


def cpu_named(name: str) -> float:
    """CPU seconds of every process of that name on this machine."""
    return cpu_s(process for process in psutil.process_iter(["name"]) if process.info["name"] == name)


def _times(process: psutil.Process) -> tuple[float, float]:
    """CPU seconds of the process itself, and of its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0, 0.0
    return times.user + times.system, times.children_user + times.children_system


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """CPU seconds each service used; one that was restarted in between is left out, since its count began anew."""
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
