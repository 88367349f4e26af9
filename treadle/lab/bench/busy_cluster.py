"""Busy cluster for the benchmark of decisions: a dispatcher, simulated nodes, and as much new work as ends."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import thread_time
from typing import Final, Protocol

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    EnvironmentEndReported,
    InventoryReported,
    NodeJoined,
    RequestsSubmitted,
    Stimulus,
    TrajectoryClosed,
)
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import (
    AnswerAction,
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    Grant,
    Request,
    Revoke,
    Work,
)
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.resource import ResourceSpec, least_load

CORES = 8
MEMORY_MB = 65_536
POOL = "cores@cpu"
MEMORY, STARTS = "memory", "starts"
SPECS: Final = {
    MEMORY: ResourceSpec("environment", score=least_load),
    STARTS: ResourceSpec("creation", score=least_load),
}
RUN, RUNTIME = "run", "runtime.local"
ACTS = 10
"""Actions of a trajectory."""
FOREVER_S = 1e6


class Load(Protocol):
    """Endless supply of work."""

    def first(self, count: int) -> Iterator[Request]:
        """Work that waits at the start."""
        ...

    def after(self, request: Request, now: float) -> tuple[Request | None, str]:
        """Work that follows an answered request, and the trajectory that is closed after it, if any."""
        ...


@dataclass(slots=True)
class PlainLoad:
    """Actions of one core that do not scale, of tenants in turn."""

    tenants: int = 1
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    made: int = 0

    def request(self, now: float, work: Work, need: EnvironmentNeed | None = None) -> Request:
        """Return one more request outside batches."""
        self.made += 1
        tenant, arrival = f"t{self.made % self.tenants}", (round(now * 1000), self.made)
        return Request(f"a{self.made}", tenant, "coder", "", arrival, (work,), now + FOREVER_S, need=need)

    def plain(self, now: float) -> Request:
        """Return an action of one core that lasts about a second."""
        return self.request(now, _rigid(1, self.rng.uniform(0.5, 1.5)))

    def first(self, count: int) -> Iterator[Request]:
        return (self.plain(0.0) for _ in range(count))

    def after(self, request: Request, now: float) -> tuple[Request | None, str]:  # noqa: ARG002  # as in `Load`
        return self.plain(now), ""


@dataclass(slots=True)
class MixedLoad:
    """Short, long, large and elastic work, and trajectories whose actions run in environments."""

    trajectories: int
    plain: PlainLoad = field(default_factory=PlainLoad)
    acts: dict[str, int] = field(default_factory=dict)
    """Trajectory -> its submitted actions."""
    opened: int = 0

    def first(self, count: int) -> Iterator[Request]:
        yield from (self._outside(0.0) for _ in range(count))
        yield from (self._act(0.0, self._open()) for _ in range(self.trajectories))

    def after(self, request: Request, now: float) -> tuple[Request | None, str]:
        if request.need is None:
            return self._outside(now), ""
        trajectory = request.need.trajectory
        if self.acts[trajectory] < ACTS:
            return self._act(now, trajectory), ""
        del self.acts[trajectory]
        return self._act(now, self._open()), trajectory

    def _open(self) -> str:
        self.opened += 1
        return f"trajectory-{self.opened}"

    def _act(self, now: float, trajectory: str) -> Request:
        self.acts[trajectory] = self.acts.get(trajectory, 0) + 1
        need = EnvironmentNeed(trajectory, RUNTIME, {MEMORY: 1024, STARTS: 1}, f"image-{self.opened % 7}")
        return self.plain.request(now, _rigid(1, self.plain.rng.uniform(0.05, 0.5)), need)

    def _outside(self, now: float) -> Request:
        rng = self.plain.rng
        sort = rng.random()
        if sort < 0.45:
            return self.plain.request(now, _rigid(1, 0.005))
        if sort < 0.7:
            return self.plain.plain(now)
        if sort < 0.78:
            return self.plain.request(now, _rigid(4, rng.uniform(0.5, 1.5)))
        if sort < 0.8:
            return self.plain.request(now, _rigid(CORES, rng.uniform(0.5, 1.5)))
        amounts, elasticity = tuple(range(1, CORES + 1)), Elasticity("amdahl", serial=0.05)
        work = Work("test", RUN, POOL, {"cores": 1}, 3600.0, True, amounts, elasticity, rng.uniform(0.5, 3.0))
        return self.plain.request(now, work)


def _rigid(cores: int, lasts_s: float) -> Work:
    return Work("test", RUN, POOL, {"cores": cores}, 3600.0, duration_s=lasts_s)


@dataclass(slots=True)
class SimulatedNode:
    """Node that executes grants in order while it has free cores; the others wait in its queue."""

    free: int = CORES
    waiting: deque[Grant] = field(default_factory=deque)

    def start(self) -> Iterator[Grant]:
        """Grants that start now."""
        while self.waiting and self.waiting[0].units["cores"] <= self.free:
            grant = self.waiting.popleft()
            self.free -= grant.units["cores"]
            yield grant


class BusyCluster:
    """Dispatcher and nodes; counts the dispatcher's processor time."""

    def __init__(self, nodes: int, load: Load) -> None:
        self.load = load
        self.dispatcher = Dispatcher(specs=SPECS)
        self.now = 1000.0
        self.nodes = {f"n{at:04}": SimulatedNode() for at in range(nodes)}
        self.took_s = 0.0
        self.requests: dict[str, Request] = {}
        self._ends: list[tuple[float, int, Grant]] = []
        self._serial = 0

    def begin(self, waiting: int) -> None:
        """Add the nodes, fill them, and let so many actions wait."""
        capacity = {"cores": CORES, MEMORY: MEMORY_MB, STARTS: 4}
        for name in self.nodes:
            hello = NodeJoined(name, "1", "cpu", capacity, frozenset({RUN, RUNTIME}), frozenset({"cores"}))
            self.dispatcher.handle(self.now, hello)
            self.dispatcher.handle(self.now, InventoryReported(name, "1", {}))
        self.submit(list(self.load.first(waiting + CORES * len(self.nodes))))

    def submit(self, requests: list[Request]) -> None:
        """Submit requests in one event."""
        self.requests.update((request.id, request) for request in requests)
        self._handle(RequestsSubmitted(tuple(requests)))

    def _handle(self, stimulus: Stimulus) -> None:
        began = thread_time()
        commands = self.dispatcher.handle(self.now, stimulus)
        self.took_s += thread_time() - began
        self._follow(commands)

    def run(self, count: int) -> float:
        """Let so many actions end. Returns the seconds that the dispatcher took."""
        self.took_s = 0.0
        for _ in range(count):
            self._end(heapq.heappop(self._ends))
        return self.took_s

    def _end(self, first: tuple[float, int, Grant]) -> None:
        self.now, _, grant = first
        node = self.nodes[grant.node]
        node.free += grant.units["cores"]
        self._start(node)
        lasts_s = self._lasts_s(grant)
        result = AttemptResult("ok", True)
        end = Ended(grant.action, grant.node, grant.attempt, 0, result, execution_s=lasts_s, units=grant.units)
        self._handle(AttemptsEnded((end,)))

    def _follow(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Grant):
                node = self.nodes[command.node]
                node.waiting.append(command)
                self._start(node)
            elif isinstance(command, AnswerAction):
                self._answered(self.requests.pop(command.action))
            elif isinstance(command, CloseEnvironment):
                self._handle(EnvironmentEndReported(command.node, "1", command.trajectory, "closed", ""))
            elif isinstance(command, Revoke):
                raise AssertionError(f"{command}: nothing here is revoked")

    def _answered(self, request: Request) -> None:
        following, closed = self.load.after(request, self.now)
        if closed:
            self._handle(TrajectoryClosed(closed))
        if following is not None:
            self.submit([following])

    def _start(self, node: SimulatedNode) -> None:
        for grant in node.start():
            self._serial += 1
            heapq.heappush(self._ends, (self.now + self._lasts_s(grant), self._serial, grant))

    def _lasts_s(self, grant: Grant) -> float:
        work = self.requests[grant.action].stages[0]
        assert work.duration_s is not None, f"{grant.action} has a declared duration"
        return work.elasticity.duration(work.duration_s, grant.units["cores"]) if work.elasticity else work.duration_s
