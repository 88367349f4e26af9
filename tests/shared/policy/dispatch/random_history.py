"""Random histories of a cluster with unlike nodes: stimuli and commands, recorded so that they can be repeated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import get_args

import msgspec
from msgspec.structs import replace

from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.quota_stimuli import QuotaSet
from shared.policy.dispatch.stimuli import (
    ActionCancelled,
    AttemptParked,
    AttemptsEnded,
    EnvironmentEndReported,
    EstimateReceived,
    InventoryReported,
    NodeJoined,
    NodeLost,
    NodeSeen,
    ParkRequested,
    PlannerChecked,
    PriorityChanged,
    RequestsSubmitted,
    ResumeRequested,
    Stimulus,
    TargetReceived,
    TickPassed,
    TrajectoryClosed,
)
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import (
    CloseEnvironment,
    Command,
    EnvironmentNeed,
    Grant,
    Request,
    Resume,
    Revoke,
    Work,
)
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult, Feedback, UpstreamAnswer
from tests.shared.policy.strategies import SPECS

POOLS = ("cores@cpu", "slots@cpu", "cores@big")
KINDS = ("run", "act", "grade")
BATCHES = ("b1", "b2")
QUOTAS = {
    "few": (QuotaLimits((1.0,)), QuotaLimits((2.0,)), None),
    "some": (QuotaLimits((4.0,)), QuotaLimits((6.0,), (Rate(3.0, 2.0),))),
    "paced": (QuotaLimits((), (Rate(2.0, 1.0),)), QuotaLimits((), (Rate(5.0, 4.0, 2.0),)), QuotaLimits((1.0,))),
    "money": (QuotaLimits((), (Rate(60.0),)), QuotaLimits((), (Rate(100.0),)), QuotaLimits((), (Rate(500.0),))),
}
"""Quota -> limits that it is given, the first ones at the beginning."""


@dataclass(slots=True)
class History:
    """A dispatcher under random events, and everything that it was given and has decided."""

    rng: Random
    acting: float = 0.3
    """Fraction of the actions that run in environments."""
    taking: float = 0.0
    """Fraction of the actions that take quotas."""
    parking: float = 0.0
    """Fraction of the steps that park an action or let one continue. If not 0, some actions are of batches."""
    tenants: tuple[str, ...] = ("ada", "bob", "cyd")
    repeated: float = 0.0
    """Fraction of the actions outside environments that have the work of an earlier one."""
    tasks: tuple[str, ...] = ("task",)
    """Tasks of the actions."""
    dispatcher: Dispatcher = field(default_factory=lambda: Dispatcher(specs=SPECS))
    steps: list[tuple[float, Stimulus, list[Command]]] = field(default_factory=list)
    now: float = 100.0
    incarnations: dict[str, str] = field(default_factory=dict)
    works: dict[str, Work] = field(default_factory=dict)
    repeatable: dict[int, Work] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    """Granted actions that execute."""
    held: dict[str, deque[Grant]] = field(default_factory=dict)
    """Node -> grants that have not ended."""
    parked: dict[str, Grant] = field(default_factory=dict)
    """Grants whose attempts are parked; in no node's list meanwhile."""
    free: dict[tuple[str, str], int] = field(default_factory=dict)
    trajectories: list[str] = field(default_factory=list)

    def give(self, stimulus: Stimulus) -> None:
        commands = self.dispatcher.handle(self.now, stimulus)
        self.steps.append((self.now, stimulus, commands))
        for command in commands:
            if isinstance(command, Grant):
                self.held[command.node].append(command)
                self._start(command.node)
            elif isinstance(command, Resume):
                self.held[command.node].append(self.parked.pop(command.action))
                self._start(command.node)
            elif isinstance(command, Revoke):
                if command.action in self.parked:
                    self.held[command.node].append(self.parked.pop(command.action))
                self._end(command.node, command.action, "lost" if command.recall else "cancelled", revoked=True)
            elif isinstance(command, CloseEnvironment):
                incarnation = self.incarnations[command.node]
                self.give(EnvironmentEndReported(command.node, incarnation, command.trajectory, "closed", "closed"))

    def _start(self, node: str) -> None:
        for grant in self.held[node]:
            if grant.action in self.begun:
                continue
            if any(self.free.get((node, name), 0) < count for name, count in grant.units.items()):
                return  # a node queue keeps its order
            for name, count in grant.units.items():
                self.free[node, name] -= count
            self.begun.add(grant.action)

    def _end(self, node: str, action: str, status: str, *, revoked: bool = False) -> None:
        grant = next((one for one in self.held.get(node, ()) if one.action == action), None)
        if grant is None or (revoked and status == "lost" and action in self.begun):
            return
        self.held[node].remove(grant)
        if action in self.begun:
            self.begun.discard(action)
            for name, count in grant.units.items():
                self.free[node, name] += count
        self._start(node)
        result = AttemptResult("ok", True) if status == "ok" else AttemptResult("cancelled" if revoked else "lost")
        if revoked and status == "lost":
            result = AttemptResult("lost")
        if self.taking and grant.hold is not None and self.rng.random() < 0.05:
            answer = self.rng.choice(get_args(UpstreamAnswer))
            asked_s = self.rng.choice([0.0, 0.0, 0.5, 3.0])
            feedback = tuple(Feedback(quota, answer, asked_s) for quota in grant.hold.amounts)
            result = msgspec.structs.replace(result, feedback=feedback)
        self.give(AttemptsEnded((Ended(action, node, grant.attempt, grant.stage, result, units=grant.units),)))

    # ---- random events -----------------------------------------------------------------------------------------

    def join(self, at: int) -> None:
        rng, name = self.rng, f"n{at:02}"
        if name in self.incarnations:
            self.give(NodeLost(name, "stopped"))
        self.incarnations[name] = f"{int(self.incarnations.get(name, '0')) + 1}"
        self.begun -= {grant.action for grant in self.held.get(name, ())}
        self.held[name] = deque()
        self.parked = {action: grant for action, grant in self.parked.items() if grant.node != name}
        capacity = {"cores": rng.choice([2, 4, 8]), "slots": 3, "memory": rng.choice([2, 5, 9])}
        self.free.update({(name, resource): count for resource, count in capacity.items()})
        kinds = frozenset({"run", "act", "runtime.local"} if rng.random() < 0.7 else {"run", "grade"})
        ahead = frozenset({"cores"}) if rng.random() < 0.8 else frozenset[str]()
        node_class = "big" if at % 5 == 4 else "cpu"
        self.give(NodeJoined(name, self.incarnations[name], node_class, capacity, kinds, ahead))
        self.give(InventoryReported(name, self.incarnations[name], {}))

    def submit(self) -> None:
        rng = self.rng
        name = f"a{len(self.works)}"
        pool = rng.choices(POOLS, [8, 1, 2])[0]
        units = {pool.partition("@")[0]: rng.choice([1, 1, 1, 2, 4, 8])}
        if rng.random() < (0.5 if pool == POOLS[1] else 0.1):
            units["memory"] = 1
        lasts_s = rng.choice([0.002, 0.005, 0.015, 0.5, 2.0, 5.0, None])
        need = None
        kind = rng.choice(KINDS)
        amounts: tuple[int, ...] = ()
        elasticity = None
        if pool == POOLS[0] and rng.random() < self.acting:
            if not self.trajectories or rng.random() < 0.3:
                self.trajectories.append(f"t{len(self.works)}")
            held = {"memory": rng.choice([1, 2])}
            need = EnvironmentNeed(rng.choice(self.trajectories[-12:]), "runtime.local", held)
            units, kind = {"cores": rng.choice([1, 1, 2]), **({"memory": 1} if rng.random() < 0.3 else {})}, "act"
        elif pool != POOLS[1] and rng.random() < 0.25:
            units = {"cores": 1}
            amounts, elasticity = (1, 2, 3, 4), Elasticity("amdahl", serial=0.05)
        work = Work("work", kind, pool, units, 30.0, rng.random() < 0.9, amounts, elasticity, lasts_s)
        if self.taking and rng.random() < self.taking:
            names = rng.sample(sorted(QUOTAS), rng.choice([1, 1, 2]))
            work = replace(work, quotas={quota: rng.choice([1.0, 1.0, 2.0]) for quota in names})
        if self.repeated and need is None and elasticity is None and rng.random() < self.repeated:
            work = self.repeatable.setdefault(rng.randrange(4), work)
        self.works[name] = work
        arrival = (round(self.now * 1000), len(self.works))
        tenant = rng.choice(self.tenants)
        batch = rng.choice(["", "", *BATCHES]) if self.parking else ""
        task = rng.choice(self.tasks) if len(self.tasks) > 1 else self.tasks[0]
        request = Request(name, tenant, task, batch, arrival, (work,), self.now + 60, need=need)
        self.give(RequestsSubmitted((request,)))

    def park(self) -> None:
        """Move a batch, park a running action, or ask for a parked one to continue or to stay parked."""
        rng, actions = self.rng, self.dispatcher.registry.actions
        if not self.parking or rng.random() >= self.parking:
            return
        if rng.random() < 0.1:
            self.give(EstimateReceived(rng.choice(BATCHES), self.now + rng.uniform(0, 100)))
        running = [
            grant
            for held in self.held.values()
            for grant in held
            if grant.action in self.begun
            and (action := actions.get(grant.action)) is not None
            and (action.request.need is not None and action.allocated and action.attempt == grant.attempt)
            and action.state in ("granted", "running")
        ]
        if running and rng.random() < 0.5:
            grant = rng.choice(running)
            self.held[grant.node].remove(grant)
            self.begun.discard(grant.action)
            for name, count in grant.units.items():
                self.free[grant.node, name] += count
            self.parked[grant.action] = grant
            self._start(grant.node)
            self.give(AttemptParked(grant.action, grant.attempt))
        elif self.parked:
            name = rng.choice(sorted(self.parked))
            self.give(ResumeRequested(name) if rng.random() < 0.85 else ParkRequested(name))

    def change_quota(self) -> None:
        """Give a quota other limits, now and then."""
        if self.taking and self.rng.random() < 0.03:
            quota = self.rng.choice(list(QUOTAS))
            self.give(QuotaSet(quota, self.rng.choice(QUOTAS[quota]), self.rng.choice([None, self.now])))

    def step(self) -> None:
        """One random event."""
        rng = self.rng
        self.now += rng.choice([0.0, 0.001, 0.01, 0.1, 0.4])
        self.change_quota()
        self.park()
        event = rng.random()
        if event < 0.5:
            self.submit()
        elif event < 0.87:
            running = [
                (node, one.action) for node, held in self.held.items() for one in held if one.action in self.begun
            ]
            if running:
                self._end(*rng.choice(running), "ok" if rng.random() < 0.95 else "lost")
        elif event < 0.9:
            self.join(rng.randrange(len(self.incarnations)))
        elif event < 0.94:
            self.give(TargetReceived(rng.choice(POOLS), rng.randrange(0, 60)))
        elif event < 0.945:
            self.give(PlannerChecked(rng.random() < 0.5))
        elif event < 0.95 and self.trajectories:
            self.give(PriorityChanged(rng.choice(self.trajectories[-12:]), rng.choice([-5.0, 0.0, 3.0])))
        elif event < 0.96 and self.trajectories:
            self.give(TrajectoryClosed(self.trajectories.pop(rng.randrange(len(self.trajectories)))))
        elif event < 0.97 and self.works:
            self.give(ActionCancelled(rng.choice(list(self.works)), "not wanted"))
        else:
            for name, incarnation in self.incarnations.items():
                self.give(NodeSeen(name, incarnation))
            self.give(TickPassed())


def history(
    seed: int,
    nodes: int,
    steps: int,
    acting: float = 0.3,
    taking: float = 0.0,
    parking: float = 0.0,
    tenants: tuple[str, ...] = ("ada", "bob", "cyd"),
) -> Iterator[History]:
    """Yield a random history after each step."""
    made = History(Random(seed), acting, taking, parking, tenants)
    for quota, limits in QUOTAS.items() if taking else ():
        made.give(QuotaSet(quota, limits[0]))
    for at in range(nodes):
        made.join(at)
    for _ in range(steps):
        made.step()
        yield made
