"""The manager's side of the forwarder: its start at the first need, its restart, and what it serves.

The manager keeps a copy of each listener. So a restarted forwarder gets them again, and connections that nobody has
accepted meanwhile wait in the kernel. Calls that were under way in a forwarder that died are broken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from redis.asyncio import Redis

from services.cpu_manager.environments.protocol import BadEnvironment
from services.cpu_manager.forwarder.control import (
    CallsChanged,
    ControlOutbox,
    Ping,
    RouterAt,
    Serve,
    StopServing,
    receive_up,
)
from services.cpu_manager.sandbox.transport import socket_pair
from shared.bus.connection import TRANSIENT
from shared.bus.router_keys import ModelKeys
from shared.bus.routers import RouterAddress
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.walls.syscalls import signal_pidfd

_log = log.get(__name__)

_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from services.cpu_manager.forwarder.process import main; main(int(sys.argv[2]))"
)
_REPOSITORY: Final = str(Path(__file__).resolve().parents[3])
ROUTER_WAIT_S: Final[Seconds] = 5.0
"""Longest wait for a router before an environment is refused: routers that are restarted come back within it."""
_LOOK_S: Final[Seconds] = 0.25
_FOLLOW_S: Final[Seconds] = 2.0
"""Pause between two reads of the router's address."""
SILENT_S: Final[Seconds] = 20.0
"""Time without an answer to a ping after which the forwarder is killed and started again. Its calls break off."""
_END_S: Final[Seconds] = 2.0
_AGAIN_S: Final[Seconds] = 0.1
_MOST_AGAIN_S: Final[Seconds] = 5.0

OnCalls = Callable[[str, int, int], None]
"""Called with a trajectory, its open calls, and those of them that wait for an answer (`control.CallsChanged`)."""


def _ignore(trajectory: str, open_calls: int, waiting: int) -> None:
    del trajectory, open_calls, waiting


class _Process:
    """One running forwarder."""

    def __init__(self, on_calls: Callable[[CallsChanged], None]) -> None:
        """Start it. It is ready when it receives: messages wait until then."""
        self.ended = asyncio.Event()
        self._answers = False
        self._on_calls = on_calls
        self._channel, theirs = socket_pair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, _REPOSITORY, str(theirs.fileno())],
                env={},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # an interrupt at the terminal is for the manager
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self.outbox = ControlOutbox(self._channel)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._receive)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _receive(self) -> None:
        while True:
            try:
                message = receive_up(self._channel)
            except BlockingIOError:
                return
            except msgspec.DecodeError:
                message = None
            if message is None:
                asyncio.get_running_loop().remove_reader(self._channel.fileno())
                self.ended.set()
                return
            self._answers = True
            if isinstance(message, CallsChanged):
                self._on_calls(message)

    async def until_ended(self) -> None:
        """Return when it has ended, or answers nothing any more."""
        while not self.ended.is_set():
            self._answers = False
            self.outbox.put(Ping())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_S):
                    await self.ended.wait()
            if not self._answers and not self.ended.is_set():
                _log.warning("forwarder_silent", pid=self.pid, for_s=SILENT_S)
                return

    async def stop(self) -> None:
        """End it, and wait until it is reaped."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.remove_reader(self._channel.fileno())
        self.outbox.close()
        self._channel.close()
        loop.add_reader(self._pidfd, ended.set)
        try:
            async with asyncio.timeout(_END_S):
                await ended.wait()
        except TimeoutError:
            _log.warning("forwarder_killed", pid=self.pid)
        finally:
            loop.remove_reader(self._pidfd)
            with contextlib.suppress(ProcessLookupError):
                signal_pidfd(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._process.wait()  # it has ended, or ends at once


class ModelForwarder:
    """`Models` by a forwarder process."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._on_calls: OnCalls = _ignore
        self._address = RouterAddress(redis)
        self._keys: ModelKeys | None = None
        self._url = ""
        self._listeners: dict[str, socket.socket] = {}
        self._calls: dict[str, CallsChanged] = {}
        self._process: _Process | None = None
        self._running: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        """Process id of the forwarder; 0 if none runs now."""
        return self._process.pid if self._process is not None else 0

    def calls(self, trajectory: str) -> CallsChanged:
        """Return the calls of a trajectory that are under way."""
        return self._calls.get(trajectory, CallsChanged(trajectory, 0, 0))

    @contextmanager
    def reports_to(self, on_calls: OnCalls) -> Iterator[None]:
        """Report calls for as long as the context lasts."""
        self._on_calls = on_calls
        try:
            yield
        finally:
            self._on_calls = _ignore

    async def ready(self, *, router: bool = True) -> None:
        """See `Models.ready`."""
        try:
            if self._keys is None:
                self._keys = await ModelKeys.load(self._redis)
            if router:
                self._send_router(await self._router())
        except TRANSIENT as error:
            raise BadEnvironment(f"its model cannot be reached: the store does not answer ({error})") from error
        if not self._running:
            self._running = [
                asyncio.create_task(self._supervise(), name="forwarder"),
                asyncio.create_task(self._follow_router(), name="router of the forwarder"),
            ]

    async def _router(self) -> str:
        """Return the address of a router. Raise `BadEnvironment` if none runs."""
        try:
            async with asyncio.timeout(ROUTER_WAIT_S):
                while (url := await self._address.address()) is None:  # noqa: ASYNC110  # routers renew it in Valkey
                    await asyncio.sleep(_LOOK_S)
                return url
        except TimeoutError:
            raise BadEnvironment("its model cannot be reached: no trajectory router runs in this mesh") from None

    def serve(self, trajectory: str, listener: socket.socket) -> None:
        """See `Models.serve`. Only after `ready`."""
        self.forget(trajectory)
        self._listeners[trajectory] = listener
        if self._process is not None:
            self._send_listener(self._process, trajectory)

    def forget(self, trajectory: str) -> None:
        """See `Models.forget`."""
        listener = self._listeners.pop(trajectory, None)
        if listener is None:
            return
        listener.close()
        if self._calls.pop(trajectory, None) is not None:
            self._on_calls(trajectory, 0, 0)
        if self._process is not None:
            self._process.outbox.put(StopServing(trajectory))

    async def close(self) -> None:
        """End the process, and close all listeners."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for trajectory in list(self._listeners):
            self.forget(trajectory)

    def _send_router(self, url: str) -> None:
        if url != self._url:
            self._url = url
            if self._process is not None:
                self._process.outbox.put(RouterAt(url))

    def _send_listener(self, process: _Process, trajectory: str) -> None:
        assert self._keys is not None
        process.outbox.put(Serve(trajectory, self._keys.of(trajectory)), self._listeners[trajectory].fileno())

    async def _supervise(self) -> None:
        loop, again_s = asyncio.get_running_loop(), _AGAIN_S
        while True:
            began = loop.time()
            try:
                self._process = process = _Process(self._changed)
            except OSError as error:
                _log.error("forwarder_not_started", error=str(error))
                await asyncio.sleep(_MOST_AGAIN_S)
                continue
            process.outbox.put(RouterAt(self._url))
            for trajectory in self._listeners:
                self._send_listener(process, trajectory)
            try:
                await process.until_ended()
            finally:
                self._process = None
                await process.stop()
                self._all_ended()
            again_s = _AGAIN_S if loop.time() - began > _MOST_AGAIN_S else min(again_s * 2, _MOST_AGAIN_S)
            _log.warning("forwarder_ended", pid=process.pid, trajectories=len(self._listeners), restart_in_s=again_s)
            await asyncio.sleep(again_s)

    async def _follow_router(self) -> None:
        while True:
            await asyncio.sleep(_FOLLOW_S)
            if self._listeners:
                with contextlib.suppress(*TRANSIENT):
                    self._send_router(await self._address.address() or self._url)

    def _changed(self, calls: CallsChanged) -> None:
        if calls.trajectory in self._listeners:
            self._calls[calls.trajectory] = calls
            self._on_calls(calls.trajectory, calls.open, calls.waiting)

    def _all_ended(self) -> None:
        for trajectory in [trajectory for trajectory, calls in self._calls.items() if calls.open]:
            self._changed(CallsChanged(trajectory, 0, 0))


@asynccontextmanager
async def open_forwarder(redis: Redis) -> AsyncIterator[ModelForwarder]:
    """Open the access to models of a node, for as long as the context lasts."""
    forwarder = ModelForwarder(redis)
    try:
        yield forwarder
    finally:
        await forwarder.close()
