"""A container controlled only by the engine's API, for a manager on another host or inside a container.

`update` assigns cores, `pause` freezes, and a small program beside the agent relays bytes between its socket and the
engine's stream. An action costs about 60 ms this way, of which the engine takes 50.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, Final

from aiodocker.stream import Stream

from services.cpu_manager.environments.docker.container import SOCKET
from services.cpu_manager.environments.docker.engine import ContainerEngine, EngineRefusal
from services.cpu_manager.environments.handles import EnvironmentUsage, Gone
from services.cpu_manager.environments.protocol import RuntimeUnavailable

_CHUNK: Final = 1 << 16
_PAUSES: Final = 8
_PAUSE_S: Final = 0.02
_STALE_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between repeated calls whose refusal contradicts what this process did. A busy engine applies its own record
of a past `pause` or `unpause` again, late and in order, so for a moment its view of a container is an earlier one."""

RELAY: Final = f"""
import ctypes, os, select, socket
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
way = socket.socket(socket.AF_UNIX)
way.connect({SOCKET!r})
os.write(1, b"+")
ends = {{0: way.fileno(), way.fileno(): 1}}
while True:
    for end in select.select(list(ends), [], [])[0]:
        data = os.read(end, 65536)
        if not data:
            raise SystemExit
        while data:
            data = data[os.write(ends[end], data):]
"""
"""Runs beside the agent: its standard streams become the agent's connection. `+` means that it is connected.
Like the agent it is closed to other processes of its user (PR_SET_DUMPABLE)."""


class CannotFreeze(RuntimeUnavailable):
    """A process was being forked at that moment (control groups of version 1). The engine has thawed the container."""


class EngineHandle:
    """An `EnvironmentHandle` of a container, by calls of the engine."""

    def __init__(self, engine: ContainerEngine, container: str, python: list[str], *, paused: bool = False) -> None:
        """`python`: the command of the interpreter in the container's volume."""
        self._engine = engine
        self.container = container
        self._python = python
        self._paused: bool | None = paused
        """None: a call has not been answered, so the container may be frozen or not."""
        self._ended = False
        self._relays: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        return not self._ended

    async def resume(self, cores: frozenset[int]) -> None:
        if cores:  # before the thaw: a thawed container would run on cores that may be granted to others by now
            listed = ",".join(str(core) for core in sorted(cores))
            await self._call("update", "give a container cores", {"CpusetCpus": listed})
        if (paused := self._paused) is not False:
            self._paused = None
            await self._call("unpause", "thaw a container", done="is not paused", contradicts=paused is True)
            self._paused = False

    async def pause(self) -> None:
        attempt = 0
        while not (paused := self._paused):
            self._paused = None
            try:
                await self._call("pause", "freeze a container", done="already paused", contradicts=paused is False)
                self._paused = True
            except CannotFreeze:
                self._paused = False
                attempt += 1
                if attempt == _PAUSES:
                    raise
                await asyncio.sleep(_PAUSE_S * attempt)

    async def usage(self) -> EnvironmentUsage:
        """Return zeros: the engine takes a second to measure."""
        return EnvironmentUsage()

    async def connect(self) -> socket.socket:
        stream = await self._relay_stream()
        try:
            first = await _first_output(stream)
        except BaseException:
            await stream.close()
            raise
        if first != b"+":
            await stream.close()
            raise ConnectionRefusedError(f"nothing listens in the container: {first[-500:].decode(errors='replace')}")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self._start(self._relay(stream, theirs))
        return ours

    async def kill(self) -> None:
        with contextlib.suppress(EngineRefusal, RuntimeUnavailable):
            await self._engine.post(f"containers/{self.container}/kill", "kill a container")
        self._ended = True

    async def close(self) -> None:
        self._ended = True
        for relay in list(self._relays):
            relay.cancel()
        if self._relays:
            await asyncio.wait(self._relays, timeout=2.0)

    async def _relay_stream(self) -> Stream:
        """Start a relay in the container. It must not be frozen."""
        delays = iter(_STALE_S)
        while True:
            try:
                return await self._engine.exec(self.container, [*self._python, "-c", RELAY])
            except EngineRefusal as refusal:
                delay_s = next(delays, None) if "is paused" in refusal.message.lower() else None
                if delay_s is None:
                    raise self._error(refusal) from refusal
            await asyncio.sleep(delay_s)

    async def _call(
        self, call: str, what: str, body: dict[str, Any] | None = None, done: str = "", *, contradicts: bool = False
    ) -> None:
        """Make a call.

        Args:
            done: text of an error which means that the state is already reached.
            contradicts: such an error contradicts what this process did. The engine's view is then likely stale, so the
                error is believed only when it lasts.
        """
        delays = iter(_STALE_S if contradicts else ())
        while True:
            try:
                await self._engine.post(f"containers/{self.container}/{call}", what, body)
                return
            except EngineRefusal as refusal:
                if not done or done not in refusal.message.lower():
                    raise self._error(refusal) from refusal
            delay_s = next(delays, None)
            if delay_s is None:
                return
            await asyncio.sleep(delay_s)

    def _error(self, refusal: EngineRefusal) -> Exception:
        if refusal.status in {404, 409}:
            self._ended = True
            return Gone(refusal.message)
        if "unable to freeze" in refusal.message:
            return CannotFreeze(refusal.message)
        return RuntimeUnavailable(refusal.message)

    def _start(self, relay: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(relay, name=f"carry {self.container[:12]}")
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)

    async def _relay(self, stream: Stream, ours: socket.socket) -> None:
        """Relay bytes until either side ends."""
        both = [asyncio.create_task(_to_container(ours, stream)), asyncio.create_task(_from_container(stream, ours))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in both:
                way.cancel()
            await asyncio.wait(both, timeout=2.0)
            ours.close()
            await stream.close()


async def _first_output(stream: Stream) -> bytes:
    """Return the relay's first output; all of its output if it is an error."""
    async with asyncio.timeout(10.0):
        output = b""
        while (message := await stream.read_out()) is not None:
            output += message.data
            if output == b"+":
                break
        return output


async def _to_container(ours: socket.socket, stream: Stream) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(ours, _CHUNK):
            await stream.write_in(data)


async def _from_container(stream: Stream, ours: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while (message := await stream.read_out()) is not None:
            if message.stream == 1:
                await loop.sock_sendall(ours, message.data)
