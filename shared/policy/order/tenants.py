"""Weighted fair sharing between tenants, earliest batch first inside each (architecture §3).

Each tenant has a virtual time: the unit-seconds it was granted, divided by its weight. The tenant furthest behind goes
first. One that was idle starts level with the furthest behind of those that wait, so idleness is not saved up.

A tenant keeps its turn until its head is granted, however long that head must wait for its units and whoever passes it
meanwhile: otherwise the work that passes a big head would cost the head its place, time and again.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.policy.order.batchqueue import BatchQueue
from shared.policy.order.ebf import EbfKey

LEAST_CHARGE_S = 0.001
"""Unit-seconds a grant costs at least: work that takes no time must not keep others waiting for ever."""


@dataclass(slots=True)
class FairQueue:
    """Waiting actions of one pool. Head in O(1) for one tenant, O(tenants) where the turn passes."""

    weights: dict[str, float] = field(default_factory=dict)
    """Tenant -> weight > 0; 1 where not named."""
    _queues: dict[str, BatchQueue] = field(default_factory=dict)
    """Of tenants with waiting work."""
    _virtual: dict[str, float] = field(default_factory=dict)
    """Of tenants that were granted something, or wait, since last nobody waited."""
    _turn: str = ""
    """Whose head is served next; meaningless when that tenant waits no more."""
    _size: int = 0

    def __len__(self) -> int:
        return self._size

    def push(self, tenant: str, key: EbfKey, action: str, batch: str = "") -> None:
        """Queue an action; `batch`: empty outside any."""
        queue = self._queues.get(tenant)
        if queue is None:
            floor = min((self._virtual[name] for name in self._queues), default=0.0)
            self._virtual[tenant] = max(self._virtual.get(tenant, 0.0), floor)
            queue = self._queues[tenant] = BatchQueue()
        queue.push(key, action, batch)
        self._size += 1

    def remove(self, tenant: str, action: str) -> bool:
        """Take an action out; False when it does not wait here. What tenants used is forgotten once nobody waits."""
        queue = self._queues.get(tenant)
        if queue is None or not queue.discard(action):
            return False
        self._size -= 1
        if not queue:
            del self._queues[tenant]
            if not self._queues:
                self._virtual.clear()
        return True

    def move(self, tenant: str, batch: str, due_s: float) -> None:
        """Give a batch another T, however many of its actions wait; none may."""
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.move(batch, due_s)

    def charge(self, tenant: str, unit_s: float, *, ends_turn: bool = True) -> None:
        """Book what a tenant is granted, in expected unit-seconds. Call it before the granted action is removed.

        `ends_turn`: it was the head's turn. False for work that passes a head that must wait.
        """
        self._virtual[tenant] += max(unit_s, LEAST_CHARGE_S) / self.weights.get(tenant, 1.0)
        if ends_turn:
            self._turn = ""

    def refund(self, tenant: str, unit_s: float, *, turn: bool) -> None:
        """A grant is taken back before it has left: what it was charged is not owed. Call it when it waits again.

        `turn`: it had been its turn, and is again.
        """
        self._virtual[tenant] = max(
            0.0, self._virtual[tenant] - max(unit_s, LEAST_CHARGE_S) / self.weights.get(tenant, 1.0)
        )
        if turn:
            self._turn = tenant

    def head(self) -> str | None:
        """Whose turn it is."""
        if not self._size:
            return None
        queue = self._queues.get(self._turn)
        if queue is None:
            self._turn = next(iter(self._queues)) if len(self._queues) == 1 else self._furthest_behind()
            queue = self._queues[self._turn]
        return queue.head()

    def head_key(self) -> EbfKey:
        """Key of the head.

        Raises:
            IndexError: nobody waits.
        """
        if self.head() is None:
            raise IndexError("nobody waits")
        return self._queues[self._turn].peek()[0]

    def ahead(self, tenant: str, key: EbfKey, *, most: int = 4096) -> Iterator[str]:
        """What would be served before a newcomer of this tenant with this key: of its own queue, at most `most`.

        Other tenants' shares run beside it and are not counted: an optimistic bound where tenants compete.
        """
        queue = self._queues.get(tenant)
        if queue is None:
            return
        for seen, action in enumerate(queue):
            if seen >= most or queue.key(action) > key:
                return
            yield action

    def __iter__(self) -> Iterator[str]:
        """Actions tenant by tenant, in each by EBF: first the tenant whose turn it is, then the furthest behind."""
        for tenant in self._tenants():
            yield from self._queues[tenant]

    def mixed(self) -> Iterator[str]:
        """One action of each tenant in turn, in that order; so however much one has, the first of all are soon seen."""
        walks = deque(iter(self._queues[tenant]) for tenant in self._tenants())
        while walks:
            for action in itertools.islice(walks[0], 1):
                yield action
                walks.rotate(-1)
                break
            else:
                walks.popleft()

    def _tenants(self) -> list[str]:
        if self.head() is None:
            return []
        others = (name for name in self._queues if name != self._turn)
        return [self._turn, *sorted(others, key=lambda name: (self._virtual[name], name))]

    def _furthest_behind(self) -> str:
        return min(self._queues, key=lambda name: (self._virtual[name], name))

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert all(self._queues.values()), "a tenant without waiting work has no queue"
        assert self._size == sum(map(len, self._queues.values())), "the size is the sum of the queues"
        assert self._queues.keys() <= self._virtual.keys(), "who waits has a virtual time"
        assert self._queues or not self._virtual, "what was used is forgotten once nobody waits"
