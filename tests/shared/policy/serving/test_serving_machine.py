"""Random histories of a node against what its executor sees: outcomes, delays, deaths, restarts and changes.

A second machine, in which no engine rests, decides the same.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shared.policy.model.chunks import Chunk
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    DeviceMarked,
    EngineDied,
    EngineMemory,
    Expected,
    Found,
    HolderEnded,
    InstanceId,
    Level,
    Liveness,
    LivenessChecked,
    ModelServiceSpec,
    NodeMemory,
    Outcome,
    Residency,
    ServiceRemoved,
    ServiceSet,
    Stimulus,
    TimePassed,
    Wanted,
)
from shared.policy.serving.node_serving import NodeServing
from tests.shared.policy.serving.fake_node import FakeNode
from tests.shared.policy.serving.restless import check_resting, restless

CONFIG = ServingConfig(
    max_wait_s=20.0,
    max_drain_s=30.0,
    found_limit_s=15.0,
    first_probe_s=8.0,
    most_probe_s=40.0,
    most_waiting=12,
    hung_after_s=12.0,
)
MEMORY = NodeMemory((24.0, 24.0, 24.0, 16.0), 30.0)
ASLEEP: dict[Level, float] = {"asleep1": 1.0, "asleep2": 2.0}
SPECS = (
    ModelServiceSpec("a", 14.0, ("cold", "asleep1", "asleep2"), (1, 2), ASLEEP, {"asleep1": 14.0}, min_residency_s=5.0),
    ModelServiceSpec("b", 9.0, ("cold", "asleep2"), (1,), ASLEEP, {}, concurrency=3, priority=1),
    ModelServiceSpec("c", 12.0, ("cold",), (2, 4), concurrency=2),
    ModelServiceSpec(
        "d",
        20.0,
        ("cold", "asleep1"),
        (1, 2),
        {"asleep1": 0.5},
        {"asleep1": 20.0},
        min_residency_s=9.0,
        memory_by={2: EngineMemory(11.0, {"asleep1": 0.3}, {"asleep1": 18.0})},
    ),
)
INSTANCES = [
    InstanceId(spec.name, Chunk(first, size)) for spec in SPECS for size in spec.degrees for first in range(0, 4, size)
]
OUTCOMES: tuple[Outcome, ...] = ("ok", "ok", "ok", "oom", "failed")
MOVES = st.lists(
    st.tuples(st.sampled_from(["want", "step", "step", "step", "end", "end", "pause"]), st.integers(0, 40)),
    min_size=5,
    max_size=30,
)
MOST_MOVES = 3000


class ServingMachine(RuleBasedStateMachine):
    """Histories of one node."""

    @initialize()
    def begin(self) -> None:
        self.now, self.serial = 0.0, 0
        self.node = FakeNode(MEMORY, CONFIG.max_wait_s)
        self.start()
        for spec in SPECS:
            self.set(spec)

    def start(self) -> None:
        self.serving, self.restless = NodeServing(MEMORY, CONFIG), restless(NodeServing(MEMORY, CONFIG))

    def handle(self, stimulus: Stimulus) -> None:
        commands = self.serving.handle(self.now, stimulus)
        plain = self.restless.handle(self.now, stimulus)
        assert sorted(map(repr, commands)) == sorted(map(repr, plain)), f"{commands}, and {plain} if no engine rests"
        check_resting(self.serving)
        self.node.apply(commands, self.now)
        shown = {one.instance: one for one in self.serving.view()}
        assert sorted(holder for one in shown.values() for holder in one.waiting) == sorted(self.node.waiting)
        assert sorted(holder for one in shown.values() for holder in one.running) == sorted(self.node.running)
        assert {name: one.step for name, one in shown.items() if one.step} == {
            name: step for name, (step, _) in self.node.steps.items()
        }
        for name, engine in self.node.engines.items():
            if name in shown or name not in self.node.unfound:  # a new process was not told of all engines yet
                assert shown[name].device_gb >= engine.device_gb, "less memory is counted than is used"
                assert shown[name].host_gb >= engine.host_gb

    # ---- mostly, things go well ----

    @rule(moves=MOVES)
    def serve(self, moves: list[tuple[str, int]]) -> None:
        """Holders come and end, steps succeed, and time passes. Without it most histories are series of disasters."""
        self.recover()
        for move, number in moves:
            steps, running = sorted(self.node.steps), sorted(self.node.running)
            if move == "want":
                self.want_from(INSTANCES[number % len(INSTANCES)], inf)
            elif move == "end" and running:
                self.end_holder(running[number % len(running)], "ok")
            elif move == "step" and steps:
                self.finish_step(steps[number % len(steps)], "ok", (0.2, 2.0, 9.0)[number % 3])
            else:
                self.pause((1.0, 3.0, 8.0)[number % 3])

    def recover(self) -> None:
        """Declare all services, and mark all GPUs good."""
        for spec in SPECS:
            if spec.name not in self.node.specs:
                self.set(spec)
        for gpu in sorted(self.node.bad):
            self.node.bad.discard(gpu)
            self.handle(DeviceMarked(gpu, good=True))

    # ---- holders ----

    @rule(one=st.sampled_from(INSTANCES), wait_s=st.sampled_from([4.0, 60.0, inf, inf]))
    def want(self, one: InstanceId, wait_s: float) -> None:
        self.want_from(one, wait_s)

    def want_from(self, one: InstanceId, wait_s: float) -> None:
        self.serial += 1
        holder = f"h{self.serial}"
        self.node.waiting[holder] = one, self.now, self.now + wait_s
        self.handle(Wanted(holder, one, self.now + wait_s))
        before = set(self.node.waiting) | set(self.node.running)
        if holder in before:
            assert self.serving.handle(self.now, Wanted(holder, one, inf)) == [], "a repeated arrival"

    @precondition(lambda self: self.node.running)
    @rule(data=st.data(), how=st.sampled_from(["ok", "", "unanswered", "failed", "failed"]))
    def end(self, data: st.DataObject, how: str) -> None:
        self.end_holder(data.draw(st.sampled_from(sorted(self.node.running))), how)

    def end_holder(self, holder: str, how: str) -> None:
        del self.node.running[holder]
        ok = how == "ok"
        self.handle(HolderEnded(holder, ok, how == "unanswered", how == "failed"))
        assert self.serving.handle(self.now, HolderEnded(holder, ok)) == [], "a repeated end"

    @precondition(lambda self: self.node.checking)
    @rule(data=st.data(), found=st.sampled_from(["alive", "alive", "silent", "hung"]))
    def check(self, data: st.DataObject, found: Liveness) -> None:
        one = data.draw(st.sampled_from(sorted(self.node.checking)))
        self.node.checking.discard(one)
        self.handle(LivenessChecked(one, found, "injected"))
        if one not in self.node.checking:
            assert self.serving.handle(self.now, LivenessChecked(one, "hung", "late")) == [], "nobody has asked"

    @precondition(lambda self: self.node.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.node.waiting)))
        del self.node.waiting[holder]
        self.handle(HolderEnded(holder))

    # ---- engines ----

    @precondition(lambda self: self.node.steps)
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES), took_s=st.sampled_from([0.1, 3.0, 40.0]))
    def finish(self, data: st.DataObject, outcome: Outcome, took_s: float) -> None:
        self.finish_step(data.draw(st.sampled_from(sorted(self.node.steps))), outcome, took_s)

    def finish_step(self, one: InstanceId, outcome: Outcome, took_s: float) -> None:
        stepped = self.node.finish(one, outcome, self.now, took_s)
        self.handle(stepped)
        if one not in self.node.steps:
            assert self.serving.handle(self.now, stepped) == [], "a repeated end of a step"

    @precondition(lambda self: self.node.engines)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.node.engines)))
        if one not in self.node.steps and one not in self.node.unfound:
            self.node.engines[one].dead = True
        if one not in self.node.unfound:
            self.handle(EngineDied(one, "injected"))

    @precondition(lambda self: self.node.unfound)
    @rule(data=st.data(), read=st.booleans())
    def find(self, data: st.DataObject, read: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.node.unfound)))
        engine = self.node.engines[one]
        residency: Residency = "resident" if engine.place == "awake" else engine.place
        if not read or engine.partial or engine.dead or residency == "cold":
            residency = "unknown"
        self.node.unfound.discard(one)
        self.handle(Found(one, residency))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        node = self.node
        for one in sorted(node.steps):
            node.finish(one, "ok" if data.draw(st.booleans()) else "failed", self.now)
        node.waiting.clear()
        node.running.clear()
        node.checking.clear()
        node.states.clear()
        node.unfound = set(node.engines)
        for engine in node.engines.values():
            engine.canaried, engine.restored_s = False, -inf
        self.start()
        for spec in list(node.specs.values()):
            self.handle(ServiceSet(spec))
        for gpu in node.bad:
            self.handle(DeviceMarked(gpu, good=False))
        for one in sorted(node.engines):
            self.handle(Expected(one))

    # ---- declarations, devices, time ----

    def set(self, spec: ModelServiceSpec) -> None:
        self.node.specs[spec.name] = spec
        self.handle(ServiceSet(spec))

    @rule(spec=st.sampled_from(SPECS), revision=st.sampled_from(["", "2"]), priority=st.sampled_from([0, 5]))
    def change(self, spec: ModelServiceSpec, revision: str, priority: int) -> None:
        self.set(replace(spec, revision=revision, priority=priority))

    @rule(spec=st.sampled_from(SPECS))
    def remove(self, spec: ModelServiceSpec) -> None:
        self.node.specs.pop(spec.name, None)
        self.handle(ServiceRemoved(spec.name))
        assert not [one for one, _, _ in self.node.waiting.values() if one.service == spec.name]

    @rule(gpu=st.integers(0, 3), good=st.sampled_from([True, True, False]))
    def mark(self, gpu: int, good: bool) -> None:
        (self.node.bad.discard if good else self.node.bad.add)(gpu)
        self.handle(DeviceMarked(gpu, good))
        if not good:
            holders = [*self.node.running.values(), *(one for one, _, _ in self.node.waiting.values())]
            assert not [one for one in holders if gpu in one.chunk.gpus]

    @rule(pause_s=st.sampled_from([0.5, 6.0, 25.0, 100.0]))
    def wait(self, pause_s: float) -> None:
        self.pause(pause_s)

    def pause(self, pause_s: float) -> None:
        end_s = self.now + pause_s
        while (wake_s := self.serving.next_wake_s()) <= end_s:
            self.now = max(self.now, wake_s)
            self.handle(TimePassed())
            assert self.serving.next_wake_s() > self.now, "time would not pass"
        self.now = end_s
        self.handle(TimePassed())

    def teardown(self) -> None:
        """Every holder ends if steps and holders end, and time passes."""
        if not hasattr(self, "node"):
            return
        for _ in range(MOST_MOVES):
            if self.node.steps:
                self.finish_step(min(self.node.steps), "ok", 1.0)
            elif self.node.running:
                self.end_holder(min(self.node.running), "ok")
            elif self.node.waiting and (wake_s := self.serving.next_wake_s()) < inf:
                self.now = max(self.now, wake_s)
                self.handle(TimePassed())
            else:
                break
        assert not self.node.waiting, "holders wait for nothing"
        assert not self.node.running
        for spec in SPECS:
            self.remove(spec)
        while self.node.steps or self.node.unfound:
            if self.node.steps:
                self.finish_step(min(self.node.steps), "ok", 1.0)
            else:
                self.pause(CONFIG.found_limit_s)
        assert not self.serving.view() or all(one.state == "quarantined" for one in self.serving.view())


TestServingMachine = ServingMachine.TestCase
TestServingMachine.settings = settings(deadline=None, max_examples=200, stateful_step_count=60)
