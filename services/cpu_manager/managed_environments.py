"""One trajectory's place on this node: its environment, who acts in it, and why it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from services.cpu_manager.environments.protocol import Environment
from services.cpu_manager.results import Done
from shared.messages.environments import MEMORY, EnvironmentSpec
from shared.messages.outcomes import Stays
from shared.policy.model.formulation import STARTS, TrajectoryEnd
from shared.runtime.units import Seconds

Word = Literal["closed", "idle", "lifetime", "died", "stopped"]
"""Why an environment ends, in metrics."""

ENDED: dict[Word, TrajectoryEnd] = {
    "closed": "closed",
    "idle": "expired",
    "lifetime": "expired",
    "died": "lost",
    "stopped": "lost",
}
"""What the leader is told of it."""


class Ending(NamedTuple):
    """Why one environment ends."""

    word: Word
    reason: str
    """For people."""

    def done(self) -> Done:
        """The outcome of an attempt that came too late, or was cut by it."""
        return Done("environment-lost", reason=self.reason, environment_ended=ENDED[self.word])


CLOSED = Ending("closed", "its trajectory was closed")
DIED = Ending("died", "its environment has died")
NONE_HERE = Ending("died", "this node has no environment of its trajectory")


@dataclass(slots=True, eq=False)
class ManagedEnvironment:
    """From the start of the attempt that makes the environment until it is closed and told."""

    trajectory: str
    spec: EnvironmentSpec
    environment: Environment | None = None
    """None: not made yet."""
    since: Seconds = 0.0
    """When it was made, which its lifetime counts from."""
    rests_since: Seconds = 0.0
    acting: set[asyncio.Task[Done]] = field(default_factory=set)
    """Attempts under way. The leader sends one at a time; another one waits for its turn."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: Ending | None = None
    """Set once: nothing begins in it any more."""
    closing: bool = False
    """Nothing acts in it any more, and it is being closed."""

    told: bool = False
    """That it stands is known to the leader, or will be with the outcome of its first action."""

    def stays(self) -> Stays:
        """As the leader's books have it."""
        return stays(self.trajectory, self.spec, making=self.environment is None)

    def ends_at(self) -> tuple[Seconds, Ending]:
        """When its own limits end it as things stand, and which of them does."""
        spec = self.spec
        lifetime = self.since + spec.lifetime_s, Ending("lifetime", f"it has lived for {spec.lifetime_s:g} s")
        if self.acting:
            return lifetime
        idle = self.rests_since + spec.idle_s, Ending("idle", f"nothing was done in it for {spec.idle_s:g} s")
        return min(idle, lifetime)

    def die(self, reason: str = "") -> None:
        """It was found dead; unless it was being ended anyway, that is how it ends."""
        if self.ending is None:
            self.ending = Ending("died", reason) if reason else DIED

    def end(self, ending: Ending) -> None:
        """Let nothing begin in it, and cut what acts."""
        self.ending = ending
        for task in self.acting:
            cut(task)


def stays(trajectory: str, spec: EnvironmentSpec, *, making: bool) -> Stays:
    """What an environment holds of its node: memory for its whole life, one of the starts while it is made."""
    units = {MEMORY: spec.memory_mb, STARTS: 1} if making else {MEMORY: spec.memory_mb}
    return Stays(trajectory=trajectory, units=units)


def cut(task: asyncio.Task[Done]) -> None:
    """Cancel it; once, for another cancel would disturb the cleaning up after the first."""
    if not task.cancelling():
        task.cancel()


@runtime_checkable
class Aged(Protocol):
    """A survivor that knows how old it is."""

    @property
    def age_s(self) -> Seconds: ...


def age_s(environment: Environment) -> Seconds:
    """Seconds since it was made, as far as it knows."""
    return environment.age_s if isinstance(environment, Aged) else 0.0
