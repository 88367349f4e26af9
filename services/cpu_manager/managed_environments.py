"""State of one trajectory's environment on this node: its attempts, and the reason of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from services.cpu_manager.environments.limit import ExecutionLimit
from services.cpu_manager.environments.protocol import Environment, RuntimeUnavailable
from shared.kinds.registry import all_kinds
from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import Granted
from shared.messages.outcomes import EnvironmentHeld
from shared.node.attempts import cancel_once
from shared.policy.model.formulation import TrajectoryEnd
from shared.policy.model.results import AttemptResult
from shared.runtime import log
from shared.runtime.units import Seconds

EndReason = Literal["closed", "idle", "lifetime", "died", "stopped"]
"""Reason of an environment's end, in metrics."""

ENDED: dict[EndReason, TrajectoryEnd] = {
    "closed": "closed",
    "idle": "expired",
    "lifetime": "expired",
    "died": "lost",
    "stopped": "lost",
}
"""The same as it is reported to the leader."""


class Ending(NamedTuple):
    """Reason of an environment's end."""

    reason_code: EndReason
    reason: str
    """For people."""

    def result(self) -> AttemptResult:
        """Return the outcome of an attempt that came too late, or that this end interrupted."""
        return AttemptResult("environment-lost", reason=self.reason, environment_ended=ENDED[self.reason_code])


_log = log.get(__name__)

PARK_AGAIN_S = 0.02
"""Pause before the next try while the agent has not received the action yet, or the action is ending."""
FREEZE_AGAIN_S = 1.0
"""Pause before the next try if the environment could not be frozen, for example because its engine is restarted."""
CLOSED = Ending("closed", "its trajectory was closed")
DIED = Ending("died", "its environment has died")
NONE_HERE = Ending("died", "this node has no environment of its trajectory")


class UnparkedAction(NamedTuple):
    """An action that is not parked, in its environment."""

    grant: Granted
    environment: Environment
    thaws: int
    """Continuations of its environment so far: while it is frozen, it only seems to be idle."""


@dataclass(slots=True, eq=False)
class ManagedEnvironment:
    """Lifecycle of one environment on this node: from the attempt that creates it until its closing is reported."""

    trajectory: str
    spec: EnvironmentSpec
    environment: Environment | None = None
    """None: not created yet."""
    since: Seconds = 0.0
    """Time of its creation. Its lifetime counts from here."""
    idle_since: Seconds = 0.0
    acting: set[asyncio.Task[AttemptResult]] = field(default_factory=set)
    """Running attempts. The leader sends one at a time; if another comes, it waits for `lock`."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    actor: asyncio.Task[AttemptResult] | None = None
    """The attempt that acts in it now."""
    grant: Granted | None = None
    """Of that attempt."""
    parked: bool = False
    """That attempt is frozen, and has no cores."""
    thaws: int = 0
    """Increases with each continuation."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is one."""
    limit: ExecutionLimit | None = None
    """Of that attempt."""
    ending: Ending | None = None
    """Set once. After that no attempt begins in it."""
    closing: bool = False
    """True if its closing has begun; no attempt runs in it any more."""
    reported: bool = False
    """True if its existence was reported to the leader, or will be with the outcome of its first action."""

    def held(self) -> EnvironmentHeld:
        """Return what it holds, as the leader counts it."""
        return environment_units(self.trajectory, self.spec, creating=self.environment is None)

    def ends_at(self) -> tuple[Seconds, Ending]:
        """Return when its own limits will end it in its present state, and the limit that comes first."""
        spec = self.spec
        lifetime = self.since + spec.lifetime_s, Ending("lifetime", f"its lifetime of {spec.lifetime_s:g} s is over")
        if self.acting:
            return lifetime
        idle = self.idle_since + spec.idle_s, Ending("idle", f"it was idle for {spec.idle_s:g} s")
        return min(idle, lifetime)

    @contextmanager
    def turn(self, grant: Granted, limit: ExecutionLimit) -> Iterator[ExecutionLimit]:
        """Enclose the current task's turn to act."""
        self.actor, self.grant, self.limit = asyncio.current_task(), grant, limit
        self.begun.set()
        try:
            yield limit
        finally:
            self.actor = self.grant = self.limit = None
            self.parked = False
            self.begun.clear()

    async def park(self, task: asyncio.Task[AttemptResult]) -> bool:
        """Park this attempt as soon as it acts. Cancel this if the attempt has ended."""
        await self.begun.wait()
        try:
            while self.actor is task and self.environment is not None:
                pause_s = PARK_AGAIN_S
                try:
                    if await self.environment.park():
                        if self.actor is not task or self.limit is None:
                            return False
                        self.limit.hold()
                        self.parked = True
                        return True
                except RuntimeUnavailable as error:
                    _log.warning("environment_not_frozen", trajectory=self.trajectory, reason=str(error))
                    pause_s = FREEZE_AGAIN_S
                await asyncio.sleep(pause_s)
        except NotImplementedError as error:
            _log.warning("not_parked", trajectory=self.trajectory, reason=str(error))
        return False

    async def resume(self, task: asyncio.Task[AttemptResult], cores: frozenset[int]) -> None:
        """Continue this parked attempt on these cores."""
        if self.actor is task and self.environment is not None:
            if self.limit is not None:
                self.limit.proceed()
            await self.environment.resume(cores)
            self.thaws += 1
            if self.actor is task:  # else it has ended meanwhile, and this is about another one
                self.parked = False

    def die(self, reason: str = "") -> None:
        """Record that it was found dead. An end that has already begun keeps its reason."""
        if self.ending is None:
            self.ending = Ending("died", reason) if reason else DIED

    def end(self, ending: Ending) -> None:
        """Record the end: no attempt begins any more, and running ones are cancelled."""
        self.ending = ending
        for task in self.acting:
            cancel_once(task)


def environment_units(trajectory: str, spec: EnvironmentSpec, *, creating: bool) -> EnvironmentHeld:
    """Return what an environment holds of its node: its memory until its end, and one of the starts during creation."""
    kinds = all_kinds()
    units = kinds.held_units(spec) if creating else kinds.lasting_units(spec)
    return EnvironmentHeld(trajectory=trajectory, units=units)


@runtime_checkable
class HasAge(Protocol):
    """An environment of an earlier manager whose runtime reports its age."""

    @property
    def age_s(self) -> Seconds: ...


def age_s(environment: Environment) -> Seconds:
    """Return the seconds since its creation; 0 if its runtime does not report its age."""
    return environment.age_s if isinstance(environment, HasAge) else 0.0
