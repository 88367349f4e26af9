"""A zygote: an interpreter behind walls that has imported what programs import, and forks cells on request.

It never reads a payload, holds no secret, and its environment contains only paths of programs. So the memory that a
program inherits does not help against other programs. A zygote ends when its manager's socket closes. It is pid 1, so
everything in its pid namespace ends with it.
"""

# Plain calls and no path objects: each page written after a fork is copied.
# ruff: noqa: PTH123

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from dataclasses import replace
from types import ModuleType
from typing import Final, NoReturn

from services.cpu_manager.sandbox.inside import cell, wire
from services.cpu_manager.sandbox.inside.cell import ZygoteContext
from shared.walls import syscalls, view
from shared.walls.seccomp import Filter, Rules

_HARNESSES: Final = "services.cpu_manager.sandbox.harnesses"
_OWN_MODULES: Final[list[ModuleType]] = []
"""Our own modules, which programs cannot import. They stay in memory: freeing them after a fork would copy their
pages."""
_JOINING: Final = 6
"""Most descriptors with a slot, besides its control socket."""


def main(descriptor: int) -> NoReturn:
    """Receive the plan, import, build the walls, report READY, and serve until the manager closes its socket."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    channel = socket.socket(fileno=descriptor)
    try:
        packet, _ = wire.receive(channel, 0)
        plan = wire.unpack(packet)
        assert isinstance(plan, wire.WallPlan)
        context = prepare(plan)
        if plan.namespaces:
            _enter_namespaces(plan, channel)
        else:
            if plan.privileged:
                os.setgroups([])
            wire.send(channel, wire.READY, (os.pidfd_open(os.getpid()),))
        serve(channel, context)
    except (OSError, ImportError) as error:
        with contextlib.suppress(OSError):
            wire.send(channel, wire.FAILED + f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def prepare(plan: wire.WallPlan) -> ZygoteContext:
    """Import everything, and prepare what each cell needs, while the host's files are still visible."""
    _restore_interpreter(plan)
    for name in plan.preload:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    harnesses = {name: importlib.import_module(f"{_HARNESSES}.{name}").main for name in plan.harnesses}
    rules = Rules(namespaces=plan.namespaces, counted=plan.control_groups, stopping=plan.stopping)
    filter_ = Filter(rules)
    context = ZygoteContext(plan, filter_, harnesses)
    if plan.agent:
        context.loopback_filter = Filter(replace(rules, loopback=True))
        context.agent = importlib.import_module(plan.agent).serve_descriptor
    del sys.path[0]  # the repository: programs import from the toolchain only
    for name in [name for name in sys.modules if name.partition(".")[0] in ("services", "shared")]:
        _OWN_MODULES.append(sys.modules.pop(name))
    return context


def _restore_interpreter(plan: wire.WallPlan) -> None:
    """Give an isolated interpreter the usual features: `exit`, `help`, third-party packages."""
    # Importing numpy must start no threads: a process with threads cannot enter a user namespace.
    os.environ.update(plan.environment)
    sys.path.extend(plan.interpreter_path)
    sys.executable = plan.executable
    site = importlib.import_module("site")
    for step in ("setquit", "setcopyright", "sethelper"):
        getattr(site, step)()


def _enter_namespaces(plan: wire.WallPlan, channel: socket.socket) -> None:
    """Continue as pid 1 of new namespaces, with only the view. The original process sends READY and ends."""
    flags = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    if plan.privileged:
        _enter_mapped_user_namespace(plan)
    else:
        uid, gid = os.getuid(), os.getgid()
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        _map_own_ids(uid, gid)
    syscalls.unshare(flags | syscalls.CLONE_NEWNS)
    if not plan.privileged:
        view.build(plan.root, plan.binds, plan.links, plan.texts)
    pid = os.fork()
    if pid:
        wire.send(channel, wire.READY, (os.pidfd_open(pid),))
        os._exit(0)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    socket.sethostname("cell")
    syscalls.drop_bounding_set()


def _map_own_ids(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _enter_mapped_user_namespace(plan: wire.WallPlan) -> None:
    """As root: build the view with real rights, then become root of a range of ids that own nothing on this host."""
    own = os.getpid()
    go_read, go_write = os.pipe()
    helper = os.fork()
    if helper == 0:  # stays outside, because only a process with rights there may write the maps
        os.close(go_write)
        os.read(go_read, 1)
        for name in ("gid_map", "uid_map"):
            with open(f"/proc/{own}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 {plan.uid_base} {plan.uid_count}")
        os._exit(0)
    os.close(go_read)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    view.build(plan.root, plan.binds, plan.links, plan.texts)
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    os.write(go_write, b"g")
    os.close(go_write)
    _, status = os.waitpid(helper, 0)
    if status != 0:
        raise OSError("the user ids of the sandbox could not be mapped")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def serve(channel: socket.socket, context: ZygoteContext) -> None:
    """Fork a cell for each request until the manager closes its socket."""
    # The kernel reaps ended cells: nobody needs their status from a zygote.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    namespaces = context.plan.namespaces
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces else -1
    wire.send(channel, wire.READY)
    gc.collect()
    gc.freeze()
    gc.disable()
    thawing: dict[int, int] = {}
    while True:
        packet, descriptors = wire.receive(channel, 1 + _JOINING)
        if not packet:
            _thaw(thawing)
            return
        slot = wire.unpack(packet)
        assert isinstance(slot, wire.SlotPlan)
        if slot.thawing >= 0:
            if slot.thawing in thawing:
                os.close(thawing[slot.thawing])
            thawing[slot.thawing] = descriptors.pop()
        if namespaces:
            syscalls.unshare(syscalls.CLONE_NEWPID)
        if os.fork() == 0:
            channel.close()  # else the manager would not notice this zygote's end while a cell lives
            cell.run(context, slot, descriptors)
        if namespaces:
            syscalls.setns(own_pids, syscalls.CLONE_NEWPID)
        for descriptor in descriptors:
            os.close(descriptor)


def _thaw(descriptors: dict[int, int]) -> None:
    """Thaw all cells after the manager's end: they end with this zygote, but frozen processes do not die."""
    if not descriptors or os.getpid() != 1:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # of our own pid namespace; killed before the thaw, they never run again
    for descriptor in descriptors.values():
        with contextlib.suppress(OSError):
            os.write(descriptor, b"THAWED")
