"""Values of one node's model services: instances, stimuli and commands.

The service of the node (`services/gpu_manager`) executes each command, and reports what happens as stimuli. Contract of
the executor:
  - each `LoadEngine`, `Evict`, `Restore`, `RunCanary` and `Stop` ends in exactly one `Stepped` within the
    executor's own limit. An `ok` means that the residency was read from the engine afterwards;
  - each admitted holder ends in one `HolderEnded`, unless `RefuseHolder` named it;
  - after `oom` of a restore the engine sleeps still, perhaps with a part restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, NamedTuple

from shared.policy.model.chunks import Chunk

Level = Literal["cold", "asleep1", "asleep2"]
"""Place of an evicted engine. `cold`: stopped. `asleep1`: weights in host memory. `asleep2`: weights dropped."""
Place = Literal["cold", "asleep1", "asleep2", "awake"]
State = Literal[
    "unknown", "cold", "loading", "resident", "running", "draining", "evicting", "evicted", "restoring", "quarantined"
]
"""State of an instance. `unknown`: an engine of a former process whose residency was not found yet. `resident`: idle.
`draining`: its holders go on, and no new one is admitted. `evicting`: also while it is stopped. `loading` and
`restoring`: until the canary has succeeded."""
Step = Literal["load", "evict", "restore", "canary", "stop"]
Outcome = Literal["ok", "oom", "failed"]
Liveness = Literal["alive", "silent", "hung"]
"""Liveness of an engine that has answered no holder for some time. `silent`: it answers nothing, and may be at work.
`hung`: it answers nothing, although its kind answers while it works, or its processes do nothing."""
Residency = Literal["cold", "asleep1", "asleep2", "resident", "unknown"]


class InstanceId(NamedTuple):
    """One engine of a model service on one chunk. Its degree is the chunk's size."""

    service: str
    chunk: Chunk

    def __str__(self) -> str:
        """Return a text for people."""
        first, size = self.chunk
        return f"{self.service} on GPU {first}" if size == 1 else f"{self.service} on GPUs {first}-{first + size - 1}"


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of the engines of one degree, GB."""

    awake_gb: float
    asleep_gb: Mapping[Level, float]
    host_gb: Mapping[Level, float]


@dataclass(frozen=True, slots=True)
class ModelServiceSpec:
    """One model service, as declared. Memory is in GB; that of a degree in `memory_by` is there."""

    name: str
    awake_gb: float
    """Device memory of a resident engine, by GPU."""
    levels: tuple[Level, ...] = ("cold",)
    """Levels that its backend can do; `cold` always."""
    degrees: tuple[int, ...] = (1,)
    asleep_gb: Mapping[Level, float] = field(default_factory=dict)
    """Device memory that stays with a sleeping engine, by GPU; 0 if not named."""
    host_gb: Mapping[Level, float] = field(default_factory=dict)
    """Host memory of a sleeping engine; 0 if not named."""
    concurrency: int = 1
    """Most holders of an instance."""
    min_residency_s: float = 0.0
    """Time after a restore in which an idle instance is kept, unless a holder has waited for `max_wait_s`."""
    priority: int = 0
    """A lower number is evicted later."""
    revision: str = ""
    """Changes with anything else of the entry that makes another engine (command, model, environment)."""
    memory_by: Mapping[int, EngineMemory] = field(default_factory=dict)
    """Degree -> memory of its engines, where it differs."""
    load_s: float | None = None
    """Expected time of a load before the first measurement; None: that of the node's configuration."""

    def gb(self, degree: int) -> float:
        """Return the device memory of each GPU that a resident engine of this degree needs."""
        return self.memory_by.get(degree, self).awake_gb

    def of_degree(self, degree: int) -> ModelServiceSpec:
        """Return the specification of the engines of one degree, with their memory. An instance keeps this copy."""
        if not self.memory_by:
            return self
        one = self.memory_by.get(degree, self)
        return replace(self, awake_gb=one.awake_gb, asleep_gb=one.asleep_gb, host_gb=one.host_gb, memory_by={})

    def same_engine(self, other: ModelServiceSpec) -> bool:
        """Return whether an engine of the other spec can stay: all is equal that it was started with.

        Both are specifications of its degree (`of_degree`).
        """
        mine = (self.awake_gb, self.levels, dict(self.asleep_gb), dict(self.host_gb), self.revision)
        return mine == (other.awake_gb, other.levels, dict(other.asleep_gb), dict(other.host_gb), other.revision)


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Memory budget of a node, GB."""

    device_gb: tuple[float, ...]
    """By GPU."""
    host_gb: float = inf
    """Host memory that sleeping engines may use together."""


# ---- stimuli -----------------------------------------------------------------------------------------------------


class ServiceSet(NamedTuple):
    """A service was declared or changed. Engines of a changed one are drained and stopped (`same_engine`)."""

    spec: ModelServiceSpec


class ServiceRemoved(NamedTuple):
    """A service was removed. Its engines are drained and stopped."""

    name: str


class Wanted(NamedTuple):
    """A holder (one attempt of an action) waits for an instance until `deadline_s`."""

    holder: str
    instance: InstanceId
    deadline_s: float


class HolderEnded(NamedTuple):
    """A holder has ended, or its caller no longer waits. `ok`: the engine has served it."""

    holder: str
    ok: bool = True
    unanswered: bool = False
    """Its time was over before the engine has answered."""
    failed: bool = False
    """The engine has failed its call."""


class Stepped(NamedTuple):
    """A step has ended."""

    instance: InstanceId
    step: Step
    outcome: Outcome
    reason: str = ""
    took_s: float = 0.0
    left: Level = "cold"
    """Of a stop: where it left an engine that was given, and is not ours to stop."""


class EngineDied(NamedTuple):
    """An engine has ended by itself."""

    instance: InstanceId
    reason: str


class LivenessChecked(NamedTuple):
    """A check of an engine's liveness has ended."""

    instance: InstanceId
    found: Liveness
    reason: str = ""


class Expected(NamedTuple):
    """A former process may have left an engine here. `Found` follows. Sent before any `Wanted`."""

    instance: InstanceId


class Found(NamedTuple):
    """Residency of an engine, as read from it. An `unknown` one is stopped."""

    instance: InstanceId
    residency: Residency


class DeviceMarked(NamedTuple):
    """A GPU is bad, or good again."""

    gpu: int
    good: bool
    reason: str = "it was marked bad"


class TimePassed(NamedTuple):
    """Time has passed."""


Stimulus = (
    ServiceSet
    | ServiceRemoved
    | Wanted
    | HolderEnded
    | Stepped
    | EngineDied
    | LivenessChecked
    | Expected
    | Found
    | DeviceMarked
    | TimePassed
)  # fmt: skip


# ---- commands ----------------------------------------------------------------------------------------------------
# Dataclasses, because named tuples of different commands with the same fields would be equal.


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Start an engine and wait until it serves."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Evict:
    """Put an engine to sleep at a level; never `cold`, which is `Stop`."""

    instance: InstanceId
    level: Level


@dataclass(frozen=True, slots=True)
class Restore:
    """Wake a sleeping engine."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class RunCanary:
    """Send the request with the known answer."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Stop:
    """End an engine and all of its processes, also if it hangs. Its memory is free afterwards."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class CancelStep:
    """Cancel the load or restore under way. Its end is reported as always: as failed, unless it has succeeded."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort the running requests of an engine. No step: their holders end."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class CheckLiveness:
    """Read whether an engine answers at all, beside its holders. No step. Once a step of it begins, its end is not
    reported any more. The reading wakes nothing and sends no request to a model.
    """

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Admit:
    """Let a holder use its instance."""

    holder: str
    instance: InstanceId


@dataclass(frozen=True, slots=True)
class RefuseHolder:
    """Answer a holder, waiting or admitted, with an error."""

    holder: str
    reason: str
    retry_in_s: float | None
    """None: the same request will not succeed before the services or the node are changed."""


@dataclass(frozen=True, slots=True)
class ResidencyChanged:
    """The state of an instance has changed: for the leader, logs and metrics. `running` is reported as `resident`."""

    instance: InstanceId
    state: State
    reason: str


@dataclass(frozen=True, slots=True)
class YieldChanged:
    """A late load or restore yields, or no longer: for the leader. Nobody may wait for it while it yields."""

    instance: InstanceId
    yields: bool


Command = (
    LoadEngine
    | Evict
    | Restore
    | RunCanary
    | Stop
    | CancelStep
    | Abort
    | CheckLiveness
    | Admit
    | RefuseHolder
    | ResidencyChanged
    | YieldChanged
)
