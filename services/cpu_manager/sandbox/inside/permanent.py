"""The one process of ours in a local environment: pid 1 of its namespaces, which becomes the agent permanently.

It gives up every right, as a program does, so taking it over would gain nothing. As pid 1 it cannot be killed or
stopped from inside, it adopts every orphan, and the whole environment ends with it.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import TYPE_CHECKING, Final, NoReturn

from services.cpu_manager.sandbox.inside import loopback, program, wire
from shared.walls import syscalls

if TYPE_CHECKING:
    from services.cpu_manager.sandbox.inside.cell import ZygoteContext

_OF_THE_ZYGOTE: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")

_OWN_BYTES: Final = 64 << 20
"""Size of its directory: requests of shells, input of commands and archives in transfer, at most 8 MiB each."""
_OWN_FILES: Final = 4096


def run_agent(context: ZygoteContext, slot: wire.SlotPlan, control: socket.socket) -> NoReturn:
    """Wait for the start request with the connection, complete the walls, and serve the connection until it is closed.

    Raises OSError for failures before that; the caller reports them.
    """
    assert context.agent is not None
    packet, received = wire.receive(control, 1)
    if not packet:
        os._exit(0)
    start_request = wire.unpack(packet)
    assert isinstance(start_request, wire.StartRequest)
    os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "PWD"), slot.home))
    for name in _OF_THE_ZYGOTE:
        os.environ.pop(name, None)
    listener = loopback.listen(start_request.listens) if start_request.listens else None
    folder = -1 if context.plan.control_groups else _own_directory(slot)
    program.drop_privileges(context.plan, slot)
    os.sched_setaffinity(0, start_request.cores)
    program.set_limits(start_request, own=1)  # itself
    admitted = context.filter if listener is None else context.loopback_filter
    assert admitted is not None
    admitted.install()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # until it has opened its own files in /proc
    wire.send(control, wire.STARTED, () if listener is None else (listener.fileno(),))
    control.detach()
    syscalls.close_all_but(0, 1, 2, received[0], *((folder,) if folder >= 0 else ()))
    gc.enable()
    context.agent(received[0], folder)
    os._exit(0)


def _own_directory(slot: wire.SlotPlan) -> int:
    """Create a directory of limited size for the agent, which no path leads to.

    The agent must work even if the private directory is full. Memory files are not available on rungs that cannot
    count them.
    """
    options = f"size={_OWN_BYTES},nr_inodes={_OWN_FILES},mode=0700,uid={slot.uid},gid={slot.uid}"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("agent", slot.home, "tmpfs", flags, options)
    folder = os.open(slot.home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.umount(slot.home)  # lazily: it exists as long as the descriptor
    return folder
