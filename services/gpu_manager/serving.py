"""Execution of the decisions about engines: commands of the pure machine become calls of backends.

`NodeServing` (`shared.policy.serving`) decides; here each step is one task, whose end is a stimulus. Laws:
  - each step ends in exactly one `Stepped`, also if it is cancelled;
  - an error of a step, a search, an abort, a watch, a check of liveness, or the making of a backend fails its engine
    alone. An error of the machine ends the service (ADR 0093);
  - memory is measured before a load or a restore: an engine is not started into memory that is in use
    (`measured_memory`);
  - a holder's context ends in exactly one `HolderEnded`, also if it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from services.gpu_manager.backends.given_engines import leave_given
from services.gpu_manager.backends.protocol import Backend, Level
from services.gpu_manager.backends.unmade import UnmadeBackend
from services.gpu_manager.devices import DeviceMemory
from services.gpu_manager.engine_calls import EngineAddress
from services.gpu_manager.engine_failures import abort_requests, end_of, found_residency
from services.gpu_manager.engine_use import EngineUse, NotServed
from services.gpu_manager.liveness import checked_liveness
from services.gpu_manager.measured_memory import MeasuredMemory
from services.gpu_manager.metrics import EVICTIONS
from services.gpu_manager.node_stop import stop_engines
from services.gpu_manager.preconnecting import preconnect
from services.gpu_manager.step_tasks import StepTasks, Work
from shared.model_services.entries import ServiceEntry
from shared.policy.serving import model
from shared.policy.serving.model import InstanceId, Stimulus
from shared.policy.serving.node_serving import NodeServing
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.http_streams import StreamClient
from shared.runtime.units import Seconds

_log = log.get(__name__)


@dataclass(slots=True)
class Serving:
    """Engines of one node."""

    machine: NodeServing
    backend: Callable[[InstanceId, ServiceEntry], Backend]
    memory: DeviceMemory
    clock: Clock
    entries: dict[str, ServiceEntry] = field(default_factory=dict)
    changed: Callable[[str], None] = lambda _state: None
    """Called when the residency of an engine has changed, with its new state; empty: services have changed."""
    http: StreamClient | None = None
    """Sends the calls of actions. It connects to an engine before its canary."""
    _backends: dict[InstanceId, Backend] = field(default_factory=dict)
    _made_of: dict[InstanceId, ServiceEntry] = field(default_factory=dict)
    """Entry of each backend. After a change of its service, it is that of the old engine until that is stopped."""
    _holders: dict[str, EngineUse] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _watches: dict[InstanceId, asyncio.Task[None]] = field(default_factory=dict)
    _checks: dict[InstanceId, asyncio.Task[None]] = field(default_factory=dict)
    """Checks of liveness under way."""
    measured_memory: MeasuredMemory = field(init=False)
    _steps: StepTasks = field(init=False)
    _timer: asyncio.TimerHandle | None = None
    _removed: set[str] = field(default_factory=set)
    """Services that were removed. Their entries stay for engines that are still drained."""
    _closed: bool = False
    """The node stops: nothing is decided any more."""
    _failed: asyncio.Event = field(default_factory=asyncio.Event)
    _error: BaseException | None = None

    def __post_init__(self) -> None:
        self._steps = StepTasks(self.clock, self._spawn, self.handle)
        self.measured_memory = MeasuredMemory(self.memory, self._backends, self.machine.view, self.handle)

    # ---- services ----------------------------------------------------------------------------------------------

    def set_service(self, name: str, entry: ServiceEntry, spec: model.ModelServiceSpec) -> None:
        """Declare a service, or change it. Engines of a changed one are drained and stopped."""
        self.entries[name] = entry
        self._removed.discard(name)
        self.handle(model.ServiceSet(spec))

    def remove_service(self, name: str) -> None:
        """Remove a service. Its engines are drained and stopped."""
        self._removed.add(name)
        self.handle(model.ServiceRemoved(name))
        self._forget_removed(name)
        self.changed("")

    @property
    def declared(self) -> dict[str, ServiceEntry]:
        """Services that actions may use."""
        return {name: entry for name, entry in self.entries.items() if name not in self._removed}

    def expect(self, instance: InstanceId) -> None:
        """Find the residency of an engine that runs already, before any holder is admitted on its GPUs."""
        if instance in self._backends:
            return  # of the entry before a change: the machine drains and stops it first
        self._make(instance)
        self.handle(model.Expected(instance))
        self._spawn(self._find(instance), f"find {instance}")

    def _make(self, instance: InstanceId) -> None:
        """Make the backend of an engine, of the present entry. An error fails the steps of this engine."""
        entry = self._made_of[instance] = self.entries[instance.service]
        try:
            self._backends[instance] = self.backend(instance, entry)
        except Exception as error:  # noqa: BLE001
            self._backends[instance] = UnmadeBackend(error)

    def adopt(self, instance: InstanceId, backend: Backend) -> None:
        """Take over an engine of a former manager. Its residency is read before any holder is admitted on its GPUs."""
        self._backends[instance], self._made_of[instance] = backend, self.entries[instance.service]
        self.handle(model.Expected(instance))
        self._watch(instance, backend)
        self._spawn(self._find(instance), f"find {instance}")

    async def _find(self, instance: InstanceId) -> None:
        residency = await found_residency(instance, self._backends[instance])
        self.handle(model.Found(instance, residency))

    # ---- holders -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def using(self, holder: str, instance: InstanceId, deadline: Seconds) -> AsyncIterator[EngineUse]:
        """Hold an engine that is resident and checked; wait for it until `deadline`, on the service's clock.

        Raises:
            NotServed: it is not available in time.
        """
        loop, entry = asyncio.get_running_loop(), self.declared.get(instance.service)
        if entry is None or entry.first_gpu_of(instance.chunk.size) not in (None, instance.chunk.first):
            raise NotServed(f"this node has no engine of {instance} any more", 0.0)
        holding = self._holders[holder] = EngineUse(loop.create_future(), loop.create_future())
        try:
            self.handle(model.Wanted(holder, instance, deadline))
            await holding.decided
            if holding.refused.done():
                raise holding.refused.result()
            yield holding
        finally:
            del self._holders[holder]
            if not holding.refused.done():
                unanswered = not holding.ok and self.clock.monotonic() >= holding.ends_s
                self.handle(model.HolderEnded(holder, holding.ok, unanswered, holding.failed))

    def ready_in_s(self, instance: InstanceId) -> Seconds:
        """Return the expected time until an engine is resident, by measured steps; 0: it is."""
        return self.machine.ready_in_s(self.clock.monotonic(), instance)

    @property
    def backends(self) -> Mapping[InstanceId, Backend]:
        """Backends of the engines that run or sleep."""
        return self._backends

    def addresses(self) -> dict[InstanceId, str]:
        """Return the base address of each engine that runs."""
        return {instance: backend.url for instance, backend in self._backends.items() if backend.url}

    def address(self, instance: InstanceId) -> EngineAddress:
        """Return how to call an engine that is resident."""
        entry, url = self._made_of[instance], self._backends[instance].url
        gpus = instance.chunk.size / self.entries[instance.service].concurrency
        return EngineAddress(url, entry.api, entry.model, instance.service, entry.keeps_connections, gpus)

    # ---- the machine -------------------------------------------------------------------------------------------

    def handle(self, stimulus: Stimulus) -> None:
        """Pass a stimulus to the machine, and execute its commands."""
        if self._closed:
            return
        try:
            for command in self.machine.handle(self.clock.monotonic(), stimulus):
                self._execute(command)
        except Exception as error:
            self._fail(error)
            raise
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, wake_s = None, self.machine.next_wake_s()
        if wake_s < float("inf"):
            delay_s = max(0.0, wake_s - self.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.handle, model.TimePassed())

    def _execute(self, command: model.Command) -> None:
        match command:
            case model.LoadEngine(instance):
                if instance not in self._backends or self._made_of[instance] != self.entries[instance.service]:
                    self._make(instance)
                self._step(instance, "load", self._loaded(instance))
            case model.Restore(instance):
                self._step(instance, "restore", self._restored(instance))
            case model.Evict(instance, level):
                EVICTIONS.labels(level).inc()
                self._step(instance, "evict", self._backends[instance].evict(level))
            case model.RunCanary(instance):
                self._step(instance, "canary", self._checked(instance))
            case model.Stop(instance):
                EVICTIONS.labels("cold").inc()
                self._step(instance, "stop", self._stopped(instance))
            case model.CancelStep() | model.Abort() | model.CheckLiveness():
                self._execute_beside(command)
            case model.Admit(holder, _):
                self._holders[holder].decide()
            case model.RefuseHolder(holder, reason, retry_in_s):
                self._refuse(holder, reason, retry_in_s)
            case model.ResidencyChanged(instance, state, reason):
                _log.info("residency_changed", instance=str(instance), state=state, reason=reason)
                self.changed(state)
            case model.YieldChanged(instance, yields):
                _log.info("load_yields", instance=str(instance), yields=yields)
                self.changed("loading")

    def _execute_beside(self, command: model.CancelStep | model.Abort | model.CheckLiveness) -> None:
        """Execute a command that is no step of its engine."""
        match command:
            case model.CancelStep(instance):
                self._steps.cancel(instance)
            case model.Abort(instance):
                self._spawn(abort_requests(instance, self._backends[instance]), f"abort {instance}")
            case model.CheckLiveness(instance):
                self._checks[instance] = self._spawn(self._live(instance), f"check {instance}")

    def _refuse(self, holder: str, reason: str, retry_in_s: Seconds | None) -> None:
        holding = self._holders.get(holder)
        if holding is not None:
            holding.refuse(NotServed(reason, retry_in_s))

    # ---- steps -------------------------------------------------------------------------------------------------

    def _step(self, instance: InstanceId, step: model.Step, work: Work) -> None:
        if (check := self._checks.pop(instance, None)) is not None:
            check.cancel()
        self._steps.begin(instance, step, work)

    async def _loaded(self, instance: InstanceId) -> None:
        backend = self._backends[instance]
        async with self.measured_memory.checked(instance, self._made_of[instance], 0.0):
            await backend.prepare()
        self._watch(instance, backend)

    async def _restored(self, instance: InstanceId) -> None:
        entry = self._made_of[instance]
        async with self.measured_memory.checked(instance, entry, entry.asleep_gb(instance.chunk.size)):
            await self._backends[instance].restore()

    async def _checked(self, instance: InstanceId) -> None:
        entry, backend = self._made_of[instance], self._backends[instance]
        if entry.canary is not None:
            if self.http is not None and entry.keeps_connections:
                await preconnect(self.http, backend.url + entry.health)
            await backend.canary()

    async def _stopped(self, instance: InstanceId) -> Level:
        """Stop an engine. Return where it is left: a given one sleeps."""
        left: Level = "cold"
        watch = self._watches.pop(instance, None)
        if watch is not None:
            watch.cancel()
        backend = self._backends.get(instance)
        if backend is None:
            return left
        levels = backend.flags.levels
        if "cold" in levels:
            await backend.stop()
        elif levels:
            left = await leave_given(backend)
        if "cold" in levels or instance.service in self._removed:
            del self._backends[instance], self._made_of[instance]  # the next one is that of the present entry
        self._forget_removed(instance.service)
        return left

    def _forget_removed(self, name: str) -> None:
        """Forget a removed service when all of its engines are stopped."""
        if name in self._removed and not any(instance.service == name for instance in self._backends):
            self.entries.pop(name, None)
            self._removed.discard(name)

    async def _live(self, instance: InstanceId) -> None:
        found, reason = await checked_liveness(instance, self._backends[instance])
        del self._checks[instance]
        self.handle(model.LivenessChecked(instance, found, reason))

    # ---- watches and tasks -------------------------------------------------------------------------------------

    def _watch(self, instance: InstanceId, backend: Backend) -> None:
        self._watches[instance] = self._spawn(self._watched(instance, backend), f"watch {instance}")

    async def _watched(self, instance: InstanceId, backend: Backend) -> None:
        reason = await end_of(instance, backend)
        self._watches.pop(instance, None)
        self.handle(model.EngineDied(instance, reason))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._failed.set()

    async def failed(self) -> None:
        """Wait until the machine has failed by a bug of ours, and raise its error: the service must end."""
        await self._failed.wait()
        assert self._error is not None, "it has failed"
        raise self._error

    async def stop(self, within_s: Seconds) -> None:
        """Stop all engines that were started here. Ends after `within_s`, whatever they do."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await stop_engines(set(self._tasks), self._backends, within_s)
