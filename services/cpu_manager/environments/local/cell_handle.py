"""One permanent cell as an `EnvironmentHandle`. Its init is the agent, and everything inside ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Final

from services.cpu_manager.environments.handles import EnvironmentUsage, Gone
from services.cpu_manager.environments.local.suspension import Suspension
from shared.walls.syscalls import signal_pidfd

_END_S: Final = 10.0
"""Longest wait for the end of a killed cell, in seconds; after it the slot is not reused."""


class CellHandle:
    """Handle of a running cell. Not frozen before the first `pause`."""

    def __init__(self, pidfd: int, connection: socket.socket, suspension: Suspension) -> None:
        self.pidfd = pidfd
        """Descriptor of its agent; -1 after `close`."""
        self._connection = connection
        self._suspension = suspension
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._has_ended)

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    async def resume(self, cores: frozenset[int]) -> None:
        """See `EnvironmentHandle.resume`."""
        self._require_alive()
        await self._suspension.resume(cores)

    async def pause(self) -> None:
        """See `EnvironmentHandle.pause`."""
        self._require_alive()
        await self._suspension.pause()

    async def usage(self) -> EnvironmentUsage:
        self._require_alive()
        return self._suspension.usage()

    async def connect(self) -> socket.socket:
        return self._connection

    async def kill(self) -> None:
        """See `EnvironmentHandle.kill`.

        The signal first: a process that is thawed with it pending runs no further instruction.
        """
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                signal_pidfd(self.pidfd, signal.SIGKILL)
            self._suspension.release()

    async def gone(self) -> bool:
        """Wait until nothing of it is left. Return False after `_END_S`."""
        try:
            async with asyncio.timeout(_END_S):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        if self.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self.pidfd)
            os.close(self.pidfd)
            self.pidfd = -1
            self._ended.set()

    def release(self) -> None:
        """Let it die with its zygote, which has died."""
        self._suspension.release()

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self.pidfd)
        self._ended.set()

    def _require_alive(self) -> None:
        if self._ended.is_set():
            raise Gone("its first process has ended")
