"""Machines that execute what reaches them, without doubt and without a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.formulation import Command, Grant
from shared.policy.ledger import Node
from shared.policy.reports import Holding


@dataclass(slots=True)
class Run:
    """An attempt that a host executes."""

    grant: Grant
    since: float
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    node: str
    incarnation: str
    epoch: int
    held: dict[str, Holding]


@dataclass(slots=True)
class Host:
    """One machine. It executes at once what it is granted, so a grant that does not fit is an error."""

    name: str
    node_class: str
    capacity: dict[str, int]
    kinds: frozenset[str]
    life: int = 1
    alive: bool = True
    heard: bool = True
    """False: its heartbeats do not get through, though it goes on executing."""
    inbox: list[tuple[int, Command]] = field(default_factory=list)
    """(leader's epoch, message), in order."""
    runs: dict[str, Run] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"{self.name}/{self.life}"

    def hello(self) -> Node:
        return Node(self.name, self.incarnation, self.node_class, self.capacity, self.kinds)

    def begin(self, grant: Grant, now: float) -> None:
        assert grant.action not in self.runs, f"{self.name} holds {grant.action} already"
        for resource, units in grant.units.items():
            taken = sum(run.grant.units.get(resource, 0) for run in self.runs.values())
            assert taken + units <= self.capacity.get(resource, 0), f"{self.name} cannot hold {grant}"
        self.runs[grant.action] = Run(grant, now)
