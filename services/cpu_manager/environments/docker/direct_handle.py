"""A container controlled from its host without the engine: control group files, first process and socket.

Programs inside are hostile and may move their files. So the socket is opened beneath the container's root, where no
link leads outside, and its listener is compared with the process that the engine started.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from services.cpu_manager.environments.docker.container import SOCKET
from services.cpu_manager.environments.docker.container_listener import listen_in
from services.cpu_manager.environments.docker.control_groups import ControlGroups, control_groups_of, frozen
from services.cpu_manager.environments.handles import EnvironmentUsage, Gone
from services.cpu_manager.environments.protocol import RuntimeUnavailable
from shared.runtime.units import Seconds
from shared.walls.syscalls import open_beneath, signal_pidfd

_GONE: Final = {errno.ENODEV, errno.ENOENT, errno.ESRCH, errno.EBADF}
_OWN_NETWORK: Final = Path("/proc/self/ns/net")
_CREDENTIALS: Final = struct.Struct("3i")


class DirectHandle:
    """An `EnvironmentHandle` of a container that has just started. A descriptor pins its process, not its number."""

    def __init__(self, container: str, pid: int, groups: ControlGroups, pidfd: int) -> None:
        self.container = container
        self._pid = pid
        self._groups = groups
        self._pidfd = pidfd
        self._ended = False
        asyncio.get_running_loop().add_reader(pidfd, self._has_ended)

    @classmethod
    def of(cls, container: str, pid: int) -> Self | None:
        """Return the handle of a running container, or None if the engine's processes are not accessible from here."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        # Read after the process was pinned, so the number cannot have been reused.
        groups = control_groups_of(pid, container)
        if groups is None:
            os.close(pidfd)
            return None
        return cls(container, pid, groups, pidfd)

    @property
    def alive(self) -> bool:
        return not self._ended

    async def resume(self, cores: frozenset[int]) -> None:
        with _there():
            if cores:
                self._groups.assign(cores)
            self._groups.reset_peak()
            self._groups.thaw()

    async def pause(self) -> None:
        with _there():
            if not await frozen(self._groups):
                raise RuntimeUnavailable("the container cannot be frozen")

    async def usage(self) -> EnvironmentUsage:
        with _there():
            groups = self._groups
            return EnvironmentUsage(groups.cpu_s(), groups.peak_memory_bytes(), groups.memory_kills())

    async def connect(self) -> socket.socket:
        """See `EnvironmentHandle.connect`. Also raises `OSError` if another process listens there."""
        root = self._open_root()
        try:
            found = open_beneath(root, SOCKET.lstrip("/"), os.O_PATH)
        finally:
            os.close(root)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{found}")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            listener = _CREDENTIALS.unpack(credentials)[0]
            if listener != self._pid:
                raise OSError(f"process {listener} listens in the place of the container's first, {self._pid}")
        except OSError:
            connection.close()
            raise
        finally:
            os.close(found)
        return connection

    async def listen(self, port: int, again_s: Seconds = 0.0) -> socket.socket:
        """Return a listener at the loopback address inside the container.

        Raises:
            OSError: it cannot be made; contains the reason.
            Gone: the container has ended.
        """
        with _there():
            network = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with _there():
                signal_pidfd(self._pidfd, 0)  # alive now, so the number was this process's
            if os.path.samestat(os.fstat(network), _OWN_NETWORK.stat()):
                raise OSError("it has no network namespace of its own")
            return await listen_in(network, port, again_s)
        finally:
            os.close(network)

    async def kill(self) -> None:
        # The signal first: a process that is thawed with it pending runs no further instruction.
        with contextlib.suppress(OSError):
            signal_pidfd(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            self._groups.thaw()

    async def close(self) -> None:
        if self._pidfd >= 0:
            self._has_ended()
            os.close(self._pidfd)
            self._pidfd = -1
            self._groups.close()

    def _has_ended(self) -> None:
        self._ended = True
        asyncio.get_running_loop().remove_reader(self._pidfd)

    def _open_root(self) -> int:
        with _there():
            return os.open(f"/proc/{self._pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


@contextlib.contextmanager
def _there() -> Iterator[None]:
    """Distinguish a container that is gone from a kernel that refuses."""
    try:
        yield
    except OSError as error:
        if error.errno in _GONE:
            raise Gone("the container has ended") from error
        raise RuntimeUnavailable(f"the container's control groups cannot be written: {error}") from error
