"""The init of one cell: builds the walls around one program, waits for it, kills what it left, brings back files.

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
from typing import NoReturn

from services.cpu_manager.sandbox.inside import program, wire
from services.cpu_manager.sandbox.walls import landlock, syscalls
from services.cpu_manager.sandbox.walls.seccomp import Filter
from services.cpu_manager.sandbox.walls.view import DEVICES

Harness = Callable[[str, bytes, Callable[[bytes], None]], None]


@dataclass(slots=True)
class Inheritance:
    """What a zygote prepared once for all its cells."""

    plan: wire.WallPlan
    filter: Filter
    harnesses: dict[str, Harness]
    scopes: int = -1
    """A Landlock rule set that only scopes, or -1."""


def live(inheritance: Inheritance, slot: wire.SlotPlan, descriptors: list[int]) -> NoReturn:
    """Be a cell from fork to end. Whatever goes wrong before the program begins is told to the manager."""
    control = socket.socket(fileno=descriptors[0])
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for joining in descriptors[1:]:
            os.write(joining, b"0")
            os.close(joining)
        if inheritance.plan.namespaces:
            _leave_zygote(inheritance.plan)
        else:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        wire.send(control, wire.READY, (os.pidfd_open(os.getpid()),))
        _build(inheritance, slot)
        _oversee(inheritance, slot, control)
    except OSError as error:
        with contextlib.suppress(OSError):
            wire.send(control, wire.FAILED + str(error).encode())
    finally:
        os._exit(0)


def _leave_zygote(plan: wire.WallPlan) -> None:
    flags = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    if not plan.landlock_scopes:
        flags |= syscalls.CLONE_NEWNET
    syscalls.unshare(flags)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def _build(inheritance: Inheritance, slot: wire.SlotPlan) -> None:
    """The walls that need rights, then the giving up of all rights."""
    plan = inheritance.plan
    if plan.namespaces:
        options = f"size={slot.disk_bytes},nr_inodes=65536,mode=0700,uid={slot.uid},gid={slot.uid}"
        syscalls.mount("private", slot.home, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
        for kept, place in plan.covered:
            os.makedirs(place, 0o755, exist_ok=True)  # noqa: PTH103  # the lean zygote has no pathlib
            syscalls.mount(kept, place, "", syscalls.MS_BIND | syscalls.MS_REC)
    os.chdir(slot.home)
    if plan.privileged:
        os.setresgid(slot.uid, slot.uid, slot.uid)
        os.setresuid(slot.uid, slot.uid, slot.uid)
    elif plan.namespaces:
        # Ids stay unmapped: the program is nobody, and processes are counted for this namespace alone.
        syscalls.unshare(syscalls.CLONE_NEWUSER)
    syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if not plan.namespaces:
        devices = [f"/dev/{name}" for name in DEVICES]
        ruleset = landlock.walls([source for source, _ in plan.binds], devices, slot.home)
        landlock.restrict(ruleset)
        os.close(ruleset)


def _oversee(inheritance: Inheritance, slot: wire.SlotPlan, control: socket.socket) -> None:
    """Fork the program's process, wait for its end, end all it started, and report."""
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        stops.append(number)
        _end_everything()

    signal.signal(signal.SIGTERM, stop)
    if not inheritance.plan.namespaces:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGTERM)  # a change of user would have cleared it
    pid = os.fork()
    if pid == 0:
        program.run(inheritance, slot, control)
    inheritance.filter.install()
    status = _wait_for(pid)
    at = time.monotonic()
    _end_everything()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    packet, _ = wire.receive(control, 0)
    if not packet:
        return  # a spare that was never needed
    if stops:
        wire.send(control, wire.FAILED + b"stopped from outside")  # unless the manager knows why, it is lost
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = wire.EndedFrame(status, at, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
    wire.send(control, ended.pack())
    errand = wire.unpack(packet)
    assert isinstance(errand, wire.Errand)
    _fetch(errand, slot.home, control)
    if not inheritance.plan.namespaces:
        _empty(slot.home)
    wire.send(control, wire.DONE)


def _wait_for(pid: int) -> int:
    """Reap everything until the program itself ends. Returns its status as wait(2) gives it."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return status


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
