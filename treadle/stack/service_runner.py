"""Keeps one process running: start, watch, restart."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_fields

from shared.runtime.stack_state import ServiceState, StackError, State
from treadle.stack.child import Child
from treadle.stack.plan import ProcessSpec
from treadle.stack.start_limit import StartLimit, cpu_seconds

YOUNG_S = 10.0
YOUNG_PROBE_S = 0.05
UNREADY_PROBE_S = 0.5
LIMIT_CHECK_S = 0.5
HEALTHY_PROBE_S = 5.0  # two local requests of 0.4 ms every 5 s: 0.02 % of a core per service


@dataclass(slots=True)
class Backoff:
    """Exponential pauses before an ended process is started again, reset when it has run well for a while. Pure.

    A single crash costs 0.2 s, so that a killed proxy is back before its clients give up. A service that cannot run is
    tried every 30 s, so that it recovers by itself when what it needs is back.
    """

    first_s: float = 0.2
    longest_s: float = 30.0
    reset_after_s: float = 30.0
    crash_loop_after: int = 5
    failures: int = 0
    """Consecutive ends, each before ``reset_after_s``."""

    def record_end(self, ran_s: float) -> float:
        """Record an end after ``ran_s`` seconds. Return the seconds to wait before the next start."""
        self.failures = 1 if ran_s >= self.reset_after_s else self.failures + 1
        return float(min(self.longest_s, self.first_s * 2 ** (self.failures - 1)))

    @property
    def crash_loop(self) -> bool:
        """True if this is a crash loop."""
        return self.failures >= self.crash_loop_after


class ServiceRunner:
    """Runs one process and its incarnations, from ``run`` to ``stop``."""

    def __init__(
        self,
        spec: ProcessSpec,
        *,
        log_line: Callable[[str, str], None],
        changed: Callable[[], None],
        backoff: Backoff,
    ) -> None:
        """``log_line(name, line)`` logs a line; ``changed()`` is called after each change of ``state``."""
        self._spec = spec
        self._log_line = log_line
        self._changed = changed
        self._backoff = backoff
        self._stopping = asyncio.Event()
        self._urgent = asyncio.Event()
        self._has_been_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_been_ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # `ready` raises it
        self._problem = "it has not been started"
        self._child: Child | None = None
        self.state = ServiceState(spec.name, None, spec.url, State.STARTING)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def ready(self, limit_s: float) -> None:
        """Return when the process has been ready once.

        Raises:
            StackError: it has made no progress for ``limit_s``, or has ended five times in a row.
        """
        limit = StartLimit(limit_s, time.monotonic())
        while not (await asyncio.wait([self._has_been_ready], timeout=min(limit_s / 4, LIMIT_CHECK_S)))[0]:
            if (exceeded := limit.reached(time.monotonic(), cpu_seconds(self.pid))) is not None:
                raise StackError(f"{self.name} was not ready {exceeded}: {self._problem}")
        self._has_been_ready.result()

    async def run(self) -> None:
        """Start the process, and again after each end, until ``stop``. Return when its last process has ended."""
        while not self._stopping.is_set():
            began = time.monotonic()
            end = await self._run_once()
            if self._stopping.is_set():
                break
            pause_s = self._backoff.record_end(time.monotonic() - began)
            self._report_end(end, time.monotonic() - began, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
        if self._spec.listen_socket:
            self._spec.listen_socket.close()
        self._set_state(State.STOPPED, pid=None, started=None)

    def stop(self) -> None:
        """Request it to end in good order. ``run`` returns when it has."""
        self._stopping.set()

    def kill(self) -> None:
        """Kill it without its grace."""
        self._urgent.set()

    def reap(self) -> bool:
        """Like `Child.reap`, for the current process."""
        return self._child is not None and self._child.reap()

    async def _run_once(self) -> str:
        """Run one incarnation, from start to end. Return how it ended."""
        try:
            child = self._child = self._start()
        except (OSError, StackError) as error:
            return f"could not start: {error}"
        self._set_state(State.STARTING, pid=child.pid, started=child.identity.started)
        watch = asyncio.create_task(self._watch(child), name=f"watch {self.name}")
        stop = asyncio.create_task(self._stopping.wait(), name=f"stop {self.name}")
        end = asyncio.create_task(child.ended.wait(), name=f"end of {self.name}")
        try:
            await asyncio.wait([stop, end, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()  # `_watch` only ends with an error; raise it
            if not child.ended.is_set():
                watch.cancel()
                await child.stop(self._urgent)
        finally:
            for task in (watch, stop, end):
                task.cancel()
            self._child = None
        child.release()
        return child.how_it_ended()

    def _start(self) -> Child:
        launch, listen_socket = self._spec.launch, self._spec.listen_socket
        descriptor = listen_socket.open() if listen_socket else None
        if descriptor is not None:
            launch = replace(launch, argv=(*launch.argv, str(descriptor)))
        return Child(launch, lambda line: self._log_line(self.name, line), descriptor)

    async def _watch(self, child: Child) -> None:
        """Update ``state`` while the process runs."""
        unready_since = child.began
        while True:
            problem = await self._spec.probe(child.pid)
            if problem is None:
                if self.state.state is not State.HEALTHY:
                    self._log_line("treadle", f"{self.name} is healthy after {time.monotonic() - unready_since:.1f} s")
                    self._set_state(State.HEALTHY)
                    if not self._has_been_ready.done():
                        self._has_been_ready.set_result(None)
                await asyncio.sleep(HEALTHY_PROBE_S)
                continue
            self._problem = problem
            if self.state.state is State.HEALTHY:
                self._log_line("treadle", f"{self.name} is no longer ready: {problem}")
                unready_since = time.monotonic()
                self._set_state(State.UNREADY)
            young = time.monotonic() - child.began < YOUNG_S
            await asyncio.sleep(YOUNG_PROBE_S if young else UNREADY_PROBE_S)

    def _report_end(self, end: str, ran_s: float, pause_s: float) -> None:
        crash_loop = self._backoff.crash_loop
        if crash_loop and self._spec.listen_socket:
            self._spec.listen_socket.close()
        self._log_line(
            "treadle", f"{self.name} ended ({end}) after {ran_s:.1f} s; it is started again in {pause_s:.1f} s"
        )
        self._set_state(
            State.FAILED if crash_loop else State.RESTARTING,
            pid=None,
            started=None,
            restarts=self.state.restarts + 1,
            last_end=end,
        )
        if crash_loop and not self._has_been_ready.done():
            self._has_been_ready.set_exception(StackError(f"{self.name} does not start: {end}"))

    def _set_state(self, state: State, **changes: object) -> None:
        self.state = replace_fields(self.state, state=state, **changes)
        self._changed()
