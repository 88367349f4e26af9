"""A node as the executor sees it: engines, steps and holders, built from commands alone. It asserts the laws.

Memory is what engines may really use at worst: a load, a restore or a failed step uses all of the awake memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.serving.model import (
    Abort,
    Admit,
    CancelStep,
    CheckLiveness,
    Command,
    EngineMemory,
    Evict,
    InstanceId,
    Level,
    LoadEngine,
    ModelServiceSpec,
    NodeMemory,
    Outcome,
    Place,
    RefuseHolder,
    ResidencyChanged,
    Restore,
    RunCanary,
    Step,
    Stepped,
    Stop,
    YieldChanged,
)

EXCLUSIVE = ("load", "restore", "canary")
ROUNDING = 1e-6


@dataclass(slots=True)
class Engine:
    """What runs for an instance."""

    spec: ModelServiceSpec
    place: Place
    degree: int = 1
    partial: bool = False
    """A step has failed: it may use its awake memory whatever its place is."""
    canaried: bool = False
    dead: bool = False
    host: Level = "cold"
    """Level whose host memory it may use."""
    restored_s: float = float("-inf")

    @property
    def device_gb(self) -> float:
        if self.place == "awake" or self.partial:
            return self._memory.awake_gb
        return 0.0 if self.place == "cold" else self._memory.asleep_gb.get(self.place, 0.0)

    @property
    def host_gb(self) -> float:
        return self._memory.host_gb.get(self.host, 0.0)

    @property
    def _memory(self) -> EngineMemory | ModelServiceSpec:
        return self.spec.memory_by.get(self.degree, self.spec)


@dataclass(slots=True)
class FakeNode:
    """Truth of one node."""

    memory: NodeMemory
    max_wait_s: float
    specs: dict[str, ModelServiceSpec] = field(default_factory=dict)
    engines: dict[InstanceId, Engine] = field(default_factory=dict)
    steps: dict[InstanceId, tuple[Step, Level]] = field(default_factory=dict)
    waiting: dict[str, tuple[InstanceId, float, float]] = field(default_factory=dict)
    """Holder -> its instance, arrival and deadline."""
    running: dict[str, InstanceId] = field(default_factory=dict)
    unfound: set[InstanceId] = field(default_factory=set)
    """Engines of a former process whose residency was not reported yet."""
    bad: set[int] = field(default_factory=set)
    aborted: set[InstanceId] = field(default_factory=set)
    """Instances whose requests were aborted, and have holders still."""
    checking: set[InstanceId] = field(default_factory=set)
    """Instances whose liveness is read."""
    cancelled: set[InstanceId] = field(default_factory=set)
    """Instances whose load or restore is being cancelled."""
    yielding: set[InstanceId] = field(default_factory=set)
    """Instances whose load or restore yields."""
    out_of_memory: bool = False
    """The stimulus was a step that ran out of memory."""
    seen: set[type[Command]] = field(default_factory=set)
    """Kinds of commands."""
    states: dict[InstanceId, str] = field(default_factory=dict)

    # ---- commands ----

    def apply(self, commands: list[Command], now: float) -> None:
        for command in commands:
            self.seen.add(type(command))
            match command:
                case LoadEngine(one):
                    assert one not in self.engines, f"{one} has an engine: it would get a second one"
                    assert one.service in self.specs, f"{one} is not declared"
                    assert not self.bad & set(one.chunk.gpus), f"{one} is loaded on a bad GPU"
                    self.engines[one] = Engine(self.specs[one.service], "cold", one.chunk.size, partial=True)
                    self._begin(one, "load")
                case Restore(one):
                    engine = self.engines[one]
                    assert engine.place in ("asleep1", "asleep2"), f"{one} does not sleep"
                    assert not engine.dead
                    engine.partial = True
                    self._begin(one, "restore")
                case RunCanary(one):
                    assert self.engines[one].place == "awake", f"{one} is not awake"
                    assert not self.engines[one].dead
                    self._begin(one, "canary")
                case Evict(one, level):
                    self._idle(one)
                    engine = self.engines[one]
                    assert engine.place == "awake", f"{one} is not awake"
                    assert not engine.dead
                    assert level in engine.spec.levels
                    assert level != "cold"
                    self._victim(one, now)
                    engine.host, engine.canaried = level, False
                    self._begin(one, "evict", level)
                case Stop(one):
                    self._idle(one)
                    self.unfound.discard(one)
                    if one in self.engines:
                        self.engines[one].canaried = False
                    self._begin(one, "stop")
                case CancelStep(one):
                    self._cancel(one, now)
                case Admit(holder, one):
                    self._admit(holder, one, now)
                case RefuseHolder(holder, reason, retry_s):
                    assert (self.waiting.pop(holder, None) is None) != (self.running.pop(holder, None) is None)
                    assert reason
                    assert retry_s is None or retry_s > 0
                case Abort() | CheckLiveness() | ResidencyChanged() | YieldChanged():
                    self._note(command)
        self.out_of_memory = False
        self._check(now)

    def _note(self, command: Abort | CheckLiveness | ResidencyChanged | YieldChanged) -> None:
        match command:
            case YieldChanged(one, yields):
                assert self.steps[one][0] in ("load", "restore"), f"{one} has no step that could yield"
                assert yields != (one in self.yielding), "no change"
                self.yielding ^= {one}
            case Abort(one):
                self.aborted.add(one)
            case CheckLiveness(one):
                assert one in self.running.values(), f"{one} is read, and has no holder"
                assert one not in self.checking, f"two checks of {one} are under way"
                assert one not in self.steps
                self.checking.add(one)
            case ResidencyChanged(one, state, _):
                assert self.states.get(one, "cold") != state, "no change"
                self.states[one] = state

    def _cancel(self, one: InstanceId, now: float) -> None:
        """A cancellation is for a waiting holder of another instance, which is overdue if the step has holders too."""
        assert self.steps[one][0] in ("load", "restore"), f"{one} has no such step"
        assert one not in self.cancelled, f"{one} is cancelled twice"
        waits = [(other, at_s) for other, at_s, _ in self.waiting.values()]
        others = [at_s for other, at_s in waits if other != one and other.chunk.overlaps(one.chunk)]
        assert others, f"{one} is cancelled for nobody"
        held = one in [other for other, _ in waits]
        assert not held or any(now >= at_s + self.max_wait_s for at_s in others), f"{one} is cancelled too early"
        self.cancelled.add(one)

    def _victim(self, one: InstanceId, now: float) -> None:
        """An eviction makes room for a waiting holder, and takes no protected victim for one that is not overdue."""
        waits = [(other, at_s) for other, at_s, _ in self.waiting.values()]
        others = [at_s for other, at_s in waits if other != one and other.chunk.overlaps(one.chunk)]
        assert others, f"{one} is evicted for nobody"
        kept_s = self.engines[one].restored_s + self.specs[one.service].min_residency_s
        if now < kept_s or one in [other for other, _ in waits]:
            overdue = any(now >= at_s + self.max_wait_s for at_s in others)
            assert overdue or self.out_of_memory, f"{one} is evicted too early"

    def _begin(self, one: InstanceId, step: Step, level: Level = "cold") -> None:
        assert one not in self.steps, f"{one} has two steps under way"
        self.checking.discard(one)
        beside = {self.steps[other][0] for other in self.steps if other.chunk.overlaps(one.chunk)}
        if step in EXCLUSIVE:
            assert not beside, f"{step} of {one} beside {beside}"
            users = [user for user in self.running.values() if user.chunk.overlaps(one.chunk)]
            assert not users, f"{step} of {one} beside holders of {users}"
            assert not any(other.chunk.overlaps(one.chunk) for other in self.unfound), "beside an unknown engine"
        else:
            assert not beside & set(EXCLUSIVE), f"{step} of {one} beside {beside}"
        self.steps[one] = step, level
        if step in ("load", "restore", "evict"):
            self._fits()

    def _idle(self, one: InstanceId) -> None:
        assert one not in self.running.values(), f"{one} has holders"

    def _fits(self) -> None:
        for gpu, have in enumerate(self.memory.device_gb):
            used = sum(engine.device_gb for one, engine in self.engines.items() if gpu in one.chunk.gpus)
            assert used <= have + ROUNDING, f"GPU {gpu}: {used} GB of {have}"
        host = sum(engine.host_gb for engine in self.engines.values())
        assert host <= self.memory.host_gb + ROUNDING, f"host memory: {host} GB of {self.memory.host_gb}"

    def _admit(self, holder: str, one: InstanceId, now: float) -> None:
        wanted, _, deadline_s = self.waiting.pop(holder)
        assert wanted == one, f"{holder} wants {wanted}, and is admitted to {one}"
        assert now < deadline_s, "admitted after its deadline"
        engine = self.engines[one]
        assert engine.place == "awake", f"{one} is not awake"
        assert engine.canaried, f"{one} was not checked"
        assert not engine.dead
        assert one not in self.unfound
        assert self.states[one] == "resident", f"{one} was reported {self.states[one]}"
        beside = [other for other in self.steps if other.chunk.overlaps(one.chunk)]
        assert not beside, f"admitted to {one} beside steps of {beside}"
        users = {user for user in self.running.values() if user.chunk.overlaps(one.chunk)}
        assert users <= {one}, f"admitted to {one} beside holders of {users}"
        self.running[holder] = one
        assert list(self.running.values()).count(one) <= self.specs[one.service].concurrency

    def _check(self, now: float) -> None:
        for holder, (_, _, deadline_s) in self.waiting.items():
            assert now < deadline_s, f"{holder} waits after its deadline"
        self.aborted &= set(self.running.values())
        wanted = {one for one, _, _ in self.waiting.values()}
        assert not wanted & self.yielding, "a holder waits for a step that yields"
        for one, (step, _) in self.steps.items():
            if step == "load" and one not in wanted and one not in self.cancelled:
                for other in wanted:
                    used = any(user.chunk.overlaps(other.chunk) for user in self.running.values())
                    kept = used or other in self.steps or not other.chunk.overlaps(one.chunk)
                    assert kept, f"{other} waits for the load of {one}, for which nobody waits"

    # ---- what happens ----

    def finish(self, one: InstanceId, outcome: Outcome, now: float, took_s: float = 1.0) -> Stepped:
        """End a step."""
        self.out_of_memory = outcome == "oom"
        step, level = self.steps.pop(one)
        self.cancelled.discard(one)
        self.yielding.discard(one)
        engine = self.engines.get(one)
        if outcome == "ok" and engine is not None:
            match step:
                case "load" | "restore":
                    engine.place, engine.partial, engine.host = "awake", False, "cold"
                case "canary":
                    engine.canaried, engine.restored_s = True, now
                case "evict":
                    engine.place, engine.partial = level, False
                case "stop":
                    del self.engines[one]
        elif engine is not None and step != "stop":
            engine.partial = True
        return Stepped(one, step, outcome, "" if outcome == "ok" else "injected", took_s)
