"""Simulated hosts: they execute the messages that reach them."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.model.formulation import Command, Grant, TrajectoryEnd
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import SPECS


@dataclass(slots=True)
class Run:
    """An attempt that a host executes."""

    grant: Grant
    since: float
    revoked: bool = False
    queue_s: float = 0.0
    """Seconds in the host's queue before it began."""
    parked: bool = False
    resuming: bool = False
    """It is parked and has asked to continue."""
    paused_at: float = 0.0
    paused_s: float = 0.0
    """Seconds for which it was parked, up to its last `Resume`."""

    def waited(self, now: float) -> Run:
        """Return the queued attempt as it begins or leaves the queue."""
        return Run(self.grant, now, queue_s=now - self.since)


@dataclass(frozen=True, slots=True)
class Inventory:
    node: str
    incarnation: str
    epoch: int
    held: dict[str, HeldGrant]
    environments: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class EnvironmentEndReport:
    """A host's report that an environment has ended."""

    node: str
    incarnation: str
    trajectory: str
    ended: TrajectoryEnd


@dataclass(frozen=True, slots=True)
class ParkReport:
    """A host's report that it has parked an attempt, or (`resuming`) that a parked one asks to continue."""

    action: str
    attempt: int
    resuming: bool = False


@dataclass(slots=True)
class Host:
    """One host. It executes grants at once; those that do not fit wait in its queue, if it keeps one."""

    name: str
    node_class: str
    capacity: dict[str, int]
    kinds: frozenset[str]
    prefetches: frozenset[str] = frozenset()
    starts: int = 1
    alive: bool = True
    reachable: bool = True
    """False: its heartbeats are lost, though it continues to execute."""
    inbox: list[tuple[int, Command]] = field(default_factory=list)
    """(leader's epoch, message), in order."""
    runs: dict[str, Run] = field(default_factory=dict)
    queue: dict[str, Run] = field(default_factory=dict)
    """Attempts that wait for units, in order."""
    environments: dict[str, dict[str, int]] = field(default_factory=dict)
    """Trajectory -> units that its environment holds here."""

    @property
    def incarnation(self) -> str:
        return f"{self.name}/{self.starts}"

    def hello(self) -> Node:
        return Node(
            self.name, self.incarnation, self.node_class, self.capacity, self.kinds, SPECS, prefetches=self.prefetches
        )

    def fits(self, grant: Grant) -> bool:
        def taken(resource: str) -> int:
            held = [run.grant.units for run in self.runs.values() if not run.parked] + list(self.environments.values())
            return sum(units.get(resource, 0) for units in held)

        return all(taken(name) + units <= self.capacity.get(name, 0) for name, units in grant.units.items())

    def take(self, grant: Grant, now: float) -> list[Run]:
        """Receive a grant. Returns the attempts that begin now."""
        assert grant.action not in {**self.runs, **self.queue}, f"{self.name} holds {grant.action} already"
        if not any(grant.units.get(name, 0) for name in self.prefetches):  # it waits behind nothing, as at `Attempts`
            assert self.fits(grant), f"{self.name} cannot hold {grant}"
            self.runs[grant.action] = Run(grant, now)
            return [self.runs[grant.action]]
        self.queue[grant.action] = Run(grant, now)
        return self.advance(now)

    def advance(self, now: float) -> list[Run]:
        """Begin queued attempts that fit, strictly in order."""
        begun: list[Run] = []
        while self.queue and self.fits(next(iter(self.queue.values())).grant):
            run = self.queue.pop(next(iter(self.queue)))
            self.runs[run.grant.action] = run.waited(now)
            begun.append(self.runs[run.grant.action])
        return begun

    def held(self, now: float) -> dict[str, HeldGrant]:
        """Its inventory."""

        def holding(run: Run, *, queued: bool) -> HeldGrant:
            grant = run.grant
            paused_s = run.paused_s + (now - run.paused_at if run.parked else 0.0)
            return HeldGrant(
                grant.stage,
                grant.attempt,
                0.0 if queued else now - run.since - paused_s,
                grant.units,
                queued,
                run.parked,
                run.resuming,
                paused_s,
            )

        held = {action_id: holding(run, queued=False) for action_id, run in self.runs.items()}
        return held | {action_id: holding(run, queued=True) for action_id, run in self.queue.items()}
