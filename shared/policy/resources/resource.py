"""Resources of a node: the protocol of all of them, the plain count, and what a resource declares about itself.

A node's resource is an object: it decides what fits, what is taken and given back, and which states the DP of elastic
scheduling sees. Cores and memory are plain counts (`PlainUnits`). A resource with structure, for example aligned chunks
of GPUs, implements the same protocol (`Resource`) and is declared by a `ResourceSpec` whose `make` returns it. Nothing
else in the policy knows a resource by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from shared.policy.resources.engine_records import EngineRecords, service_row

UNLIMITED = 1 << 20
"""Units of an unlimited resource on a node that reports no limit."""


class Operator(Protocol):
    """States of a resource, for the DP (ARL-Tangram Algorithm 3). A state is a number that says which units are free;
    its meaning is private to the operator.
    """

    @property
    def units(self) -> int:
        """Units that are free in the last state."""

    @property
    def states(self) -> int:
        """Number of states, from 0; the last one is the present one, with all units that the DP may share (END)."""

    def left(self, state: int, units: int) -> int | None:
        """Return the state after taking this many units (one or more) (PREV); None: it cannot give them."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Identical units: a state is the number of free ones. CPU cores of one node."""

    units: int

    @property
    def states(self) -> int:
        return self.units + 1

    def left(self, state: int, units: int) -> int | None:
        return state - units if units <= state else None


class Use(NamedTuple):
    """Purpose of a holder's units, for resources whose structure depends on it. Plain counts ignore it."""

    service: str = ""
    """Model service that it uses; empty: none, and it shares its units with nobody."""
    now: float = 0.0
    """Time of the grant."""
    numbers: tuple[int, ...] = ()
    """Numbers of its units, as its node reports or a plan has chosen them; empty: the resource chooses."""
    lasts_s: float = 0.0
    """Expected seconds from the end of a restore to the end of the use."""


NO_USE: Final = Use()

Rank = tuple[float, ...]
"""Position of a node among those that fit; smaller is better."""


class Resource(Protocol):
    """One resource of one node. Units are counted; which of them a holder has is private to the resource.

    Law: what a holder takes stays taken until the same holder gives it back.
    """

    @property
    def spec(self) -> ResourceSpec:
        """Properties that it has on every node."""

    @property
    def capacity(self) -> int:
        """Units that exist."""

    @property
    def share(self) -> int | None:
        """Units that the node was assigned to own, for scaled resources; None: all."""

    @share.setter
    def share(self, units: int | None) -> None: ...

    @property
    def used(self) -> int:
        """Units that are taken."""

    @property
    def free(self) -> int:
        """Units that the node owns and that are not taken; never negative. Perhaps they cannot be granted together."""

    @property
    def shared(self) -> int:
        """Units that are counted once in `used` although several holders have them, for each holder but one."""

    def fits(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder can take this many units now."""

    def could_ever(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder could take this many if nothing were taken and the node owned all."""

    def rank(self, units: int, use: Use = NO_USE) -> Rank | None:
        """Return the position of this node for a holder; None: it does not fit now. Asked of structured resources."""

    def take(self, units: int, holder: str, use: Use = NO_USE) -> None:
        """Take units for a holder, also more than are free: a node may report what should not be there."""

    def give_back(self, units: int, holder: str) -> None:
        """Give a holder's units back.

        Raises:
            AssertionError: it has not taken so many.
        """

    def undo(self, units: int, holder: str) -> None:
        """Give back what a holder was granted in this round, as if it had not been granted: nothing was sent."""

    @property
    def sharing(self) -> Container[str]:
        """Holders that share units with others."""

    def engine_records(self) -> EngineRecords | None:
        """Return the state of its chunks, for plans of model calls; None: it has none."""

    def service_row(self, service: str) -> bytes:
        """Return what a plan needs to know of a model service here: `engine_records.service_row`."""

    def restores_on(self, units: int, use: Use) -> tuple[int, ...]:
        """Return the numbers of the units that a holder would get now, if its model service has to be restored there;
        else nothing.
        """

    def evicts(self, units: int, use: Use, among: Collection[str]) -> Iterable[tuple[str, float, float]]:
        """Return the model services that would have to leave for a holder now, of those in `among`: `Turn`."""

    def begins_s(self, units: int, use: Use) -> float:
        """Return the time at which a holder would execute if it took the units now: after the restore of its model
        service, and the evictions before it.
        """

    def executes(self, holder: str, now: float) -> None:
        """Note that a holder executes: the restore of its model service has ended."""

    def numbers(self, holder: str) -> tuple[int, ...]:
        """Return the numbers of a holder's units; empty if units have none."""

    def states(self, but: Mapping[str, int]) -> Operator:
        """Return the states from which the DP shares the free units, with those of the holders `but` given back."""


Score = Callable[[Resource, int], float]
"""Strategy of placement: the score of a resource for a holder of so many units. The node with the highest wins."""


def most_free(resource: Resource, _units: int) -> float:
    """Score of the number of free units: the load spreads evenly."""
    return resource.free


def least_load(resource: Resource, units: int) -> float:
    """Score of the share of its units that is not taken afterwards: big and small nodes fill up alike."""
    return -load(resource.used + units, resource.capacity)


def load(used: int, capacity: int) -> float:
    """Share of a resource that is taken; infinity if the capacity is zero."""
    return used / capacity if capacity else math.inf


class PlainUnits:
    """Identical units of one node. `free` is kept up to date, because a scheduling round reads it for every node."""

    __slots__ = ("_share", "capacity", "free", "spec", "used")

    def __init__(self, capacity: int, spec: ResourceSpec | None = None) -> None:
        self.spec = PLAIN if spec is None else spec
        self.capacity = capacity
        self.used = 0
        self.free = max(0, capacity)
        self._share: int | None = None

    def __repr__(self) -> str:
        return f"PlainUnits({self.used} of {self.capacity} used, share {self._share})"

    @property
    def share(self) -> int | None:
        """Units that the node was assigned to own; None: all."""
        return self._share

    @share.setter
    def share(self, units: int | None) -> None:
        self._share = units
        self._count()

    @property
    def shared(self) -> int:
        """Holders share no units."""
        return 0

    def fits(self, units: int, _use: Use = NO_USE) -> bool:
        """Return whether this many units are free."""
        return units <= self.free

    def could_ever(self, units: int, _use: Use = NO_USE) -> bool:
        """Return whether this many units exist."""
        return units <= self.capacity

    def rank(self, units: int, _use: Use = NO_USE) -> Rank | None:
        """The node with the most free units is first."""
        return (-self.free,) if units <= self.free else None

    def take(self, units: int, _holder: str = "", _use: Use = NO_USE) -> None:
        """Take units. They are identical, so the holder does not matter."""
        self.used += units
        self._count()

    def give_back(self, units: int, _holder: str = "") -> None:
        """Give units back."""
        self.used -= units
        assert self.used >= 0, f"{-self.used} more given back than taken"
        self._count()

    def undo(self, units: int, holder: str) -> None:
        """Give units back."""
        self.give_back(units, holder)

    @property
    def sharing(self) -> Container[str]:
        """Nobody."""
        return ()

    def engine_records(self) -> None:
        """It has no chunks."""

    def service_row(self, _service: str) -> bytes:
        """It serves none."""
        return service_row(None)

    def restores_on(self, _units: int, _use: Use) -> tuple[int, ...]:
        """Return nothing."""
        return ()

    def evicts(self, _units: int, _use: Use, _among: Collection[str]) -> Iterable[tuple[str, float, float]]:
        """Return nothing."""
        return ()

    def begins_s(self, _units: int, use: Use) -> float:
        """Return now: there is no restore."""
        return use.now

    def executes(self, _holder: str, _now: float) -> None:
        """Do nothing: there is no restore."""

    def numbers(self, _holder: str) -> tuple[int, ...]:
        """Units are identical."""
        return ()

    def states(self, but: Mapping[str, int]) -> Counted:
        """One state for each number of free units."""
        return Counted(self.free + sum(but.values()))

    def _count(self) -> None:
        free = (self.capacity if self._share is None else self._share) - self.used
        self.free = max(0, free)


HeldBy = Literal["action", "environment", "creation"]
"""Holder of the units of a resource: an action while it runs, an environment until its end, or an environment only
while it is created."""


def _counts(capacity: int, spec: ResourceSpec) -> Resource:
    return PlainUnits(capacity, spec)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """Properties of a resource, the same on every node. Declared once, beside its name."""

    held_by: HeldBy = "action"
    unlimited: bool = False
    """A node that does not report it has no limit."""
    shortage: str = ""
    """Reason for callers if too few units are free; empty: a general text."""
    score: Score = most_free
    """Strategy of placement."""
    make: Callable[[int, ResourceSpec], Resource] = _counts
    """Structure: makes the resource of a node with so many units."""
    answers: bool = False
    """Attempts that take it from their pool report what external services answer."""

    @property
    def is_structured(self) -> bool:
        """Units have numbers and an arrangement: nodes are chosen by `Resource.rank`."""
        return self.make is not _counts

    @property
    def is_plain(self) -> bool:
        """Units are counted, and the node with the most free ones wins. So nodes can be ranked for all requests."""
        return self.score is most_free and self.make is _counts


PLAIN = ResourceSpec()
"""Properties of a resource that declares none: counted units, held by actions."""

Specs = Mapping[str, ResourceSpec]
"""Resource -> its properties; `PLAIN` for one that is missing."""


def lasting(specs: Specs, units: Mapping[str, int]) -> dict[str, int]:
    """Units of an environment that it holds to its end, without those that it holds only while it is created."""
    return {name: count for name, count in units.items() if specs.get(name, PLAIN).held_by != "creation"}
