"""Benchmark of dispatch decisions: many elastic actions wait for the cores of big nodes.

It calls the dispatcher in virtual time, in this process. So a decision costs processor time only.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import NamedTuple

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import AttemptsEnded, InventoryReported, NodeJoined, RequestsSubmitted, Stimulus
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchFigure, at_most, figure

NODES, CORES, WAITING = 5, 256, 1280
"""ARL-Tangram §6.3: five nodes of 256 cores, a batch of 1,280."""
AT_ONCE = 16
"""Cores that are freed at once in a steady state."""
ROUNDS = 300
TIMES = 7
"""Number of rounds in which all cores are freed at once."""
_SCALES = tuple(Elasticity("amdahl", serial=serial) for serial in (0.01, 0.03, 0.05, 0.1))


class RunningAction(NamedTuple):
    """Grant of an action that runs, its duration and its end, seconds."""

    grant: Grant
    lasts_s: float
    ends_s: float


class DispatcherLoad:
    """A dispatcher, nodes that report ends on request, and an endless supply of work."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.dispatcher = Dispatcher()
        self.now = 1000.0
        self._running: dict[str, dict[str, RunningAction]] = {}
        """Node -> action -> its grant and times."""
        self._works: dict[str, Work] = {}
        self._made = 0

    def requests(self, count: int, *, scales: bool = True) -> list[Request]:
        """Return actions outside batches: long-tailed like reward actions; 1 to 32 cores if they scale."""
        made = []
        for _ in range(count):
            self._made += 1
            lasts_s = min(self.rng.lognormvariate(3.0, 1.0), 600.0)
            amounts, elasticity = (tuple(range(1, 33)), self.rng.choice(_SCALES)) if scales else ((), None)
            work = Work("test", "run", "cores@cpu", {"cores": 1}, 3600.0, True, amounts, elasticity, lasts_s)
            self._works[f"a{self._made}"] = work
            arrival = (round(self.now * 1000), self._made)
            made.append(Request(f"a{self._made}", "t", "coder", "", arrival, (work,), self.now + 1e6))
        return made

    def submit(self, count: int) -> None:
        """Submit this many more."""
        self.follow(self.dispatcher.handle(self.now, RequestsSubmitted(tuple(self.requests(count)))))

    def add_nodes(self, cores: int = CORES) -> float:
        """Add nodes with empty inventories. Returns the seconds of the decision that follows all of them together."""
        names = [f"n{at}" for at in range(NODES)]
        for name in names:
            self.dispatcher.handle(self.now, NodeJoined(name, "1", "cpu", {"cores": cores}, frozenset({"run"})))
        return self._timed(*(InventoryReported(name, "1", {}) for name in names))

    def follow(self, commands: Iterable[Command]) -> None:
        """Record grants."""
        for command in commands:
            if isinstance(command, Grant):
                work, units = self._works[command.action], command.units["cores"]
                assert work.duration_s is not None, f"{command.action} has no declared duration"
                lasts_s = work.duration_s
                if work.elasticity is not None:
                    lasts_s = work.elasticity.duration(work.duration_s, units)
                running = RunningAction(command, lasts_s, self.now + lasts_s)
                self._running.setdefault(command.node, {})[command.action] = running

    def free(self, node: str, cores: int) -> list[Ended]:
        """Return ends of running actions of a node, the next to end first, until this many cores are free."""
        held = self._running[node]
        ends: list[Ended] = []
        for action in sorted(held, key=lambda name: held[name].ends_s):
            if cores <= 0:
                break
            grant, lasts_s, _ = held.pop(action)
            cores -= grant.units["cores"]
            ends.append(Ended(action, node, grant.attempt, 0, AttemptResult("ok", True), execution_s=lasts_s))
        return ends

    def decide(self, ends: list[Ended]) -> float:
        """Seconds that the dispatcher takes over these ends."""
        return self._timed(AttemptsEnded(tuple(ends)))

    def _timed(self, *given: Stimulus) -> float:
        began = perf_counter()
        commands = self.dispatcher.handle(self.now, *given)
        took_s = perf_counter() - began
        self.follow(commands)
        return took_s


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: the leader freezes its objects, so collection is no part of a decision."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def all_free(seed: int) -> float:
    """Return the seconds of the decision in which 1,280 actions wait and all cores become free at once."""
    load = DispatcherLoad(seed)
    load.submit(WAITING)
    with uncollected():
        return load.add_nodes()


def steady(seed: int) -> list[float]:
    """Return the seconds of decisions in which some cores of a node become free and as many actions wait as before."""
    load = DispatcherLoad(seed)
    load.submit(WAITING)
    load.add_nodes()
    load.submit(WAITING)
    taken: list[float] = []
    with uncollected():
        for number in range(ROUNDS):
            load.now += 0.1
            ends = load.free(f"n{number % NODES}", AT_ONCE)
            taken.append(load.decide(ends))
            load.submit(len(ends))
    return taken


def rigid(seed: int) -> list[float]:
    """Return seconds of decisions in which one core is free and a rigid head has 1,280 elastic actions behind it."""
    load = DispatcherLoad(seed)
    load.submit(WAITING)
    load.add_nodes()
    load.submit(WAITING)
    load.now -= 100.0  # they arrived before all others
    first = load.requests(ROUNDS + 1, scales=False)
    load.now += 100.0
    load.follow(load.dispatcher.handle(load.now, RequestsSubmitted(tuple(first))))
    taken: list[float] = []
    with uncollected():
        for number in range(ROUNDS):
            load.now += 0.1
            taken.append(load.decide(load.free(f"n{number % NODES}", 1)))
    return taken


async def decisions(bench: Bench) -> list[BenchFigure]:
    """Decisions with 1,280 elastic actions waiting on five nodes of 256 cores."""
    bench.log(f"  {WAITING} elastic actions, {NODES} nodes of {CORES} cores")
    all_free(0)  # compiles, or reads compiled code
    whole = median(all_free(seed) for seed in range(1, TIMES + 1))
    return [
        figure("decisions.steady.p50", f"{AT_ONCE} cores become free", median(steady(1)) * 1e3, "ms", at_most(2)),
        figure("decisions.all", "all cores are free at once", whole * 1e3, "ms", at_most(20)),
        figure(
            "decisions.rigid.p50", "the next waiting action does not scale", median(rigid(1)) * 1e3, "ms", at_most(0.1)
        ),
    ]
