"""The HTTP server of an engine: a process of ours, or one that runs already at a given address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from services.gpu_manager.backends.canary import send_canary
from services.gpu_manager.backends.engine_folders import EngineFolder, EngineFolders
from services.gpu_manager.backends.engine_http import EngineHttp
from services.gpu_manager.backends.engine_process import EngineProcess
from services.gpu_manager.backends.footprints import footprint_of
from services.gpu_manager.backends.launching import EngineLaunch, Ports
from services.gpu_manager.backends.protocol import (
    EngineDeadlines,
    EngineError,
    EngineGone,
    Footprint,
    OutOfMemory,
    means_out_of_memory,
)
from services.gpu_manager.devices import DeviceMemory
from shared.model_services.entries import EngineCanary
from shared.runtime.http import HttpClient, HttpReply
from shared.runtime.units import Seconds

_T = TypeVar("_T")
_FIRST_POLL_S: Final = 0.05
_LAST_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine as it was declared. It has a `launch` or a `url`."""

    model: str
    """Name of the model in calls."""
    canary: EngineCanary | None = None
    """None: wrong weights are not noticed."""
    launch: EngineLaunch | None = None
    """Command of the engine. None: it runs already at `url`."""
    url: str = ""
    health: str = "/health"
    """Path that answers 200 once a started engine serves."""
    key: str = field(default="", repr=False)
    """Key of the engine's API; empty: none."""
    service: str = ""
    """Name of its model service, for its record."""
    digest: str = ""
    """Digest of all that decides which engine it is, for its record."""
    deadlines: EngineDeadlines = field(default_factory=EngineDeadlines)

    def __post_init__(self) -> None:
        if (self.launch is None) == (not self.url):
            raise ValueError("an engine needs `command` or `url`, and not both")


class EngineServer:
    """Starts, calls and stops one engine. Backends are built on it."""

    def __init__(
        self,
        settings: EngineSettings,
        client: HttpClient,
        ports: Ports,
        folders: EngineFolders,
        memory: DeviceMemory | None = None,
    ) -> None:
        """`memory`: measures devices, and gets each process that is started. None: nothing is measured."""
        self.settings = settings
        self.deadlines = settings.deadlines
        self._client = client
        self._ports = ports
        self._folders = folders
        self._memory = memory
        self._process: EngineProcess | None = None
        self._port = 0
        self._http = EngineHttp(client, settings.url, settings.key) if settings.url else None

    @property
    def is_given(self) -> bool:
        """Whether the engine was given by its URL. Then it is not ours to start or stop."""
        return self.settings.launch is None

    @property
    def url(self) -> str:
        """Base address; empty while no engine runs."""
        return self._http.url if self._http is not None else ""

    @property
    def is_running(self) -> bool:
        """Whether the process runs. A given engine is assumed to run."""
        return self.is_given or (self._process is not None and self._process.is_running)

    async def start(self, check: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start the engine and wait until it is healthy. A healthy engine stays as it is.

        A given engine is only probed, for at most `read_s`. On an error an engine of ours is stopped.

        Args:
            check: runs after that; its error is an error of the start.

        Raises:
            OutOfMemory: it ended, and its output reports a lack of device memory.
            EngineGone: it ended, or a given one does not answer.
            EngineError: it is not healthy after `start_s`.
        """
        if not self.is_running:
            await self._launch()
        try:
            with self.changing("start"):
                await self._wait_for_health(self.deadlines.read_s if self.is_given else self.deadlines.start_s)
                if check is not None:
                    await check()
        except BaseException:
            if self._process is not None:
                self._process.kill()  # at once, because a cancelled caller does not wait
                with suppress(EngineError):
                    await self.stop()
            raise

    def adopt(self, folder: EngineFolder) -> bool:
        """Take over an engine that a former manager has started. Return whether it runs."""
        process = EngineProcess.adopt(folder)
        if process is None:
            return False
        self._ports.reserve(folder.record.port)
        self._attach(process, folder.record.port)
        return True

    @contextmanager
    def changing(self, step: str) -> Iterator[None]:
        """Record a change of the state of an engine of ours, so that a crash in it is known. See `EngineFolder`."""
        if self._process is None:
            yield
            return
        with self._process.folder.changing(step):
            yield

    async def stop(self) -> None:
        """Stop the process and all of its children. Ends within `grace_s` + `kill_s`.

        Raises:
            EngineError: a process is left, or the engine was given by its URL.
        """
        if self.is_given:
            raise EngineError(f"the engine at {self.url} was given by its URL, so it cannot be stopped from here")
        if self._process is not None:
            await self._process.stop(self.deadlines.grace_s, self.deadlines.kill_s)
            if self._memory is not None:
                self._memory.release(self._process.pid)
            self._process = None
            self._http = None
            self._ports.release(self._port)

    async def ended(self) -> str:
        """Wait until the process has ended. Return how. Waits forever for a given engine."""
        if self.is_given:
            await asyncio.get_running_loop().create_future()
        process = self._process
        if process is None:
            return "the engine is stopped"
        await process.ended()
        return process.end_reason()

    async def send(self, method: str, target: str, body: object = None, *, within_s: Seconds) -> HttpReply:
        """Send a request. Return the answer, whatever its status. Raise as `EngineHttp.send`."""
        return await self._with_end(self._connected().send(method, target, body, within_s=within_s))

    async def call(self, method: str, target: str, body: object = None, *, within_s: Seconds) -> Any:
        """Send a request that must be answered with 200. Return its JSON. Raise as `EngineHttp.call`."""
        return await self._with_end(self._connected().call(method, target, body, within_s=within_s))

    async def canary(self) -> None:
        """Send the canary, where there is one. Raise as `send_canary`."""
        canary = self.settings.canary
        if canary is not None:
            sent = send_canary(self._connected(), self.settings.model, canary, within_s=self.deadlines.canary_s)
            await self._with_end(sent)

    async def poll(self, read: Callable[[], Awaitable[bool]], *, within_s: Seconds, failure: str) -> None:
        """Repeat a reading until it returns true.

        Raises:
            EngineError: with `failure`, after `within_s`; or as the reading raises it.
        """
        deadline = asyncio.get_running_loop().time() + within_s
        pause_s = _FIRST_POLL_S
        while not await read():
            if asyncio.get_running_loop().time() + pause_s > deadline:
                raise EngineError(failure)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_POLL_S)

    async def check_alive(self) -> None:
        """Raise `EngineGone` if the process ends within `settle_s`. An engine can die after its 200."""
        await self._pause(self.deadlines.settle_s)
        if not self.is_running:
            raise self._gone()

    async def footprint(self) -> Footprint:
        """Return the measured memory of the process and its children. Of a given engine nothing can be measured."""
        process = self._process
        if process is None or not process.is_running:
            return Footprint(None, None) if self.is_given else Footprint(0, 0)
        assert self.settings.launch is not None
        return await asyncio.to_thread(footprint_of, process, self.settings.launch, self._memory)

    async def measured_bytes(self) -> int | None:
        """Return the device memory of the engine's processes; None unless GPUs measure it.

        The memory of described devices is host memory, which a release does not reduce.
        """
        devices = () if self._memory is None else self._memory.devices
        is_measured = any(device.measured for device in devices)
        return (await self.footprint()).device_bytes if is_measured else None

    # ---- parts -----------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        assert self.settings.launch is not None
        await self.stop()  # the rest of an engine that has ended by itself
        launch, port = self.settings.launch, self._ports.take()
        try:
            folder = self._folders.add(
                self.settings.service, launch.devices[0], len(launch.devices), port, self.settings.digest
            )
            process = await EngineProcess.start(launch, port, folder, self.deadlines.grace_s)
        except BaseException:
            self._ports.release(port)
            raise
        self._attach(process, port)

    def _attach(self, process: EngineProcess, port: int) -> None:
        assert self.settings.launch is not None
        self._process, self._port = process, port
        if self._memory is not None:
            self._memory.assign(process.pid, self.settings.launch.devices)
        self._http = EngineHttp(self._client, f"http://127.0.0.1:{port}", self.settings.key)

    async def _wait_for_health(self, within_s: Seconds) -> None:
        deadline = asyncio.get_running_loop().time() + within_s
        pause_s, problem = _FIRST_POLL_S, "no probe was made"
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            try:
                reply = await self.send("GET", self.settings.health, within_s=min(left_s, self.deadlines.read_s))
                if reply.status == 200:
                    await self._confirm_own_port()
                    return
                problem = f"GET {self.settings.health} was answered with {reply.status}"
            except EngineError as error:
                if not self.is_running:
                    raise self._ended_while_starting() from error
                problem = error.reason
            await self._pause(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LAST_POLL_S)
        if self.is_given:
            raise EngineGone(f"no healthy engine at {self.url} within {within_s:g} s: {problem}")
        output = self._process.shown_output() if self._process is not None else ""
        raise EngineError(
            f"the engine was not healthy {within_s:g} s after its start ({problem}); raise `start_s` if it loads for "
            f"longer, or correct `command` and `health`; {output}"
        )

    async def _confirm_own_port(self) -> None:
        """Check that our process still runs: if it has ended because its port was in use, another server answered."""
        if not self.is_given:
            await self.check_alive()

    async def _pause(self, pause_s: Seconds) -> None:
        """Wait, but not longer than until the process ends."""
        process = self._process
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await (process.ended() if process is not None else asyncio.sleep(pause_s))

    def _connected(self) -> EngineHttp:
        if self._http is None:
            raise EngineGone("the engine is stopped")
        return self._http

    async def _with_end(self, call: Awaitable[_T]) -> _T:
        """Await a call. If it fails and the process has ended, the error says how it ended."""
        try:
            return await call
        except OutOfMemory:
            raise
        except EngineError as error:
            if isinstance(error, EngineGone):
                await self._pause(self.deadlines.settle_s)  # a process closes its connections before it has ended
            if not self.is_running:
                raise self._gone(error.reason) from error
            raise

    def _gone(self, problem: str = "") -> EngineError:
        if self._process is None:
            return EngineGone("the engine is stopped")
        reason = self._process.end_reason()
        kind = OutOfMemory if means_out_of_memory(reason) else EngineGone
        return kind(f"{problem}: {reason}" if problem else reason)

    def _ended_while_starting(self) -> EngineError:
        """Return the error of a start. Long tracebacks follow the cause, so all of the output is searched."""
        if self._process is None:
            return EngineGone("the engine was stopped while it started")
        kind = OutOfMemory if means_out_of_memory(self._process.tail()) else EngineGone
        return kind(f"while it started, {self._process.end_reason()}")
