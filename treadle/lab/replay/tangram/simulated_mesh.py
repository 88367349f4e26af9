"""The mesh in virtual time: the leader's dispatcher with simulated nodes and trajectories (ARL-Tangram §4.2, §5.2).

Trajectories begin together and run independently: think, submit an action, wait for its answer, think. A node starts a
grant at once and reports its end on time. So `shared/policy` makes all decisions, with the objects of the services.
The simulation checks each grant as a node does: cores that are not free are an error.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import (
    AttemptsEnded,
    AttemptStarted,
    EnvironmentEndReported,
    InventoryReported,
    NodeJoined,
    NodeSeen,
    RequestsSubmitted,
    TickPassed,
    TrajectoryClosed,
)
from shared.policy.elastic.scheduling import ElasticRules, Rule
from shared.policy.model.formulation import (
    AnswerAction,
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    Grant,
    Request,
    Work,
)
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.resource import ResourceSpec, least_load
from treadle.lab.replay.tangram.assumptions import Cluster, Overheads
from treadle.lab.replay.tangram.measures import ENVIRONMENT, EXECUTION, OVERHEAD, QUEUEING, REWARD, SystemRun
from treadle.lab.replay.tangram.trace import Batch, TrajectoryStep

Event = Literal["act", "end", "tick"]

NODE_CLASS: Final = "default"
CORES: Final = "cores"
MEMORY: Final = "memory_mb"
SPECS: Final = {MEMORY: ResourceSpec("environment", score=least_load)}
RUNTIME: Final = "runtime.docker"
INCARNATION: Final = "1"
TICK_S: Final = 1.0
"""Interval of the dispatcher's ticks."""
BUDGET_S: Final = 1e7
"""Budget of an action: no deadline ends in a replay."""


class SimulationError(AssertionError):
    """A policy granted what no node has, or answered what no node reported."""


@dataclass(frozen=True)
class System:
    """Rule for the number of cores of an action."""

    name: str
    rule: Rule | None = "priced"
    """Rule of elastic actions: ours, or the paper's Algorithm 1. None: they get the fewest cores."""
    dop: int | None = None
    """Fixed number of cores of elastic actions (§6.4)."""
    depth: int = 2
    """Depth of the approximated objective (§6.1)."""

    def work(self, step: TrajectoryStep, timeout_s: float) -> Work:
        """Return the work of a step as the dispatcher receives it."""
        units, amounts = step.least, tuple[int, ...]()
        if step.is_elastic and self.dop is not None:
            units = max(step.least, min(step.most, self.dop))
        elif step.is_elastic:
            amounts = tuple(range(step.least, step.most + 1))
        return Work(
            step.kind, step.kind, f"{CORES}@{NODE_CLASS}", {CORES: units}, timeout_s, False,
            amounts, step.elasticity if amounts else None, step.profile_s,
        )  # fmt: skip


@dataclass(slots=True)
class _ActiveTrajectory:
    """State of one trajectory."""

    number: int
    step: int = 0
    asked_s: float = 0.0
    granted_s: float = 0.0
    units: int = 0
    node: str = ""
    attempt: int = 0
    executes_s: float = 0.0
    adds_s: float = 0.0
    """Overhead of the system."""


class SimulatedMesh:
    """Simulation of one batch under one system. All trajectories begin at 0."""

    def __init__(self, system: System, batch: Batch, cluster: Cluster, overheads: Overheads) -> None:
        self._system, self._batch, self._overheads = system, batch, overheads
        self._run = SystemRun.of(system.name, cluster.all_cores, batch)
        self._events: list[tuple[float, int, Event, int]] = []
        self._serials = count()
        self._acting = [_ActiveTrajectory(number) for number in range(len(batch))]
        self._by_action: dict[str, _ActiveTrajectory] = {}
        steps = [step for trajectory in batch for step in trajectory.steps]
        self._timeouts = {kind: _limit(step.work_s for step in steps if step.kind == kind) for kind in _kinds(steps)}
        self._free = {f"node-{number}": cluster.cores for number in range(cluster.nodes)}
        self.dispatcher = Dispatcher(DispatchConfig(elastic=ElasticRules(rule=system.rule, depth=system.depth)), SPECS)
        for name in self._free:
            capacity = {CORES: cluster.cores, MEMORY: cluster.memory_mb}
            kinds = frozenset({RUNTIME, *self._timeouts})
            self.dispatcher.handle(0.0, NodeJoined(name, INCARNATION, NODE_CLASS, capacity, kinds))
            self.dispatcher.handle(0.0, InventoryReported(name, INCARNATION, {}))

    def run(self) -> SystemRun:
        """Run until the last trajectory has its reward.

        Raises:
            SimulationError: the dispatcher granted cores that are not free, or a trajectory waits forever.
        """
        going = sum(self._think(0.0, acting) for acting in self._acting)
        self._push(TICK_S, "tick")
        while going:
            now, _, event, number = heapq.heappop(self._events)
            if event == "act":
                self._execute(now, self._submit(now, self._acting[number]))
            elif event == "end":
                going -= not self._end(now, self._acting[number])
            elif not self._events:
                raise SimulationError(f"{going} trajectories wait, and no event is left")
            else:
                self._tick(now)
        return self._run

    def _push(self, at_s: float, event: Event, number: int = 0) -> None:
        heapq.heappush(self._events, (at_s, next(self._serials), event, number))

    def _think(self, now: float, acting: _ActiveTrajectory) -> bool:
        """Start the next thought; return whether there is a next step."""
        trajectory = self._batch[acting.number]
        if acting.step < len(trajectory.steps):
            self._push(now + trajectory.steps[acting.step].think_s, "act", acting.number)
            return True
        self._run.done_s[acting.number] = now
        return False

    def _submit(self, now: float, acting: _ActiveTrajectory) -> list[Command]:
        trajectory = self._batch[acting.number]
        step = trajectory.steps[acting.step]
        action = f"{acting.number}.{acting.step}"
        acting.asked_s = now
        self._by_action[action] = acting
        need = EnvironmentNeed(trajectory.name, RUNTIME, {MEMORY: self._overheads.memory_mb})
        work = self._system.work(step, self._timeouts[step.kind])
        arrival = (int(now * 1000), next(self._serials))
        request = Request(action, "tenant", "task", "", arrival, (work,), now + BUDGET_S, need=need)
        return self.dispatcher.handle(now, RequestsSubmitted((request,)))

    def _tick(self, now: float) -> None:
        for name in self._free:
            self.dispatcher.handle(now, NodeSeen(name, INCARNATION))
        self._execute(now, self.dispatcher.handle(now, TickPassed()))
        self._push(now + TICK_S, "tick")

    def _execute(self, now: float, commands: Iterable[Command]) -> None:
        """Execute commands as nodes do."""
        left = deque(commands)
        while left:
            command = left.popleft()
            if isinstance(command, Grant):
                self._begin(now, command)
            elif isinstance(command, CloseEnvironment):
                gone = EnvironmentEndReported(command.node, INCARNATION, command.trajectory, "closed", "")
                left += self.dispatcher.handle(now, gone)
            elif isinstance(command, AnswerAction) and command.ended != "ok":
                raise SimulationError(f"{command.action} was answered {command.ended}: {command.reason}")

    def _begin(self, now: float, grant: Grant) -> None:
        acting = self._by_action[grant.action]
        step = self._batch[acting.number].steps[acting.step]
        acting.units = grant.units[CORES]
        self._free[grant.node] -= acting.units
        if self._free[grant.node] < 0:
            raise SimulationError(f"{grant.action} was granted {acting.units} cores that are not free on {grant.node}")
        acting.node, acting.attempt, acting.granted_s = grant.node, grant.attempt, now
        acting.executes_s = step.seconds(acting.units)
        acting.adds_s = self._overheads.action_s + (self._overheads.begin_s if grant.begins else 0.0)
        self.dispatcher.handle(now, AttemptStarted(grant.action, grant.attempt))
        self._push(now + acting.adds_s + acting.executes_s, "end", acting.number)

    def _end(self, now: float, acting: _ActiveTrajectory) -> bool:
        """End an action; return whether its trajectory continues."""
        trajectory = self._batch[acting.number]
        action = f"{acting.number}.{acting.step}"
        self._account(acting, trajectory.steps[acting.step])
        self._free[acting.node] += acting.units
        del self._by_action[action]
        ended = Ended(action, acting.node, acting.attempt, 0, AttemptResult("ok"), execution_s=acting.executes_s)
        self._execute(now, self.dispatcher.handle(now, AttemptsEnded((ended,))))
        acting.step += 1
        continues = self._think(now, acting)
        if not continues:
            self._execute(now, self.dispatcher.handle(now, TrajectoryClosed(trajectory.name)))
        return continues

    def _account(self, acting: _ActiveTrajectory, step: TrajectoryStep) -> None:
        spent_s = self._run.spent_s[acting.number, REWARD if step.is_elastic else ENVIRONMENT]
        spent_s[QUEUEING] += acting.granted_s - acting.asked_s
        spent_s[EXECUTION] += acting.executes_s
        spent_s[OVERHEAD] += acting.adds_s
        self._run.core_s += acting.units * (acting.executes_s + acting.adds_s)
        if step.is_elastic:
            self._run.widths.append(acting.units)


def _kinds(steps: Iterable[TrajectoryStep]) -> list[str]:
    return sorted({step.kind for step in steps})


def _limit(works_s: Iterable[float]) -> float:
    """Return a timeout that no action reaches."""
    return 1.0 + 2.0 * max(works_s)
