"""The init of one cell: builds the walls around a program, waits for it, kills its processes, sends its files back.

Then it does the same for the next program of the same zygote, in a new private directory. A program can leave in its
namespaces processes (all are reaped), files (unmounted), System V objects and sockets in flight (init checks for them,
and the cell ends if there are any). Init itself never reads a payload, so the next program, a copy of init, inherits
nothing.

Init is pid 1 of its pid namespace; on the Landlock rung it is a subreaper inside a Landlock domain. In both cases
`kill(-1)` reaches every process that the program started, however hidden, and no other process. The program can neither
signal init nor read its memory.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH101, PTH106, PTH108, PTH114

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from services.cpu_manager.sandbox.inside import permanent, program, wire
from services.cpu_manager.sandbox.inside.supervisor import SeccompSupervisor
from services.cpu_manager.sandbox.walls import landlock
from shared.walls import syscalls
from shared.walls.seccomp import Filter
from shared.walls.view import DEVICES

_PROGRAMS: Final = 256
"""Programs that one cell runs before a new cell replaces it."""

Harness = Callable[[str, bytes, Callable[[bytes], None]], None]


@dataclass(slots=True)
class ZygoteContext:
    """State that a zygote prepares once for all its cells."""

    plan: wire.WallPlan
    filter: Filter
    harnesses: dict[str, Harness]
    loopback_filter: Filter | None = None
    """Filter of an environment with a listener at its loopback address; None in zygotes without environments."""
    ruleset: int = -1
    """Descriptor of the programs' Landlock rule set, or -1. A cell on that rung creates it."""
    agent: Callable[[int, int], None] | None = None
    """Serves a connected socket until its other end closes. Arguments: the socket, and a directory for its own files
    (or -1)."""


def run(context: ZygoteContext, slot: wire.SlotPlan, descriptors: list[int]) -> NoReturn:
    """Run a cell from fork to end. Failures before a program begins are reported to the manager."""
    control = socket.socket(fileno=descriptors[0])
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pid 1 receives a program's signal only if it has a handler
        for joining in descriptors[1:]:
            os.write(joining, b"0")
            os.close(joining)
        if context.plan.namespaces:
            _leave_zygote()
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        wire.send(control, wire.READY, (os.pidfd_open(os.getpid()),))
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # its programs inherit it
        if not context.plan.namespaces:
            context.ruleset = _restrict_init(context.plan, slot)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        if slot.permanent:
            _mount_home(context.plan, slot)
            permanent.run_agent(context, slot, control)
        _serve(context, slot, control)
    except OSError as error:
        with contextlib.suppress(OSError):
            wire.send(control, wire.FAILED + str(error).encode())
    finally:
        os._exit(0)


def _leave_zygote() -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    # Root of a user namespace may change its namespaces' settings, and an ordinary user's programs are that root.
    syscalls.mount("/proc/sys", "/proc/sys", "", syscalls.MS_BIND)
    syscalls.seal_tree("/proc/sys")


def _restrict_init(plan: wire.WallPlan, slot: wire.SlotPlan) -> int:
    """Put init behind the Landlock rung's walls too, so that its `kill(-1)` reaches only its own domain.

    Returns the rule set of its programs. Init itself reads /proc, to count their tasks.
    """
    program.drop_privileges(plan, slot)
    readable = [source for source, _ in plan.binds]
    devices = [f"/dev/{name}" for name in DEVICES]
    own = landlock.create_ruleset([*readable, "/proc"], devices, slot.home)
    programs = landlock.create_ruleset(readable, devices, slot.home)
    landlock.restrict(own)
    os.close(own)
    os.chdir(slot.home)
    return programs


def _mount_home(plan: wire.WallPlan, slot: wire.SlotPlan) -> None:
    """Mount an empty private directory: a new tmpfs, which `_remove_home` removes."""
    options = f"size={slot.disk_bytes},nr_inodes=65536,mode=0700,uid={slot.uid},gid={slot.uid}"
    syscalls.mount("private", slot.home, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    for kept, place in plan.covered:
        os.makedirs(place, 0o755, exist_ok=True)  # noqa: PTH103  # the lean zygote has no pathlib
        syscalls.mount(kept, place, "", syscalls.MS_BIND | syscalls.MS_REC)
    os.chdir(slot.home)


def _remove_home(plan: wire.WallPlan, slot: wire.SlotPlan) -> bool:
    """Remove the private directory. Return True if nothing of it is left."""
    if plan.namespaces:
        os.chdir("/")
        syscalls.umount(slot.home)
        return True
    with contextlib.suppress(OSError, RecursionError):
        os.chmod(slot.home, 0o700)
        _empty(slot.home)
        return not os.listdir(slot.home) and not os.listxattr(slot.home)  # noqa: PTH208
    return False


def _serve(context: ZygoteContext, slot: wire.SlotPlan, control: socket.socket) -> None:
    """Run one program after another of the same zygote, until one leaves something that could reach the next."""
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        stops.append(number)
        _kill_all()

    if not context.plan.namespaces:
        signal.signal(signal.SIGTERM, stop)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)  # set now: a change of user clears it
    cleanup_check = _CleanupCheck() if context.plan.namespaces else None
    supervisor = SeccompSupervisor(slot.home) if context.filter.supervised else None
    for left in range(_PROGRAMS - 1, -1, -1):
        if context.plan.namespaces:
            _mount_home(context.plan, slot)
        fetch_request = _run_program(context, slot, control, stops, supervisor)
        if fetch_request is None:
            return  # the spare was never needed
        _fetch(fetch_request, slot.home, control)
        cleared = _remove_home(context.plan, slot)
        # A fetched file has passed through this process, and the next program would be a copy of this process.
        reusable = left and cleared and not stops and not fetch_request.fetch
        if not reusable or (cleanup_check is not None and cleanup_check.finds_objects()):
            wire.send(control, wire.DONE)
            return
        wire.send(control, wire.REUSABLE)


def _run_program(
    context: ZygoteContext,
    slot: wire.SlotPlan,
    control: socket.socket,
    stops: list[int],
    supervisor: SeccompSupervisor | None,
) -> wire.FetchRequest | None:
    """Fork the program's process, wait for its end, kill its processes, and report. Return what is to be fetched."""
    pid = os.fork()
    if pid == 0:
        program.run(context, slot, control, supervisor)
    if stops:  # the signal came before the fork
        _kill_all()
    status, usage = _wait_for(pid) if supervisor is None else _supervise(pid, supervisor)
    excess_tasks = 0 if supervisor is None else supervisor.excess_tasks
    at = time.monotonic()
    _kill_all()
    with contextlib.suppress(ChildProcessError):
        while True:
            usage.add(os.wait3(0)[2])
    packet, _ = wire.receive(control, 0)
    if not packet:
        return None
    if stops:
        wire.send(control, wire.FAILED + b"stopped from outside")  # lost, unless the manager has another cause
    wire.send(
        control, wire.EndedFrame(status, at, usage.cpu_s, usage.peak_bytes, excess_tasks, usage.init_cpu_s).pack()
    )
    fetch_request = wire.unpack(packet)
    assert isinstance(fetch_request, wire.FetchRequest)
    return fetch_request


@dataclass(slots=True)
class _ProgramUsage:
    """Resources used by the processes of one program that have been waited for."""

    cpu_s: float = 0.0
    peak_bytes: int = 0
    init_cpu_s: float = 0.0

    def add(self, used: resource.struct_rusage) -> None:
        self.cpu_s += used.ru_utime + used.ru_stime
        self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)


class _CleanupCheck:
    """Checks, by the kernel's lists of the cell's namespaces, for objects that outlive the cell's processes."""

    def __init__(self) -> None:
        names = ("sysvipc/shm", "sysvipc/sem", "sysvipc/msg")
        self._objects = [os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        self._sockets = os.open("/proc/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)

    def finds_objects(self) -> bool:
        """Return True if there are System V objects, or sockets in flight (they keep their names and memory)."""
        if not os.pread(self._sockets, 64, 0).startswith(b"sockets: used 0\n"):
            return True
        return any(os.pread(listing, 4096, 0).count(b"\n") > 1 for listing in self._objects)  # the first is a heading


def _wait_for(pid: int) -> tuple[int, _ProgramUsage]:
    """Reap processes until the program itself ends. Return its status (as wait(2) gives it) and the usage."""
    usage = _ProgramUsage()
    while True:
        ended, status, used = os.wait3(0)
        usage.add(used)
        if ended == pid:
            return status, usage


def _supervise(pid: int, supervisor: SeccompSupervisor) -> tuple[int, _ProgramUsage]:
    """Do the same, answer the program's supervised calls and count its tasks."""
    usage, statuses = _ProgramUsage(), list[int]()
    before = time.process_time()

    def reap() -> bool:
        while not statuses:
            ended, status, used = os.wait3(os.WNOHANG)
            if ended == 0:
                return False
            usage.add(used)
            if ended == pid:
                statuses.append(status)
        return True

    supervisor.start()
    supervisor.wait(reap, _kill_all)
    usage.init_cpu_s = max(0.0, time.process_time() - before - supervisor.counting_s)
    return statuses[0], usage


def _kill_all() -> None:
    """Kill every other process of the cell. It is one system call, so no fork bomb can outrun it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _fetch(fetch_request: wire.FetchRequest, home: str, control: socket.socket) -> None:
    """Send the requested files: only regular ones inside the private directory, within its size."""
    budget = fetch_request.most_bytes
    directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in fetch_request.fetch:
        with contextlib.suppress(OSError):
            # Non-blocking, because the program may have left a pipe under this name.
            descriptor = syscalls.open_beneath(directory, name, os.O_RDONLY | os.O_NONBLOCK)
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_size <= budget:
                budget -= found.st_size
                _send_file(control, name, descriptor, found.st_size)
            os.close(descriptor)


def _send_file(control: socket.socket, name: str, descriptor: int, size: int) -> None:
    # Nothing can write to the file any more: all other processes of the cell are dead.
    wire.send(control, wire.pack_file(name, size))
    while size > 0:
        chunk = os.read(descriptor, min(size, wire.PACKET - 1))
        wire.send(control, wire.DATA + chunk)
        size -= len(chunk)


def _empty(home: str) -> None:
    """Empty a private directory that outlives its cell. Restores permissions that a program has removed."""
    for place, directories, files in os.walk(home, topdown=True):
        for name in directories:
            path = f"{place}/{name}"
            with contextlib.suppress(OSError):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(f"{place}/{name}")
    for place, directories, _ in os.walk(home, topdown=False):
        for name in directories:
            path = f"{place}/{name}"
            with contextlib.suppress(OSError):
                os.unlink(path) if os.path.islink(path) else os.rmdir(path)
