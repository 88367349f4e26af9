"""Reading of a program's output: keeps it up to a limit, drops the rest, and never blocks the program for good."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from typing import Final

_CHUNK: Final = 64 << 10
_WIDE_PIPE: Final = 1 << 20
_PAUSE_S: Final = 0.005
"""Seconds between two drains after the limit: endless output costs the manager at most 1 MiB of reading per 5 ms."""


class OutputCapture:
    """Read end of one pipe. Memory is bounded by `limit`. Only pipes of longer programs are read before the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, limit: int) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._limit = limit
        self._kept = bytearray()
        self._reading = False
        self._pause: asyncio.TimerHandle | None = None
        self.truncated = False

    @property
    def kept(self) -> bytearray:
        """Bytes kept so far. Do not modify."""
        return self._kept

    def start(self) -> None:
        """Read bytes as they come."""
        if self._descriptor >= 0 and not self._reading:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._readable)

    def _stop(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _readable(self) -> None:
        if not self._read_some():
            self._stop()
        elif self.truncated:
            self._stop()
            self._widen()
            self._drain(_WIDE_PIPE)
            self._pause = self._loop.call_later(_PAUSE_S, self.start)

    def _widen(self) -> None:
        with contextlib.suppress(OSError):  # unprivileged users have a budget of pipe pages
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _WIDE_PIPE)

    def _read_some(self) -> int:
        """Read one chunk. Return its size; 0 if the pipe is empty at the moment or has ended."""
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return 0
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.truncated |= len(chunk) > room
        return len(chunk)

    def _drain(self, most: int) -> None:
        while most > 0 and (taken := self._read_some()):
            most -= taken

    def finish(self) -> bytes:
        """Read the rest of the pipe (every writer is dead), close it, and return the kept bytes."""
        if self._pause:
            self._pause.cancel()
        self._stop()
        if self._descriptor >= 0:
            self._drain(2 * _WIDE_PIPE)
            os.close(self._descriptor)
            self._descriptor = -1
        return bytes(self._kept)
