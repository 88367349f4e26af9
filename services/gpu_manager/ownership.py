"""Ownership of this node's GPUs: executes the decisions of `shared.policy.serving.ownership` with the operator's hooks.

Laws (tests/services/gpu_manager/test_ownership.py, tests/e2e/test_released_gpus.py):
  - a record is stored before a hook begins, and after it has succeeded. A hook without a stored record is not called;
  - nothing is acquired or drained before the leader has had time to send this node's share;
  - a GPU that is not held is fenced in the machine of engines: its engines are stopped, and actions are postponed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from services.gpu_manager.hooks import Hook, HookEvent, HookFailed, hook_of
from services.gpu_manager.metrics import GPUS_BY_OWNERSHIP, HOOK_SECONDS
from services.gpu_manager.ownership_records import OwnershipRecords
from services.gpu_manager.serving import Serving
from services.gpu_manager.settings import GpuManagerSettings
from shared.node.resource_usage import ResourceUsage
from shared.policy.serving import model, ownership
from shared.policy.serving.node_view import InstanceView
from shared.policy.serving.ownership import GpuOwnership, Ownership, Recorded
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.http import HttpClient
from shared.runtime.settings import WrongSetting
from shared.runtime.units import Seconds

_log = log.get(__name__)

TICK_S: Final[Seconds] = 0.2
"""Interval of a look at the share and the engines."""
SETTLE_S: Final[Seconds] = 2.0
"""Time after the leader's first message in which the share is not known yet."""
_FENCED: Final = "it is given away, or is drained for that"
_BEGUN: Final[Mapping[HookEvent, Recorded]] = {"release": "releasing", "acquire": "acquiring"}
_ENDED: Final[Mapping[HookEvent, Recorded]] = {"release": "released", "acquire": "held"}
Hooks = Mapping[HookEvent, Hook]


def hooks_of(settings: GpuManagerSettings) -> Hooks | None:
    """Return the operator's hooks; None: there are none, and all GPUs are held.

    Raises:
        WrongSetting: one of them cannot be used, or is missing.
    """
    given = {"GPU_MANAGER_ON_RELEASE": settings.on_release, "GPU_MANAGER_ON_ACQUIRE": settings.on_acquire}
    if not any(given.values()):
        return None
    hooks = []
    for name, setting in given.items():
        if not setting:
            raise WrongSetting(f"{name} is empty, and the other hook is set; set both, because GPUs must come back")
        try:
            hooks.append(hook_of(setting, settings.hook_s))
        except ValueError as error:
            raise WrongSetting(f"{name}: {error}") from error
    return {"release": hooks[0], "acquire": hooks[1]}


def check_no_release(records: OwnershipRecords, gpus: int) -> None:
    """Check that all GPUs are held, because no hook would take one back.

    Raises:
        WrongSetting: a GPU is not held by its record.
    """
    away = {gpu: state for gpu, state in records.read(gpus).items() if state != "held"}
    if away:
        shown = ", ".join(f"GPU {gpu} is {state}" for gpu, state in away.items())
        raise WrongSetting(
            f"GPU_MANAGER_ON_RELEASE and GPU_MANAGER_ON_ACQUIRE are empty, and {shown} by the records in "
            f"{records.folder}; set the hooks again, or take these GPUs back and remove their gpu-*.json"
        )


@dataclass(slots=True)
class OwnedGpus:
    """Ownership of the GPUs of one node, with its hooks."""

    machine: GpuOwnership
    records: OwnershipRecords
    serving: Serving
    usage: ResourceUsage
    hooks: Hooks
    http: HttpClient
    node: str
    clock: Clock
    changed: Callable[[], None] = lambda: None
    """Called when the ownership of a GPU has changed."""
    faulty: Callable[[], Container[int]] = tuple
    """GPUs that stay fenced although they are held."""
    acquire_s: Seconds = 0.0
    """Duration of the last `on_acquire` that has succeeded: a part of a cold start."""
    _calling: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Fence GPUs that are not held. Call it before engines of a former manager are adopted."""
        self._mark(self.machine.unavailable, good=False)
        self._observe()

    def state_of(self, gpu: int) -> tuple[Ownership, str]:
        """Return the ownership of a GPU, and why."""
        return self.machine.states[gpu], self.machine.reasons[gpu]

    async def run(self, met_leader: Callable[[], bool], settle_s: Seconds = SETTLE_S) -> None:
        """Follow the share until cancelled. A hook that is under way then is killed, and called again after a start."""
        met_s: Seconds | None = None
        try:
            while True:
                now = self.clock.monotonic()
                if met_s is None and met_leader():
                    met_s = now
                self.settle(share_known=met_s is not None and now >= met_s + settle_s)
                await asyncio.sleep(TICK_S)
        finally:
            if self._calling is not None:
                self._calling.cancel()
                await asyncio.wait([self._calling])

    def settle(self, *, share_known: bool) -> None:
        """Do what is possible now. O(instances of the node)."""
        if self._calling is not None and self._calling.done():
            self._calling.result()  # raises a bug of ours
            self._calling = None
        busy, engines, broken = set[int](), set[int](), set[int]()
        for view in self.serving.machine.view():
            if view.running or view.waiting:
                busy.update(view.instance.chunk.gpus)
            if _occupies(view):
                engines.update(view.instance.chunk.gpus)
            if view.state == "quarantined":
                broken.update(view.instance.chunk.gpus)
        share = self.usage.owned if share_known else None
        degree = max((size for entry in self.serving.declared.values() for size in entry.degrees), default=1)
        self._do(self.machine.settle(self.clock.monotonic(), share, busy, engines, degree, broken))

    def _do(self, commands: list[ownership.OwnershipCommand]) -> None:
        for command in commands:
            match command:
                case ownership.Drain(gpus):
                    self._mark(gpus, good=False)
                case ownership.UseAgain(gpus):
                    self._mark(gpus, good=True)
                case ownership.Release(gpus):
                    self._begin("release", gpus)
                case ownership.Acquire(gpus):
                    self._begin("acquire", gpus)
        if commands:
            _log.info("gpu_ownership_changed", states=self.machine.states)
            self._observe()

    def _mark(self, gpus: tuple[int, ...], *, good: bool) -> None:
        faulty = self.faulty()
        for gpu in gpus:
            if not good or gpu not in faulty:
                self.serving.handle(model.DeviceMarked(gpu, good, "" if good else _FENCED))

    def _begin(self, event: HookEvent, gpus: tuple[int, ...]) -> None:
        assert self._calling is None or self._calling.done(), "one hook call is under way at a time"
        self._calling = asyncio.create_task(self._call(event, gpus), name=f"hook {event}")

    async def _call(self, event: HookEvent, gpus: tuple[int, ...]) -> None:
        began, error = self.clock.monotonic(), ""
        try:
            await self._record(gpus, _BEGUN[event])
            await self.hooks[event].call(self.http, event, self.node, gpus)
        except HookFailed as failed:
            error = str(failed)
        except OSError as failed:
            error = f"the record of the GPUs cannot be written, so it was not called ({failed})"
        took_s = self.clock.monotonic() - began
        HOOK_SECONDS.labels(event, "failed" if error else "ok").observe(took_s)
        if error:
            _log.error("gpu_hook_failed", hook=f"on_{event}", gpus=gpus, reason=error)
        else:
            await self._record_end(event, gpus)
            self.acquire_s = took_s if event == "acquire" else self.acquire_s
        self._do(self.machine.ended(self.clock.monotonic(), error))
        self._observe()

    async def _record(self, gpus: tuple[int, ...], state: Recorded) -> None:
        await asyncio.to_thread(self.records.write, gpus, state, self.clock.unix())

    async def _record_end(self, event: HookEvent, gpus: tuple[int, ...]) -> None:
        """Record the end of a hook. Without that, the hook is called again after a restart, which changes nothing."""
        try:
            await self._record(gpus, _ENDED[event])
        except OSError as error:
            _log.error("gpu_ownership_not_recorded", hook=f"on_{event}", gpus=gpus, reason=str(error))

    def _observe(self) -> None:
        for state in get_args(Ownership):
            GPUS_BY_OWNERSHIP.labels(state).set(self.machine.states.count(state))
        self.changed()


def _occupies(view: InstanceView) -> bool:
    """Return whether an engine has to leave its GPUs before they are given away.

    One that was given by its URL and is stopped stays there: asleep, with some memory.
    """
    awake = view.device_gb > 0 and view.state != "cold"
    return awake or view.level is not None or view.step is not None or view.state == "unknown"
