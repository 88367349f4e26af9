"""Keeps one unit running: start, watch, restart."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from shared.runtime.stack_errors import StackError
from shared.runtime.stack_state import ServiceState, State
from treadle.stack.backoff import Backoff
from treadle.stack.child import Child
from treadle.stack.plan import Unit
from treadle.stack.start_limit import StartLimit, cpu_seconds

YOUNG_S = 10.0
YOUNG_PROBE_S = 0.05
UNREADY_PROBE_S = 0.5
LIMIT_LOOK_S = 0.5
HEALTHY_PROBE_S = 5.0  # two local requests of 0.4 ms every 5 s: 0.02 % of a core per service


class ServiceRunner:
    """Runs one unit and its incarnations, from ``run`` to ``stop``."""

    def __init__(
        self,
        unit: Unit,
        *,
        note: Callable[[str, str], None],
        changed: Callable[[], None],
        backoff: Backoff,
    ) -> None:
        """``note(name, line)`` logs a line; ``changed()`` is called after each change of ``state``."""
        self._unit = unit
        self._note = note
        self._changed = changed
        self._backoff = backoff
        self._stopping = asyncio.Event()
        self._urgent = asyncio.Event()
        self._has_been_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_been_ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # `ready` raises it
        self._problem = "it has not been started"
        self._child: Child | None = None
        self.state = ServiceState(unit.name, None, unit.url, State.STARTING)

    @property
    def name(self) -> str:
        return self._unit.name

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def ready(self, limit_s: float) -> None:
        """Return when the unit has been ready once.

        Raises:
            StackError: it has made no progress for ``limit_s``, or has ended five times in a row.
        """
        limit = StartLimit(limit_s, time.monotonic())
        while not (await asyncio.wait([self._has_been_ready], timeout=min(limit_s / 4, LIMIT_LOOK_S)))[0]:
            if (exceeded := limit.reached(time.monotonic(), cpu_seconds(self.pid))) is not None:
                raise StackError(f"{self.name} was not ready {exceeded}: {self._problem}")
        self._has_been_ready.result()

    async def run(self) -> None:
        """Start the unit, and again after each end, until ``stop``. Return when its last process has ended."""
        while not self._stopping.is_set():
            began = time.monotonic()
            end = await self._live()
            if self._stopping.is_set():
                break
            pause_s = self._backoff.ended(time.monotonic() - began)
            self._report_end(end, time.monotonic() - began, pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
        if self._unit.door:
            self._unit.door.close()
        self._set(State.STOPPED, pid=None, started=None)

    def stop(self) -> None:
        """Request it to end in good order. ``run`` returns when it has."""
        self._stopping.set()

    def hurry(self) -> None:
        """Skip the grace: kill it."""
        self._urgent.set()

    def reap(self) -> bool:
        """Like `Child.reap`, for the current process."""
        return self._child is not None and self._child.reap()

    async def _live(self) -> str:
        """Run one incarnation, from start to end. Return how it ended."""
        try:
            child = self._child = self._start()
        except (OSError, StackError) as error:
            return f"could not start: {error}"
        self._set(State.STARTING, pid=child.pid, started=child.identity.started)
        watch = asyncio.create_task(self._watch(child), name=f"watch {self.name}")
        stop = asyncio.create_task(self._stopping.wait(), name=f"stop {self.name}")
        end = asyncio.create_task(child.ended.wait(), name=f"end of {self.name}")
        try:
            await asyncio.wait([stop, end, watch], return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()  # `_watch` never returns, so this raises its error
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
        launch, door = self._unit.launch, self._unit.door
        descriptor = door.open() if door else None
        if descriptor is not None:
            launch = replace(launch, argv=(*launch.argv, str(descriptor)))
        return Child(launch, lambda line: self._note(self.name, line), descriptor)

    async def _watch(self, child: Child) -> None:
        """Update ``state`` while the process runs."""
        unready_since = child.began
        while True:
            problem = await self._unit.probe(child.pid)
            if problem is None:
                if self.state.state is not State.HEALTHY:
                    self._note("treadle", f"{self.name} is healthy after {time.monotonic() - unready_since:.1f} s")
                    self._set(State.HEALTHY)
                    if not self._has_been_ready.done():
                        self._has_been_ready.set_result(None)
                await asyncio.sleep(HEALTHY_PROBE_S)
                continue
            self._problem = problem
            if self.state.state is State.HEALTHY:
                self._note("treadle", f"{self.name} is no longer ready: {problem}")
                unready_since = time.monotonic()
                self._set(State.UNREADY)
            young = time.monotonic() - child.began < YOUNG_S
            await asyncio.sleep(YOUNG_PROBE_S if young else UNREADY_PROBE_S)

    def _report_end(self, end: str, ran_s: float, pause_s: float) -> None:
        hopeless = self._backoff.hopeless
        if hopeless and self._unit.door:
            self._unit.door.close()
        self._note("treadle", f"{self.name} ended ({end}) after {ran_s:.1f} s; it is started again in {pause_s:.1f} s")
        self._set(
            State.FAILED if hopeless else State.RESTARTING,
            pid=None,
            started=None,
            restarts=self.state.restarts + 1,
            last_end=end,
        )
        if hopeless and not self._has_been_ready.done():
            self._has_been_ready.set_exception(StackError(f"{self.name} does not start: {end}"))

    def _set(self, state: State, **changes: object) -> None:
        self.state = replace_fields(self.state, state=state, **changes)
        self._changed()
