"""The init of one cell: builds the walls around a program, waits for it, kills what it left, brings back files.

Then it does the same for the next program of the same zygote, in a new private directory. What a program can leave in
its namespaces is processes (all reaped), files (unmounted), System V objects and sockets in flight (looked for; the
cell ends when there are any). Init itself never reads a payload: the next program, a copy of it, inherits nothing.

It is pid 1 of its pid namespace; on the Landlock rung a subreaper at the edge of a Landlock domain. Either way
`kill(-1)` reaches everything the program started, however it hid, and nothing else; and the program can neither
signal it nor look into it.
"""

# Plain calls and no path objects: a page touched after a fork is a page copied.
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

from services.cpu_manager.sandbox.inside import program, staying, wire
from services.cpu_manager.sandbox.inside.supervisor import Supervisor
from services.cpu_manager.sandbox.walls import landlock, syscalls
from services.cpu_manager.sandbox.walls.seccomp import Filter
from services.cpu_manager.sandbox.walls.view import DEVICES

_PROGRAMS: Final = 256
"""That one cell runs before it makes room for a new one."""

Harness = Callable[[str, bytes, Callable[[bytes], None]], None]


@dataclass(slots=True)
class Inheritance:
    """What a zygote prepared once for all its cells."""

    plan: wire.WallPlan
    filter: Filter
    harnesses: dict[str, Harness]
    ruleset: int = -1
    """The Landlock rule set of programs, or -1. A cell on that rung makes it."""
    resident: Callable[[int, int], None] | None = None
    """Serves a connected socket until its other end closes; a directory for its own files, or -1."""


def live(inheritance: Inheritance, slot: wire.SlotPlan, descriptors: list[int]) -> NoReturn:
    """Be a cell from fork to end. Whatever goes wrong before a program begins is told to the manager."""
    control = socket.socket(fileno=descriptors[0])
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a handler would be what lets a program's signal through
        for joining in descriptors[1:]:
            os.write(joining, b"0")
            os.close(joining)
        if inheritance.plan.namespaces:
            _leave_zygote()
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        wire.send(control, wire.READY, (os.pidfd_open(os.getpid()),))
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # its programs inherit it
        if not inheritance.plan.namespaces:
            inheritance.ruleset = _enclose(inheritance.plan, slot)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        if slot.stays:
            _furnish(inheritance.plan, slot)
            staying.live(inheritance, slot, control)
        _serve(inheritance, slot, control)
    except OSError as error:
        with contextlib.suppress(OSError):
            wire.send(control, wire.FAILED + str(error).encode())
    finally:
        os._exit(0)


def _leave_zygote() -> None:
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    # Root of a user namespace may set what belongs to its namespaces, and for an ordinary user programs are that root.
    syscalls.mount("/proc/sys", "/proc/sys", "", syscalls.MS_BIND)
    syscalls.seal_tree("/proc/sys")


def _enclose(plan: wire.WallPlan, slot: wire.SlotPlan) -> int:
    """The Landlock rung's walls stand around init too: its `kill(-1)` must reach its own domain and no further.

    Returns the rule set of its programs. Init itself reads /proc, to count their tasks.
    """
    program.give_up_rights(plan, slot)
    readable = [source for source, _ in plan.binds]
    devices = [f"/dev/{name}" for name in DEVICES]
    own = landlock.walls([*readable, "/proc"], devices, slot.home)
    programs = landlock.walls(readable, devices, slot.home)
    landlock.restrict(own)
    os.close(own)
    os.chdir(slot.home)
    return programs


def _furnish(plan: wire.WallPlan, slot: wire.SlotPlan) -> None:
    """An empty private directory: a new tmpfs, which ends with `_clear`."""
    options = f"size={slot.disk_bytes},nr_inodes=65536,mode=0700,uid={slot.uid},gid={slot.uid}"
    syscalls.mount("private", slot.home, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    for kept, place in plan.covered:
        os.makedirs(place, 0o755, exist_ok=True)  # noqa: PTH103  # the lean zygote has no pathlib
        syscalls.mount(kept, place, "", syscalls.MS_BIND | syscalls.MS_REC)
    os.chdir(slot.home)


def _clear(plan: wire.WallPlan, slot: wire.SlotPlan) -> bool:
    """Take the private directory away. Returns whether nothing of it is left."""
    if plan.namespaces:
        os.chdir("/")
        syscalls.umount(slot.home)
        return True
    with contextlib.suppress(OSError, RecursionError):
        os.chmod(slot.home, 0o700)
        _empty(slot.home)
        return not os.listdir(slot.home) and not os.listxattr(slot.home)  # noqa: PTH208
    return False


def _serve(inheritance: Inheritance, slot: wire.SlotPlan, control: socket.socket) -> None:
    """Run one program after another of the same zygote, until one leaves a trace that could reach the next."""
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        stops.append(number)
        _end_everything()

    if not inheritance.plan.namespaces:
        signal.signal(signal.SIGTERM, stop)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)  # a change of user would have cleared it
    traces = _Traces() if inheritance.plan.namespaces else None
    supervisor = Supervisor(slot.home) if inheritance.filter.supervised else None
    for left in range(_PROGRAMS - 1, -1, -1):
        if inheritance.plan.namespaces:
            _furnish(inheritance.plan, slot)
        errand = _oversee(inheritance, slot, control, stops, supervisor)
        if errand is None:
            return  # a spare that was never needed
        _fetch(errand, slot.home, control)
        cleared = _clear(inheritance.plan, slot)
        # A file that was fetched has passed through this process, of which the next program would be a copy.
        if not left or not cleared or stops or errand.fetch or (traces is not None and traces.any()):
            wire.send(control, wire.DONE)
            return
        wire.send(control, wire.AGAIN)


def _oversee(
    inheritance: Inheritance,
    slot: wire.SlotPlan,
    control: socket.socket,
    stops: list[int],
    supervisor: Supervisor | None,
) -> wire.Errand | None:
    """Fork the program's process, wait for its end, end all it started, and report. Returns what is to be fetched."""
    pid = os.fork()
    if pid == 0:
        program.run(inheritance, slot, control, supervisor)
    if stops:  # it came before there was anything to end
        _end_everything()
    status, tally = _wait_for(pid) if supervisor is None else _supervise(pid, supervisor)
    at = time.monotonic()
    _end_everything()
    with contextlib.suppress(ChildProcessError):
        while True:
            tally.add(os.wait3(0)[2])
    packet, _ = wire.receive(control, 0)
    if not packet:
        return None
    if stops:
        wire.send(control, wire.FAILED + b"stopped from outside")  # unless the manager knows why, it is lost
    wire.send(control, wire.EndedFrame(status, at, tally.cpu_s, tally.peak_bytes).pack())
    errand = wire.unpack(packet)
    assert isinstance(errand, wire.Errand)
    return errand


@dataclass(slots=True)
class _Tally:
    """What the processes of one program used, as far as anybody waited for them."""

    cpu_s: float = 0.0
    peak_bytes: int = 0

    def add(self, used: resource.struct_rusage) -> None:
        self.cpu_s += used.ru_utime + used.ru_stime
        self.peak_bytes = max(self.peak_bytes, used.ru_maxrss * 1024)


class _Traces:
    """What outlives the processes of a cell, by the kernel's own lists of its namespaces."""

    def __init__(self) -> None:
        names = ("sysvipc/shm", "sysvipc/sem", "sysvipc/msg")
        self._objects = [os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
        self._sockets = os.open("/proc/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)

    def any(self) -> bool:
        """System V objects, or sockets in flight in each other (with their names, and the memory they carry)."""
        if not os.pread(self._sockets, 64, 0).startswith(b"sockets: used 0\n"):
            return True
        return any(os.pread(listing, 4096, 0).count(b"\n") > 1 for listing in self._objects)  # after the heading


def _wait_for(pid: int) -> tuple[int, _Tally]:
    """Reap everything until the program itself ends. Returns its status as wait(2) gives it, and what was used."""
    tally = _Tally()
    while True:
        ended, status, used = os.wait3(0)
        tally.add(used)
        if ended == pid:
            return status, tally


def _supervise(pid: int, supervisor: Supervisor) -> tuple[int, _Tally]:
    """The same, answering the calls of the program meanwhile, in time that is the program's."""
    tally, statuses = _Tally(), list[int]()
    before = time.process_time()

    def reap() -> bool:
        while not statuses:
            ended, status, used = os.wait3(os.WNOHANG)
            if ended == 0:
                return False
            tally.add(used)
            if ended == pid:
                statuses.append(status)
        return True

    supervisor.follow()
    supervisor.wait(reap)
    tally.cpu_s += time.process_time() - before
    return statuses[0], tally


def _end_everything() -> None:
    """Kill every process of the cell but this one. One system call, so that no fork bomb outruns it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def _fetch(errand: wire.Errand, home: str, control: socket.socket) -> None:
    """Send the files asked for: regular ones, reached without leaving the private directory, within its size."""
    budget = errand.most_bytes
    directory = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in errand.fetch:
        with contextlib.suppress(OSError):
            # Not blocking: the program may have left a pipe under this name.
            descriptor = syscalls.open_beneath(directory, name, os.O_RDONLY | os.O_NONBLOCK)
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_size <= budget:
                budget -= found.st_size
                _send_file(control, name, descriptor, found.st_size)
            os.close(descriptor)


def _send_file(control: socket.socket, name: str, descriptor: int, size: int) -> None:
    # Nothing writes to it any more: every process of the cell is dead.
    wire.send(control, wire.pack_file(name, size))
    while size > 0:
        chunk = os.read(descriptor, min(size, wire.PACKET - 1))
        wire.send(control, wire.DATA + chunk)
        size -= len(chunk)


def _empty(home: str) -> None:
    """Remove everything in a private directory that outlives its cell; rights taken away are taken back."""
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
