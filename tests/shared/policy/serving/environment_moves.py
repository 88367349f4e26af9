"""States of the model checker, and what the environment of a node may do next in each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    DeviceMarked,
    EngineDied,
    Expected,
    Found,
    HolderEnded,
    InstanceId,
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
from tests.shared.policy.serving.state_keys import node_key, state_key

STEP_S = 1.0
CONFIG = ServingConfig(
    max_wait_s=4.0,
    yield_s=0.0,
    max_drain_s=4.0,
    abort_limit_s=4.0,
    hung_after_s=inf,
    found_limit_s=4.0,
    first_probe_s=4.0,
    most_probe_s=4.0,
    most_deaths=2,
    evict_s=dict.fromkeys(("cold", "asleep1", "asleep2"), STEP_S),
    restore_s=dict.fromkeys(("cold", "asleep1", "asleep2"), STEP_S),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each thing may still happen."""

    failures: int = 0
    deaths: int = 0
    restarts: int = 0
    cancels: int = 0
    removals: int = 0
    changes: int = 0
    bad_gpus: int = 0
    silences: int = 0
    """Checks that find an engine silent or hung."""
    unanswered: int = 0
    """Holders whose time is over."""


@dataclass(frozen=True, slots=True)
class Case:
    """One small case."""

    memory: NodeMemory
    services: tuple[ModelServiceSpec, ...]
    wanted: tuple[InstanceId, ...]
    """A holder for each; in any order."""
    budget: Budget = Budget()
    config: ServingConfig = CONFIG


@dataclass(slots=True)
class CheckedState:
    """One state."""

    serving: NodeServing
    node: FakeNode
    now: float
    to_come: tuple[int, ...]
    """Numbers of holders that have not arrived."""
    budget: Budget

    def handle(self, stimulus: Stimulus) -> None:
        self.node.apply(self.serving.handle(self.now, stimulus), self.now)

    def key(self) -> Hashable:
        """Return what decides the future."""
        return state_key(self.serving, self.now), node_key(self.node), self.to_come, self.budget

    def done(self) -> bool:
        return not (self.to_come or self.node.waiting or self.node.running)


def first_state(case: Case) -> CheckedState:
    node = FakeNode(case.memory, case.config.max_wait_s, {spec.name: spec for spec in case.services})
    world = CheckedState(NodeServing(case.memory, case.config), node, 0.0, tuple(range(len(case.wanted))), case.budget)
    for spec in case.services:
        world.handle(ServiceSet(spec))
    return world


Move = tuple[str, Callable[[CheckedState], None]]


def moves_of(world: CheckedState, case: Case) -> Iterator[Move]:
    yield from _holder_moves(world, case)
    yield from _engine_moves(world)
    yield from _checks(world)
    yield from _changes(world, case)
    yield from _restart_moves(world, case)
    if world.serving.next_wake_s() < inf:
        yield "time passes", _pass


def _holder_moves(world: CheckedState, case: Case) -> Iterator[Move]:
    alike = {case.wanted[number]: number for number in reversed(world.to_come)}
    for one, number in alike.items():
        yield f"h{number} wants {one}", partial(_want, one=one, number=number)
    for holder in world.node.running:
        yield f"{holder} ends", partial(_end, holder=holder)
        if world.budget.unanswered:
            yield f"the time of {holder} is over", partial(_time_out, holder=holder)
    if world.budget.cancels:
        for holder in world.node.waiting:
            yield f"{holder} gives up", partial(_give_up, holder=holder)


def _engine_moves(world: CheckedState) -> Iterator[Move]:
    node, budget = world.node, world.budget
    for one, (step, _) in node.steps.items():
        outcomes: tuple[Outcome, ...] = ("ok",)
        if one in node.cancelled:
            outcomes = ("ok", "failed")
        elif budget.failures:
            outcomes = ("ok", "failed", "oom") if step in ("load", "restore") else ("ok", "failed")
        for outcome in outcomes:
            yield f"{step} of {one}: {outcome}", partial(_finish, one=one, outcome=outcome)
    if budget.deaths:
        for one, engine in node.engines.items():
            if not engine.dead and one not in node.unfound and node.steps.get(one, ("",))[0] != "stop":
                yield f"{one} dies", partial(_die, one=one)


def _checks(world: CheckedState) -> Iterator[Move]:
    for one in sorted(world.node.checking):
        found: tuple[Liveness, ...] = ("alive", "silent", "hung") if world.budget.silences else ("alive",)
        for each in found:
            yield f"{one} is found {each}", partial(_checked, one=one, found=each)


def _changes(world: CheckedState, case: Case) -> Iterator[Move]:
    node, budget = world.node, world.budget
    for name in node.specs:
        if budget.removals:
            yield f"{name} is removed", partial(_remove, name=name)
        if budget.changes:
            yield f"{name} is changed", partial(_change, name=name)
    for gpu in range(len(case.memory.device_gb)):
        if gpu in node.bad:
            yield f"GPU {gpu} is good", partial(_mark, gpu=gpu, good=True)
        elif budget.bad_gpus:
            yield f"GPU {gpu} is bad", partial(_mark, gpu=gpu, good=False)


def _restart_moves(world: CheckedState, case: Case) -> Iterator[Move]:
    node, budget = world.node, world.budget
    if budget.restarts:
        under_way = list(node.steps)
        for mask in range(2 ** len(under_way)):
            done = {one for bit, one in enumerate(under_way) if mask >> bit & 1}
            yield f"restart, done: {sorted(map(str, done))}", partial(_restart, case=case, done=done)
    for one in sorted(node.unfound):
        yield f"{one} is found", partial(_find, one=one)
        if budget.failures:
            yield f"{one} cannot be read", partial(_find, one=one, unknown=True)


def _want(world: CheckedState, one: InstanceId, number: int) -> None:
    world.to_come = tuple(other for other in world.to_come if other != number)
    world.node.waiting[f"h{number}"] = one, world.now, inf
    world.handle(Wanted(f"h{number}", one, inf))


def _end(world: CheckedState, holder: str) -> None:
    del world.node.running[holder]
    world.handle(HolderEnded(holder))


def _time_out(world: CheckedState, holder: str) -> None:
    world.budget = replace(world.budget, unanswered=world.budget.unanswered - 1)
    del world.node.running[holder]
    world.handle(HolderEnded(holder, ok=False, unanswered=True))


def _checked(world: CheckedState, one: InstanceId, found: Liveness) -> None:
    if found != "alive":
        world.budget = replace(world.budget, silences=world.budget.silences - 1)
    world.node.checking.discard(one)
    world.handle(LivenessChecked(one, found, "" if found == "alive" else "injected"))


def _give_up(world: CheckedState, holder: str) -> None:
    world.budget = replace(world.budget, cancels=world.budget.cancels - 1)
    del world.node.waiting[holder]
    world.handle(HolderEnded(holder))


def _finish(world: CheckedState, one: InstanceId, outcome: Outcome) -> None:
    if outcome != "ok" and one not in world.node.cancelled:
        world.budget = replace(world.budget, failures=world.budget.failures - 1)
    world.handle(world.node.finish(one, outcome, world.now, STEP_S))


def _die(world: CheckedState, one: InstanceId) -> None:
    world.budget = replace(world.budget, deaths=world.budget.deaths - 1)
    if one not in world.node.steps:
        world.node.engines[one].dead = True
    world.handle(EngineDied(one, "injected"))


def _remove(world: CheckedState, name: str) -> None:
    world.budget = replace(world.budget, removals=world.budget.removals - 1)
    del world.node.specs[name]
    world.handle(ServiceRemoved(name))


def _change(world: CheckedState, name: str) -> None:
    world.budget = replace(world.budget, changes=world.budget.changes - 1)
    world.node.specs[name] = replace(world.node.specs[name], revision="2")
    world.handle(ServiceSet(world.node.specs[name]))


def _mark(world: CheckedState, gpu: int, *, good: bool) -> None:
    if good:
        world.node.bad.discard(gpu)
    else:
        world.budget = replace(world.budget, bad_gpus=world.budget.bad_gpus - 1)
        world.node.bad.add(gpu)
    world.handle(DeviceMarked(gpu, good))


def _pass(world: CheckedState) -> None:
    wake_s = world.serving.next_wake_s()
    world.now = max(world.now, wake_s)
    world.handle(TimePassed())
    assert world.serving.next_wake_s() > world.now or world.serving.next_wake_s() > wake_s, "time would not pass"


def _restart(world: CheckedState, case: Case, done: set[InstanceId]) -> None:
    """A new process begins. Its callers come again."""
    node = world.node
    for one in list(node.steps):
        node.finish(one, "ok" if one in done else "failed", world.now)
    numbers = [int(holder[1:]) for holder in (*node.waiting, *node.running)]
    world.to_come = tuple(sorted({*world.to_come, *numbers}))
    node.waiting.clear()
    node.running.clear()
    node.checking.clear()
    node.cancelled.clear()
    node.yielding.clear()
    node.states.clear()
    world.budget = replace(world.budget, restarts=world.budget.restarts - 1)
    world.serving = NodeServing(case.memory, case.config)
    for spec in node.specs.values():
        world.handle(ServiceSet(spec))
    for gpu in node.bad:
        world.handle(DeviceMarked(gpu, good=False))
    node.unfound = set(node.engines)
    for engine in node.engines.values():
        engine.canaried, engine.restored_s = False, -inf
    for one in sorted(node.engines):
        world.handle(Expected(one))


def _find(world: CheckedState, one: InstanceId, *, unknown: bool = False) -> None:
    node, engine = world.node, world.node.engines[one]
    residency: Residency = "resident" if engine.place == "awake" else engine.place
    if unknown:
        world.budget = replace(world.budget, failures=world.budget.failures - 1)
    if unknown or engine.dead or engine.partial or (residency == "cold"):
        residency = "unknown"
    node.unfound.discard(one)
    world.handle(Found(one, residency))
