"""CPU time and memory of a process with all its descendants."""

from collections.abc import Iterable, Mapping

import psutil

SUPERVISOR = "treadle"
CLIENT = "client"
"""The bench itself, without its descendants, which are all other processes."""
SANDBOXES = "sandboxes"
"""Interpreters and programs in sandboxes."""
MANAGER = "cpu_manager"


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and its present descendants."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds of these processes and their ended children, user and system."""
    used = 0.0
    for process in processes:
        own, ended = _times(process)
        used += own + ended
    return used


def cpu_by_service(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds so far of each service with its descendants, to 0.01 s.

    The CPU manager and the supervisor count without their descendants. Descendants of the manager, and processes that
    the supervisor has adopted, are ``sandboxes``.
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
    """Return the CPU seconds of all processes of that name on this machine."""
    return cpu_s(process for process in psutil.process_iter(["name"]) if process.info["name"] == name)


def _times(process: psutil.Process) -> tuple[float, float]:
    """Return the CPU seconds of the process, and of its ended children."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0, 0.0
    return times.user + times.system, times.children_user + times.children_system


def used_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the CPU seconds of each service; one that restarted in between is left out."""
    return {name: after[name] - before[name] for name in before if after.get(name, -1.0) >= before[name]}


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and its descendants, with shared pages counted once (PSS).

    If the kernel denies access to a process's pages, its resident set counts, which is more.
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
