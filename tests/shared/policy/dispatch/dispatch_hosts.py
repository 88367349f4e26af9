"""Machines that execute what reaches them, without doubt and without a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.model.formulation import Command, Grant, TrajectoryEnd
from shared.policy.model.reports import HeldGrant
from shared.policy.resources.ledger import Node


@dataclass(slots=True)
class Run:
    """An attempt that a host executes."""

    grant: Grant
    since: float
    revoked: bool = False
    queue_s: float = 0.0
    """How long it had waited in the host's line when it began."""

    def waited(self, now: float) -> Run:
        """What waited in line since then, as it begins or is taken out."""
        return Run(self.grant, now, queue_s=now - self.since)


@dataclass(frozen=True, slots=True)
class Inventory:
    node: str
    incarnation: str
    epoch: int
    held: dict[str, HeldGrant]
    environments: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Gone:
    """A host's word that an environment is no more."""

    node: str
    incarnation: str
    trajectory: str
    ended: TrajectoryEnd


@dataclass(slots=True)
class Host:
    """One machine. It executes at once what it is granted; what does not fit waits in its line, if it keeps one."""

    name: str
    node_class: str
    capacity: dict[str, int]
    kinds: frozenset[str]
    prefetches: frozenset[str] = frozenset()
    starts: int = 1
    alive: bool = True
    heard: bool = True
    """False: its heartbeats do not get through, though it goes on executing."""
    inbox: list[tuple[int, Command]] = field(default_factory=list)
    """(leader's epoch, message), in order."""
    runs: dict[str, Run] = field(default_factory=dict)
    line: dict[str, Run] = field(default_factory=dict)
    """What waits for units, in order."""
    environments: dict[str, dict[str, int]] = field(default_factory=dict)
    """Trajectory -> what its environment holds here."""

    @property
    def incarnation(self) -> str:
        return f"{self.name}/{self.starts}"

    def hello(self) -> Node:
        return Node(self.name, self.incarnation, self.node_class, self.capacity, self.kinds, prefetches=self.prefetches)

    def fits(self, grant: Grant) -> bool:
        def taken(resource: str) -> int:
            held = [run.grant.units for run in self.runs.values()] + list(self.environments.values())
            return sum(units.get(resource, 0) for units in held)

        return all(taken(name) + units <= self.capacity.get(name, 0) for name, units in grant.units.items())

    def take(self, grant: Grant, now: float) -> list[Run]:
        """Returns what begins with that."""
        assert grant.action not in {**self.runs, **self.line}, f"{self.name} holds {grant.action} already"
        if not grant.units.keys() & self.prefetches:
            assert self.fits(grant), f"{self.name} cannot hold {grant}"
        self.line[grant.action] = Run(grant, now)
        return self.advance(now)

    def advance(self, now: float) -> list[Run]:
        """Begin what can begin, strictly in order."""
        begun: list[Run] = []
        while self.line and self.fits(next(iter(self.line.values())).grant):
            run = self.line.pop(next(iter(self.line)))
            self.runs[run.grant.action] = run.waited(now)
            begun.append(self.runs[run.grant.action])
        return begun

    def held(self, now: float) -> dict[str, HeldGrant]:
        """Its inventory."""

        def holding(run: Run, *, queued: bool) -> HeldGrant:
            grant = run.grant
            return HeldGrant(grant.stage, grant.attempt, 0.0 if queued else now - run.since, grant.units, queued)

        held = {action_id: holding(run, queued=False) for action_id, run in self.runs.items()}
        return held | {action_id: holding(run, queued=True) for action_id, run in self.line.items()}
