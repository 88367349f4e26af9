"""Cleanup after killed processes of a stack: kills the processes and removes the containers that they left."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from shared.runtime.identity import Identity, identify
from shared.runtime.kept_processes import kept_processes
from shared.runtime.stack_state import StackState
from treadle.mesh import mesh_command

SETTLE_S = 10.0
REMOVER: Final = "services.cpu_manager.environments.docker.cleanup"
"""Runs as a program, not an import, because the stack only has the names of services."""
REMOVER_LIMIT_S: Final = 60.0


def sweep(state: StackState, root: Path) -> list[int]:
    """Kill every process of the services in ``state`` that still runs, and those kept in ``root``. Return the pids.

    The kernel has signalled most of them already (``Launch.death_signal``). A recorded pid is trusted only with its
    start time. Its descendants are killed too (PostgreSQL's lead sessions of their own), and its session: each service
    leads one, and the kernel does not reuse a session's number while a member runs.
    Returns when they have ended; after 10 s at most.
    """
    recorded = [*(service.identity for service in state.services), *kept_processes(root)]
    left = {found for leader in recorded if leader is not None for found in _session(leader)}
    for process in left:
        if process.alive():
            os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + SETTLE_S
    while any(process.alive() for process in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(process.pid for process in left)


def remove_containers(root: Path) -> bool:
    """Remove the containers recorded in ``run/``. Return whether there was any record. Without one it is quick.

    A manager that ended in good order has removed its containers and its record. Call it when no service runs.
    """
    records = sorted((root / "run").glob("containers-*.json"))
    for record in records:
        # It logs what it cannot remove; then the record stays for the next time.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(mesh_command(REMOVER, str(record)), timeout=REMOVER_LIMIT_S, check=False)
    return bool(records)


def _session(leader: Identity) -> Iterator[Identity]:
    if leader.alive():
        yield leader
        yield from _descendants(leader)
    elif identify(leader.pid) is not None:
        return  # the pid belongs to another process now, so the session has ended
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (member := _member(int(entry.name), leader)):
            yield member


def _descendants(leader: Identity) -> Iterator[Identity]:
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(leader.pid).children(recursive=True):
            if (found := identify(child.pid)) is not None:
                yield found


def _member(pid: int, leader: Identity) -> Identity | None:
    try:
        inside = os.getsid(pid) == leader.pid
    except (ProcessLookupError, PermissionError):
        return None
    found = identify(pid) if inside else None
    return found if found is not None and found.started >= leader.started else None
