"""Driver of `NodeServing` for unit tests: it keeps the time, and a fake node asserts the laws at each command."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from shared.policy.model.chunks import Chunk
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Command,
    DeviceMarked,
    EngineDied,
    Expected,
    Found,
    HolderEnded,
    InstanceId,
    ModelServiceSpec,
    NodeMemory,
    Outcome,
    RefuseHolder,
    Residency,
    ResidencyChanged,
    ServiceRemoved,
    ServiceSet,
    Stimulus,
    TimePassed,
    Wanted,
)
from shared.policy.serving.node_serving import NodeServing
from shared.policy.serving.node_view import InstanceView
from tests.shared.policy.serving.fake_node import Engine, FakeNode
from tests.shared.policy.serving.state_keys import check_agenda

LEVELS = ("cold", "asleep1", "asleep2")


def on(service: str, first: int = 0, size: int = 1) -> InstanceId:
    return InstanceId(service, Chunk(first, size))


def service(name: str, awake_gb: float = 10.0, **more: object) -> ModelServiceSpec:
    spec = ModelServiceSpec(name, awake_gb, ("cold", "asleep2"), (1, 2))
    return replace(spec, **more)  # type: ignore[arg-type]


class Driver:
    """One node under test. Commands are returned without `ResidencyChanged`."""

    def __init__(
        self,
        *services: ModelServiceSpec,
        device_gb: tuple[float, ...] = (16.0, 16.0),
        host_gb: float = inf,
        config: ServingConfig | None = None,
    ) -> None:
        self.config = config or ServingConfig(hung_after_s=inf)
        self.now = 0.0
        memory = NodeMemory(device_gb, host_gb)
        self.node = FakeNode(memory, self.config.max_wait_s)
        self.serving = NodeServing(memory, self.config)
        for spec in services:
            self.set(spec)

    def handle(self, stimulus: Stimulus) -> list[Command]:
        commands = self.serving.handle(self.now, stimulus)
        check_agenda(self.serving)
        self.node.apply(commands, self.now)
        return [command for command in commands if not isinstance(command, ResidencyChanged)]

    def set(self, spec: ModelServiceSpec) -> list[Command]:
        self.node.specs[spec.name] = spec
        return self.handle(ServiceSet(spec))

    def remove(self, name: str) -> list[Command]:
        del self.node.specs[name]
        return self.handle(ServiceRemoved(name))

    def want(self, holder: str, one: InstanceId, wait_s: float = inf) -> list[Command]:
        self.node.waiting[holder] = one, self.now, self.now + wait_s
        return self.handle(Wanted(holder, one, self.now + wait_s))

    def end(self, holder: str, *, ok: bool = True) -> list[Command]:
        if self.node.running.pop(holder, None) is None:
            del self.node.waiting[holder]
        return self.handle(HolderEnded(holder, ok))

    def step(self, one: InstanceId, outcome: Outcome = "ok", took_s: float | None = None) -> list[Command]:
        """End a step. A load takes a minute if nothing else is said."""
        if took_s is None:
            took_s = 60.0 if self.node.steps[one][0] == "load" else 1.0
        return self.handle(self.node.finish(one, outcome, self.now, took_s))

    def die(self, one: InstanceId, reason: str = "exit status 1") -> list[Command]:
        if one not in self.node.steps:
            self.node.engines[one].dead = True
        return self.handle(EngineDied(one, reason))

    def mark(self, gpu: int, *, good: bool) -> list[Command]:
        (self.node.bad.discard if good else self.node.bad.add)(gpu)
        return self.handle(DeviceMarked(gpu, good, "" if good else "Xid 79"))

    def after(self, pause_s: float) -> list[Command]:
        self.now += pause_s
        return self.handle(TimePassed())

    def wake(self) -> list[Command]:
        """Wait until the time that the machine asks for."""
        assert self.now < self.serving.next_wake_s() < inf
        return self.after(self.serving.next_wake_s() - self.now)

    def resident(self, one: InstanceId, *, evictions: int = 0) -> None:
        """Make an instance resident and idle."""
        self.want(f"first of {one}", one)
        for _ in range(evictions):
            self.step(next(name for name in self.node.steps if name != one))
        while one in self.node.steps:
            self.step(one)
        self.end(f"first of {one}")
        assert self.view(one).state == "resident"

    def expect(self, one: InstanceId) -> list[Command]:
        """Begin with an engine of a former process."""
        self.node.engines[one] = Engine(self.node.specs[one.service], "awake", one.chunk.size)
        self.node.unfound.add(one)
        return self.handle(Expected(one))

    def found(self, one: InstanceId, residency: Residency) -> list[Command]:
        self.node.unfound.discard(one)
        if residency in ("asleep1", "asleep2"):
            self.node.engines[one].place = self.node.engines[one].host = residency
        elif residency == "cold":
            self.node.engines.pop(one, None)
        return self.handle(Found(one, residency))

    def view(self, one: InstanceId) -> InstanceView:
        return next(shown for shown in self.serving.view() if shown.instance == one)


def refusal(commands: list[Command]) -> RefuseHolder:
    """Return the only refusal of these commands."""
    (refused,) = [command for command in commands if isinstance(command, RefuseHolder)]
    return refused
