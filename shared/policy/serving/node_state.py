"""State of one node: instances by GPU, memory that is counted, and the commands of a stimulus.

Every change of an instance goes through `touch`, so that the instances on its GPUs get their turn (`turns`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from shared.policy.model.chunks import SIZES
from shared.policy.serving import model
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.instance import EngineInstance
from shared.policy.serving.model import Command, InstanceId, Level, ModelServiceSpec, NodeMemory, State, Step
from shared.policy.serving.resting import RestingEngines
from shared.policy.serving.step_times import StepTimes
from shared.policy.serving.timers import Timers


@dataclass(slots=True)
class NodeState:
    """State of one node. A method is O(GPUs of the instance) if its docstring has no other cost."""

    config: ServingConfig
    memory: NodeMemory
    times: StepTimes
    services: dict[str, ModelServiceSpec] = field(default_factory=dict)
    instances: dict[InstanceId, EngineInstance] = field(default_factory=dict)
    """Every instance that was wanted or found since its service was declared."""
    gpus: list[dict[InstanceId, EngineInstance]] = field(default_factory=list)
    """GPU -> its active instances that are not at rest: those that are awake, or have a holder or something to do."""
    bad: dict[int, str] = field(default_factory=dict)
    """Bad GPU -> reason."""
    holders: dict[str, InstanceId] = field(default_factory=dict)
    """Waiting and admitted holders."""
    resting: RestingEngines = field(init=False)
    moving: dict[InstanceId, EngineInstance] = field(default_factory=dict)
    """The instances of `gpus`."""
    sleepers: dict[InstanceId, EngineInstance] = field(default_factory=dict)
    """Instances that may use host memory, the oldest first."""
    waiting: int = 0
    """Waiting holders."""
    arrivals: int = 0
    timers: Timers = field(default_factory=Timers)
    changed: int = 0
    """GPUs of instances that changed since the last turns, as bits."""
    agenda: dict[InstanceId, EngineInstance] = field(default_factory=dict)
    """Instances that have changed since then, and those that have something to do."""
    commands: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resting = RestingEngines([{} for _ in self.gpus])

    def of_service(self, name: str) -> list[EngineInstance]:
        """Instances of a service. O(instances): only changes of a service need it."""
        return [one for one in self.instances.values() if one.id.service == name]

    def get_or_add(self, name: InstanceId, now: float) -> EngineInstance:
        """Return an instance; a new one is cold. One of an undeclared service counts as using all memory."""
        one = self.instances.get(name)
        if one is None:
            host_gb = self.memory.host_gb if self.memory.host_gb < inf else 0.0
            undeclared = ModelServiceSpec(
                name.service, inf, ("cold", "asleep1"), (name.chunk.size,), {}, {"asleep1": host_gb}
            )
            declared = self.services.get(name.service, undeclared)
            one = EngineInstance(name, declared.of_degree(name.chunk.size), since_s=now)
            self.instances[name] = one
        return one

    def touch(self, one: EngineInstance) -> None:
        """Note that an instance has changed."""
        name = one.id
        self.agenda[name] = one
        self.changed |= one.mask
        if name not in self.moving:
            self.resting.remove(one)
            self.moving[name] = one
            for gpu in one.gpus:
                self.gpus[gpu][name] = one

    def put_aside(self, one: EngineInstance) -> None:
        """Remove an instance from its GPUs if it does not matter to others, and let it rest if it has nothing to do.
        Without an engine and its service it is forgotten.
        """
        if one.dormant:
            self.agenda.pop(one.id, None)
        active = one.active
        if active and not one.resting:
            return
        if self.moving.pop(one.id, None) is not None:
            for gpu in one.gpus:
                del self.gpus[gpu][one.id]
        if active:
            self.resting.add(one)
        elif one.id.service not in self.services:
            self.instances.pop(one.id, None)
            self.agenda.pop(one.id, None)
            self.timers.set(one.id, inf)
            self.times.forget(one.id.service)

    def overlapping(self, one: EngineInstance) -> list[EngineInstance]:
        """Other active instances that share a GPU and are not at rest. O(those)."""
        if len(one.gpus) == len(self.gpus):
            return [other for other in self.moving.values() if other is not one]
        first, *more = one.gpus
        found = [other for other in self.gpus[first].values() if other is not one]
        for gpu in more:  # each is found on the GPU where it begins, or on the first one if it begins before that
            found += [other for other in self.gpus[gpu].values() if other.gpus[0] == gpu]
        return found

    def active_on(self, gpu: int) -> list[EngineInstance]:
        """All active instances on a GPU. O(those)."""
        return [*self.gpus[gpu].values(), *self.resting.gpus[gpu].values()]

    def host_free_gb(self) -> float:
        """Host memory that no sleeper may use. O(instances that are not at rest)."""
        return self.memory.host_gb - self.resting.host_gb - sum(one.host_gb for one in self.moving.values())

    def bad_reason(self, name: InstanceId) -> str:
        """Reason for which a GPU of an instance is bad; empty if all are good."""
        if not self.bad:
            return ""
        return next((f"GPU {gpu} is bad: {self.bad[gpu]}" for gpu in name.chunk.gpus if gpu in self.bad), "")

    def has_chunk(self, name: InstanceId) -> bool:
        """Return whether an instance's chunk is an aligned one of this node. O(1)."""
        first, size = name.chunk
        return size in SIZES and first >= 0 and first % size == 0 and first + size <= len(self.gpus)

    def steps_near(self, one: EngineInstance) -> list[EngineInstance]:
        """Other instances that share a GPU and have a step under way. O(instances there that are not at rest)."""
        return [other for other in self.overlapping(one) if other.step is not None]

    # ---- changes of an instance --------------------------------------------------------------------------------

    def set_state(self, one: EngineInstance, state: State, why: str, now: float) -> None:
        """Set the state of an instance. A change is reported, apart from running and idle."""
        self.touch(one)
        before, one.why = one.state, why
        if state == before:
            return
        one.state, one.since_s = state, now
        reported = "resident" if state == "running" else state
        if reported != ("resident" if before == "running" else before):
            self.commands.append(model.ResidencyChanged(one.id, reported, why))

    def set_host(self, one: EngineInstance, level: Level) -> None:
        """Count the host memory of a level for an instance."""
        one.host = level
        self.sleepers.pop(one.id, None)
        if level != "cold" or one.left != "cold":
            self.sleepers[one.id] = one

    def begin(self, one: EngineInstance, step: Step, why: str, now: float, level: Level = "cold") -> None:
        """Begin a step. `level`: of an eviction."""
        assert one.step is None, f"{one.id} has a step under way: {one.step}"
        one.step, one.target = step, level
        one.forget_unanswered()
        one.yields_until_s, one.yielded_s = None, -inf
        if step != "canary":
            one.checked = False
        match step:
            case "load":
                one.claim, one.left = "awake", "cold"
                command: Command = model.LoadEngine(one.id)
                self.set_state(one, "loading", why, now)
            case "restore":
                one.claim = "awake"
                command = model.Restore(one.id)
                self.set_state(one, "restoring", why, now)
            case "canary":
                command = model.RunCanary(one.id)
                self.set_state(one, "loading" if one.state == "loading" else "restoring", why, now)
            case "evict":
                self.set_host(one, level)
                command = model.Evict(one.id, level)
                self.set_state(one, "evicting", why, now)
            case "stop":
                command = model.Stop(one.id)
                self.set_state(one, "evicting", why, now)
        self.commands.append(command)

    def must_stop(self, one: EngineInstance, why: str, now: float) -> None:
        """Have an engine stopped as soon as nothing wakes up on its GPUs: `Turns` begins the step."""
        one.stop_why, one.checked, one.activation = why, False, None
        self.set_state(one, "evicting", why, now)

    def count_unknown(self, one: EngineInstance) -> None:
        """Count all memory that an engine of a former process may use."""
        one.claim = "awake"
        self.set_host(one, max(one.spec.levels, key=lambda level: (one.spec.host_gb.get(level, 0.0), level)))

    def settle_place(self, one: EngineInstance, level: Level, left: Level = "cold") -> None:
        """Count an instance as what was confirmed: asleep at a level, or stopped (`cold`). `left`: see `Stepped`."""
        one.place = one.claim = level
        one.left = left
        self.set_host(one, level)
