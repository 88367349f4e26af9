"""Benchmark of the choice of a chunk of GPUs and of its evictions, through the policy as its owners call it.

Virtual time, in this process. The leader's decision is `Dispatcher.handle` over one submission; the choice is a part
of it (`choice_times`). The node's decision is `NodeServing` over a `Wanted` that evicts engines. In both,
memory is full.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NamedTuple

from msgspec.structs import replace

from shared.policy.dispatch.choice_times import ChoiceTimes
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.service_stimuli import ServicesReported
from shared.policy.dispatch.stimuli import AttemptsEnded, InventoryReported, NodeJoined, RequestsSubmitted
from shared.policy.model.chunks import Chunk, Served, ServedModel
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.chunks import GPUS
from shared.policy.serving import model
from shared.policy.serving.model import InstanceId, ModelServiceSpec, NodeMemory
from shared.policy.serving.node_serving import NodeServing
from treadle.lab.bench.decisions import uncollected

GPUS_OF_A_NODE: Final = 8
SERVICES: Final = 64
DEVICE_GB: Final = 80.0
DEGREES: Final = ((1,), (1, 2), (2, 4), (8,))
ELASTIC_DEGREES: Final = ((1, 2), (2, 4), (1, 2, 4), (1, 2, 4, 8))
SPEED: Final = Elasticity("amdahl", serial=0.1)
RESTORE_S, WAKE_S, EVICT_S = 1.0, 0.3, 0.5
"""Seconds of a load with one GPU, of a restore of a sleeping engine, and of an eviction."""
AWAKE_GB: Final = (10.0, 30.0, 60.0)
CONCURRENCIES: Final = (1, 8)
BUSY: Final = 0.75
"""Share of the GPUs that are busy at most while a choice is made."""
WAITING: Final = 8
"""Actions that wait after which a node counts as busy: elastic ones wait for engines instead of new GPUs."""
WARM_UP: Final = 50
FOREVER_S: Final = 1e6
_RESOURCE: Final = "gpus"


class DecisionTime(NamedTuple):
    """Seconds of one decision of the leader."""

    choosing_s: float
    """Of it, of the choices of nodes, degrees and chunks for all actions that wait, and whether engines may be evicted
    there now."""
    took_s: float


@dataclass(slots=True)
class ChunkLoad:
    """A dispatcher, nodes whose memory is full of services, and actions of random services."""

    nodes: int
    rng: random.Random
    elastic: bool = False
    """Actions leave their degree to the leader, and nodes report times of restores and evictions."""
    dispatcher: Dispatcher = field(init=False)
    now: float = 1000.0
    served: dict[str, ServedModel] = field(init=False)
    _running: list[Grant] = field(default_factory=list)
    _busy: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    """(Node, its GPUs) -> actions there."""
    _made: int = 0
    granted: int = 0
    """Granted actions so far."""

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(specs={_RESOURCE: GPUS})
        self.served = {f"s{number}": self._service() for number in range(SERVICES)}
        for number in range(self.nodes):
            name = f"n{number:03}"
            joined = NodeJoined(name, "1", "default", {_RESOURCE: GPUS_OF_A_NODE}, frozenset({"model"}))
            reported = ServicesReported(name, "1", _RESOURCE, self.full(), (DEVICE_GB,) * GPUS_OF_A_NODE)
            self.dispatcher.handle(self.now, joined, reported, InventoryReported(name, "1", {}))

    def _service(self) -> ServedModel:
        degrees = self.rng.choice(ELASTIC_DEGREES if self.elastic else DEGREES)
        one = ServedModel(degrees, self.rng.choice(CONCURRENCIES), self.rng.choice(AWAKE_GB))
        if not self.elastic:
            return one
        restore_s = {degree: RESTORE_S / degree for degree in degrees}
        return dataclasses.replace(one, restore_s=restore_s, evict_s=dict.fromkeys(degrees, EVICT_S))

    def full(self) -> Served:
        """Return the services of a node, resident on random chunks until no further one has room. The others sleep."""
        free_gb = [DEVICE_GB] * GPUS_OF_A_NODE
        found: dict[str, ServedModel] = {}
        for name in self.rng.sample(sorted(self.served), SERVICES):
            one = self.served[name]
            degree = self.rng.choice(one.degrees)
            chunk = Chunk(self.rng.randrange(0, GPUS_OF_A_NODE, degree), degree)
            fits = all(free_gb[gpu] >= one.awake_gb for gpu in chunk.gpus)
            if fits:
                for gpu in chunk.gpus:
                    free_gb[gpu] -= one.awake_gb
            resident = frozenset({chunk}) if fits else frozenset[Chunk]()
            found[name] = dataclasses.replace(one, resident=resident, asleep={} if fits else {chunk: WAKE_S})
        return found

    def request(self) -> Request:
        """Return an action of a random service and one of its degrees."""
        self._made += 1
        name = self.rng.choice(sorted(self.served))
        degrees = self.served[name].degrees
        units = {_RESOURCE: degrees[0] if self.elastic else self.rng.choice(degrees)}
        work = Work(name, "model", f"{_RESOURCE}@default", units, 600.0, True, duration_s=1.0, service=name)
        if self.elastic:
            work = replace(work, amounts=degrees, elasticity=SPEED)
        arrival = (round(self.now * 1000), self._made)
        return Request(f"a{self._made}", "tenant", "task", "", arrival, (work,), self.now + FOREVER_S)

    @property
    def busy(self) -> int:
        """Busy GPUs."""
        return sum(len(numbers) for _, numbers in self._busy)

    @property
    def waiting(self) -> int:
        """Actions that wait for a chunk."""
        return self._made - self.granted

    def make_room(self) -> None:
        """Let random actions end until enough GPUs are free and none waits: a choice is measured alone."""
        while self._running and (self.waiting or self.busy > BUSY * self.nodes * GPUS_OF_A_NODE):
            at = self.rng.randrange(len(self._running))
            self._running[at], self._running[-1] = self._running[-1], self._running[at]
            grant = self._running.pop()
            key = (grant.node, grant.numbers)
            self._busy[key] -= 1
            if not self._busy[key]:
                del self._busy[key]
            end = Ended(grant.action, grant.node, grant.attempt, 0, AttemptResult("ok", True), execution_s=1.0)
            self.follow(self.dispatcher.handle(self.now, AttemptsEnded((end,))))

    def follow(self, commands: Iterable[Command]) -> None:
        """Record grants."""
        for command in commands:
            if isinstance(command, Grant):
                self._running.append(command)
                self.granted += 1
                key = (command.node, command.numbers)
                self._busy[key] = self._busy.get(key, 0) + 1

    def decide(self, request: Request, choices: ChoiceTimes) -> DecisionTime:
        """Submit the action. Returns the seconds of the leader's decision."""
        choices.took_s = 0.0
        began = perf_counter()
        commands = self.dispatcher.handle(self.now, RequestsSubmitted((request,)))
        took_s = perf_counter() - began
        self.follow(commands)
        return DecisionTime(choices.took_s, took_s)


def decision_times(nodes: int, count: int, seed: int = 1, *, elastic: bool = False) -> list[DecisionTime]:
    """Return the seconds of so many decisions on nodes of eight GPUs, after a warm-up."""
    load = ChunkLoad(nodes, random.Random(seed), elastic)
    while load.busy <= BUSY * nodes * GPUS_OF_A_NODE and load.waiting <= WAITING:  # elastic ones wait for busy engines
        load.follow(load.dispatcher.handle(load.now, RequestsSubmitted((load.request(),))))
    taken: list[DecisionTime] = []
    with uncollected(), ChoiceTimes(perf_counter) as choices:
        for number in range(WARM_UP + count):
            load.now += 0.05
            load.make_room()
            took = load.decide(load.request(), choices)
            if number >= WARM_UP:
                taken.append(took)
    return taken


# ---- the node's evictions --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class EvictionLoad:
    """A node's machine of engines, whose steps succeed at once. All engines of all services begin asleep."""

    rng: random.Random
    serving: NodeServing = field(default_factory=lambda: NodeServing(NodeMemory((DEVICE_GB,) * GPUS_OF_A_NODE)))
    now: float = 0.0
    _degrees: list[tuple[str, int]] = field(default_factory=list)
    """(Service, one of its degrees)."""
    _made: int = 0

    def __post_init__(self) -> None:
        for number in range(SERVICES):
            name, degrees = f"s{number}", self.rng.choice(DEGREES)
            spec = ModelServiceSpec(name, self.rng.choice(AWAKE_GB), ("asleep1", "cold"), degrees)
            self.serving.handle(self.now, model.ServiceSet(spec))
            for degree in degrees:
                self._degrees.append((name, degree))
                for first in range(0, GPUS_OF_A_NODE, degree):
                    found = model.Found(InstanceId(name, Chunk(first, degree)), "asleep1")
                    self.serving.handle(self.now, found)

    def want(self) -> tuple[float, int]:
        """Let a holder want a random engine, use it and end. Returns the seconds of the decision, and its evictions."""
        self.now += 10.0
        self._made += 1
        service, degree = self.rng.choice(self._degrees)
        chunk = Chunk(self.rng.randrange(0, GPUS_OF_A_NODE, degree), degree)
        wanted = model.Wanted(f"h{self._made}", InstanceId(service, chunk), self.now + FOREVER_S)
        began = perf_counter()
        commands = self.serving.handle(self.now, wanted)
        took_s = perf_counter() - began
        evictions = sum(isinstance(one, model.Evict | model.Stop) for one in commands)
        if not self._follow(commands):
            raise AssertionError(f"{wanted} was not admitted, although each step succeeds")
        self.serving.handle(self.now, model.HolderEnded(wanted.holder))
        return took_s, evictions

    def _follow(self, commands: list[model.Command]) -> bool:
        """Let each step succeed. Returns whether the holder was admitted."""
        admitted = False
        while commands:
            command = commands.pop(0)
            step: model.Step
            match command:
                case model.Admit():
                    admitted = True
                    continue
                case model.LoadEngine():
                    step = "load"
                case model.Restore():
                    step = "restore"
                case model.RunCanary():
                    step = "canary"
                case model.Evict():
                    step = "evict"
                case model.Stop():
                    step = "stop"
                case _:
                    continue
            commands += self.serving.handle(self.now, model.Stepped(command.instance, step, "ok", took_s=0.1))
        return admitted


def eviction_times(count: int, seed: int = 1) -> list[float]:
    """Return the seconds of so many decisions that evict something, after a warm-up."""
    load = EvictionLoad(random.Random(seed))
    taken: list[float] = []
    for _ in range(WARM_UP * 4):
        load.want()
    with uncollected():
        while len(taken) < count:
            took_s, evictions = load.want()
            if evictions:
                taken.append(took_s)
    return taken
