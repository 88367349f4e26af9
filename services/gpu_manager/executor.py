"""Executor of actions on GPUs: each grant names its chunk, where the model service becomes resident first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec

from services.gpu_manager.backends.protocol import EngineError
from services.gpu_manager.engine_calls import EngineAttempt, EngineBusy
from services.gpu_manager.engine_use import EngineUse, NotServed, unless_refused
from services.gpu_manager.kernel_actions import KernelActions
from services.gpu_manager.kinds import CUDA, GPUS, KINDS
from services.gpu_manager.metrics import RUNNING, WAIT_SECONDS
from services.gpu_manager.model_calls import perform
from services.gpu_manager.serving import Serving
from shared.messages.grants import Granted
from shared.node.executor import Offer
from shared.node.resource_usage import ResourceUsage
from shared.policy.model.chunks import SIZES, Chunk
from shared.policy.model.results import AttemptResult, lost, refused
from shared.policy.resources.retries import retry_delay_s
from shared.policy.serving.model import InstanceId
from shared.runtime import log
from shared.runtime.clock import Clock
from shared.runtime.http_streams import StreamClient
from shared.runtime.units import Seconds

_log = log.get(__name__)

_NAMES: Final = frozenset(spec.name for spec in KINDS)
BUSY_RETRY_S: Final[Seconds] = 1.0
"""Pause before an action is tried again whose engine takes no call and names no time."""
LONGEST_PAUSE_S: Final[Seconds] = 4.0
"""Longest pause after a call that the engine has failed. The first one is 1 s at most (`retry_delay_s`)."""
MOST_PAUSED: Final = 0.25
"""Part of the time until the deadline that this pause takes at most, so that all attempts have their turn."""


def postponed(reason: str, retry_in_s: Seconds) -> AttemptResult:
    """Return a wish for another attempt later, which does not count as one."""
    return AttemptResult("postponed", reason=reason, retry_in_s=retry_in_s)


def failed_call(reason: str, attempt: int, left_s: Seconds, rng: Random) -> AttemptResult:
    """Return the loss of an attempt whose call the engine has failed. The next attempt follows after a pause.

    Args:
        reason: for people.
        attempt: its number, counted from 1. The pause doubles with it.
        left_s: time until the action's deadline. The pause takes a part of it at most.
        rng: source of the jitter: calls that one engine has failed together do not come back together.
    """
    pause_s = min(retry_delay_s(attempt, 0.0, rng, LONGEST_PAUSE_S), MOST_PAUSED * max(0.0, left_s))
    return AttemptResult("lost", reason=reason, retry_in_s=pause_s)


@dataclass(slots=True)
class _Wait:
    """One attempt's wait until its model service is resident. It is no part of the attempt's execution."""

    clock: Clock
    began_s: Seconds
    lasted_s: Seconds | None = None

    @property
    def ended(self) -> bool:
        """True if its service was resident, or the attempt has ended."""
        return self.lasted_s is not None

    def end(self) -> Seconds:
        """Return how long it has lasted. The first call ends it."""
        if self.lasted_s is None:
            self.lasted_s = self.clock.monotonic() - self.began_s
        return self.lasted_s


@dataclass(slots=True)
class GpuExecutor:
    """Executes the actions of one node on its engines."""

    serving: Serving
    http: StreamClient
    clock: Clock
    gpus: int
    output_bytes: int
    kernels: KernelActions
    random: Random
    """Source of the jitter of retries."""
    resources: dict[str, ResourceUsage] = field(init=False)
    _users: dict[Chunk, int] = field(default_factory=dict)
    """Chunk -> actions that use it. The first of them counts its GPUs."""

    def __post_init__(self) -> None:
        self.resources = {GPUS: ResourceUsage(self.gpus)}

    def offer(self) -> Offer:
        """Return the kinds of model services, and of CUDA kernels."""
        return Offer(sorted(_NAMES))

    def start(self, grant: Granted) -> asyncio.Task[AttemptResult]:
        """Begin a grant."""
        RUNNING.inc()
        self._count(grant, 1)
        return asyncio.create_task(self._run(grant), name=f"attempt {grant.action}")

    def release(self, grant: Granted, task: asyncio.Task[AttemptResult]) -> None:
        """Count the end of a grant."""
        del task
        RUNNING.dec()
        self._count(grant, -1)

    def _count(self, grant: Granted, change: int) -> None:
        """Count the GPUs of a shared chunk once: the agent adds those of each grant."""
        chunk = _chunk(grant)
        if chunk is None:
            return
        before = self._users.get(chunk, 0)
        self._users[chunk] = before + change
        if min(before, before + change) > 0:
            self.resources[GPUS].use(-change * chunk.size, self.clock.monotonic())
        if not self._users[chunk]:
            del self._users[chunk]

    async def _run(self, grant: Granted) -> AttemptResult:
        chunk = _chunk(grant)
        if grant.work not in _NAMES:
            return refused(f"this node does not execute {grant.work}")
        if chunk is None:
            return lost(f"the grant names no chunk of GPUs: {grant.numbers}")
        if grant.work == CUDA and (reason := self.kernels.refusal(chunk)):
            return refused(reason)
        instance, wait = InstanceId(grant.service, chunk), _Wait(self.clock, self.clock.monotonic())
        try:
            result = await self._served(grant, instance, wait)
        except asyncio.CancelledError:  # the leader has revoked it, or this node stops
            result = AttemptResult("cancelled")
            if not wait.ended:
                result = self._not_ready(result, instance)
        return msgspec.structs.replace(result, restore_s=wait.end())

    def _not_ready(self, result: AttemptResult, instance: InstanceId) -> AttemptResult:
        """Return the result of an attempt that has waited for an engine, with the time at which that is expected."""
        return msgspec.structs.replace(result, ready_in_s=self.serving.ready_in_s(instance))

    async def _served(self, grant: Granted, instance: InstanceId, wait: _Wait) -> AttemptResult:
        """Wait until the service is resident, and make the calls of an action."""
        holder = f"{grant.action}/{grant.stage}/{grant.attempt}"
        try:
            async with self.serving.using(holder, instance, wait.began_s + grant.budget_s) as holding:
                WAIT_SECONDS.observe(wait.end())
                return await self._called(grant, instance, holding, wait.began_s + grant.budget_s)
        except NotServed as error:
            if error.retry_in_s is None:
                return refused(error.reason)
            if not wait.ended and self.clock.monotonic() >= wait.began_s + grant.budget_s:
                return self._not_ready(postponed(error.reason, BUSY_RETRY_S), instance)
            # The time of a probe is that of one chunk. The leader knows by the report that it is unusable, so the
            # action may go elsewhere, or waits until a report changes that.
            return postponed(error.reason, min(error.retry_in_s, BUSY_RETRY_S))

    async def _called(self, grant: Granted, instance: InstanceId, holding: EngineUse, ends_s: Seconds) -> AttemptResult:
        """Perform an action, unless its engine is taken away. `ends_s`: its deadline."""
        holding.ends_s = min(ends_s, self.clock.monotonic() + grant.timeout_s)
        try:
            result = await unless_refused(self._performed(grant, instance), holding)
        except NotServed as error:
            return lost(error.reason)
        except EngineBusy as error:
            holding.ok = True
            return postponed(error.reason, error.retry_in_s or BUSY_RETRY_S)
        except EngineError as error:
            holding.failed = True
            left_s = ends_s - self.clock.monotonic()
            return failed_call(error.reason, grant.attempt, left_s, self.random)
        except Exception as error:  # noqa: BLE001  # our bug, which is no statement about the sample
            _log.error("model_call_crashed", exc_info=error)
            return lost(f"the call failed: {type(error).__name__}")
        holding.ok = self.clock.monotonic() < holding.ends_s
        return result

    async def _performed(self, grant: Granted, instance: InstanceId) -> AttemptResult:
        if grant.work == CUDA:
            return await self.kernels.run(grant, instance.chunk)
        call = EngineAttempt(
            self.serving.address(instance),
            self.http,
            asyncio.get_running_loop().time() + grant.timeout_s,
            self.output_bytes,
        )
        return await perform(grant.work, grant.params, call)


def _chunk(grant: Granted) -> Chunk | None:
    """Return the chunk of a grant; None if its numbers are none."""
    numbers = sorted(grant.numbers)
    if len(numbers) not in SIZES or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return None
    return Chunk(numbers[0], len(numbers))
