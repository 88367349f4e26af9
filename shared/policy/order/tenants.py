"""Weighted fair sharing between tenants, earliest batch first inside each.

Each tenant has a virtual time: the unit-seconds it was granted, divided by its weight. The tenant with the lowest goes
first. A tenant that was idle starts level with the lowest of those that wait, so idleness is not saved up.

A tenant keeps its turn until its head is granted, however long the head waits for its units and whatever is backfilled
meanwhile. Otherwise the backfilled work would cost a big head its place, again and again. The turn after that can be
promised to a tenant (`turn_next`), however much it was granted.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from shared.policy.order.batchqueue import BatchQueue
from shared.policy.order.ebf import EbfKey
from shared.policy.order.ranked_tenants import RankedTenants

DEFAULT_WEIGHT = 1.0
LEAST_CHARGE_S = 0.001
"""Least unit-seconds that a grant costs. Otherwise work of no duration could delay other tenants forever."""

MOST_IDLE: Final = 4096
"""Most idle tenants whose virtual time is kept. While new tenants always wait, the lowest virtual time may stay the
same forever."""


@dataclass(slots=True)
class FairQueue:
    """Waiting actions of one pool. The head costs O(1) while a tenant keeps its turn, O(log tenants) when it passes;
    `mixed` costs as many tenants as are walked.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> weight > 0; default 1. Queues share the mapping. A change applies to later charges only.
    """
    _queues: dict[str, BatchQueue] = field(default_factory=dict)
    """Queues of tenants with waiting work."""
    _virtual: dict[str, float] = field(default_factory=dict)
    """Virtual times of tenants that wait, and of idle ones that were granted more than the first of those that wait."""
    _ranked: RankedTenants = field(default_factory=RankedTenants)
    """Tenants with waiting work, by virtual time."""
    _idle: RankedTenants = field(default_factory=RankedTenants)
    """Other tenants with a virtual time."""
    _turn: str = ""
    """Tenant whose head is served next; meaningless if that tenant has no waiting work."""
    _after: str = ""
    """Tenant that has the turn after this one, if it has waiting work then; empty: the one with the lowest virtual
    time."""
    _size: int = 0
    _since: dict[str, int] = field(default_factory=dict)
    """Tenant -> number of its last start at the level of others. Charges from before it no longer count."""
    _starts: int = 0

    def __len__(self) -> int:
        return self._size

    def push(self, tenant: str, key: EbfKey, action: str, batch: str = "") -> None:
        """Queue an action; `batch`: empty outside a batch."""
        queue = self._queues.get(tenant)
        if queue is None:
            least = self._ranked.first()[0] if self._queues else 0.0
            time = self._virtual.get(tenant)
            if time is None:
                self._forget_idle(least)
            elif tenant in self._idle:
                self._idle.remove(tenant)
            if time is None or time < least:
                self._starts += 1
                time, self._since[tenant] = least, self._starts
            self._virtual[tenant] = time
            self._ranked.set(tenant, time)
            queue = self._queues[tenant] = BatchQueue()
        queue.push(key, action, batch)
        self._size += 1

    def remove(self, tenant: str, action: str) -> bool:
        """Remove an action; False if it does not wait here. Virtual times are reset when the queue is empty."""
        queue = self._queues.get(tenant)
        if queue is None or not queue.discard(action):
            return False
        self._size -= 1
        if not queue:
            self._remove_tenant(tenant)
        return True

    def _forget_idle(self, least: float) -> None:
        """Forget idle tenants that would start level if they came back, and the lowest beyond `MOST_IDLE`.

        O(log tenants) for each.
        """
        while self._idle and (self._idle.first()[0] <= least or len(self._idle) > MOST_IDLE):
            name = self._idle.first()[1]
            self._idle.remove(name)
            del self._virtual[name], self._since[name]

    def update(self, tenant: str, key: EbfKey, action: str) -> bool:
        """Give an action another key; False if it does not wait here. Virtual times and the turn stay."""
        queue = self._queues.get(tenant)
        return queue is not None and queue.update(key, action)

    def remove_batch(self, tenant: str, batch: str) -> list[str]:
        """Remove the actions of a batch. Returns them, in no order."""
        queue = self._queues.get(tenant)
        if queue is None:
            return []
        removed = queue.discard_batch(batch)
        self._size -= len(removed)
        if not queue:
            self._remove_tenant(tenant)
        return removed

    def _remove_tenant(self, tenant: str) -> None:
        """Remove the queue of a tenant, which has become empty. Its virtual time stays while others wait."""
        del self._queues[tenant]
        self._ranked.remove(tenant)
        if self._queues:
            self._idle.set(tenant, self._virtual[tenant])
            return
        self._virtual.clear()
        self._since.clear()
        if self._idle:
            self._idle = RankedTenants()

    def move(self, tenant: str, batch: str, due_s: float) -> None:
        """Set a batch's T, however many of its actions wait here (possibly none)."""
        queue = self._queues.get(tenant)
        if queue is not None:
            queue.move(batch, due_s)

    def charge(self, tenant: str, unit_s: float, *, ends_turn: bool = True) -> int:
        """Charge a tenant for a grant, in expected unit-seconds. Call it before the granted action is removed.

        `ends_turn`: the head was granted. False for backfilled work. Returns a number for `credit`.
        """
        time = self._virtual[tenant] = self._virtual[tenant] + self._cost(tenant, unit_s)
        self._ranked.set(tenant, time)
        if ends_turn:
            self._turn = ""
        return self._since[tenant]

    def refund(self, tenant: str, unit_s: float, *, turn: bool) -> None:
        """Refund a grant that was undone before it was sent. Call it after the action is queued again.

        `turn`: it was granted as the head in turn, and its tenant gets the turn back.
        """
        time = self._virtual[tenant] = max(0.0, self._virtual[tenant] - self._cost(tenant, unit_s))
        self._ranked.set(tenant, time)
        if turn:
            self._turn = tenant

    def credit(self, tenant: str, unit_s: float, since: int) -> None:
        """Give back the unused part of a charge, after the action has left the queue.

        `since`: what `charge` returned. No effect if the tenant has started at the level of others after the charge: it
        would have started there too if less had been charged.
        """
        if self._since.get(tenant) == since:
            time = self._virtual[tenant] = max(
                0.0, self._virtual[tenant] - unit_s / self.weights.get(tenant, DEFAULT_WEIGHT)
            )
            (self._ranked if tenant in self._queues else self._idle).set(tenant, time)

    def head(self) -> str | None:
        """Head of the tenant in turn."""
        if not self._size:
            return None
        queue = self._queues.get(self._turn)
        if queue is None:
            self._turn, self._after = self._next(), ""
            queue = self._queues[self._turn]
        return queue.head()

    def _next(self) -> str:
        if len(self._queues) == 1:
            return next(iter(self._queues))
        return self._after if self._after in self._queues else self._ranked.first()[1]

    def turn_next(self, tenant: str) -> None:
        """Promise the turn after the present one to a tenant with waiting work. The first promise holds until then."""
        if tenant in self._queues and tenant != self._turn and self._after not in self._queues:
            self._after = tenant

    def first_of(self, tenant: str) -> str | None:
        """First action of a tenant, also if another one is in turn; None: it has none."""
        queue = self._queues.get(tenant)
        return None if queue is None else queue.head()

    def head_key(self) -> EbfKey:
        """Key of the head.

        Raises:
            IndexError: the queue is empty.
        """
        if self.head() is None:
            raise IndexError("the queue is empty")
        return self._queues[self._turn].peek()[0]

    def before(self, tenant: str, key: EbfKey, *, most: int = 4096) -> Iterator[str]:
        """Actions of this tenant that would be served before a new one with this key, at most `most`.

        Other tenants' shares are not counted: an optimistic bound if tenants compete.
        """
        queue = self._queues.get(tenant)
        if queue is None:
            return
        for seen, action in enumerate(queue):
            if seen >= most or queue.key(action) > key:
                return
            yield action

    def __iter__(self) -> Iterator[str]:
        """Actions tenant by tenant, in EBF order inside each: first the tenant in turn, then by virtual time."""
        for tenant in self._tenants():
            yield from self._queues[tenant]

    def mixed(self) -> Iterator[str]:
        """One action of each tenant in turn, in that order. So the first of each are seen soon, however much one tenant
        has.
        """
        queues = []
        for tenant in self._tenants():
            queue = self._queues[tenant]
            yield queue.head()  # a walk costs more
            queues.append(queue)
        walks = deque(itertools.islice(queue, 1, None) for queue in queues)
        while walks:
            for action in itertools.islice(walks[0], 1):
                yield action
                walks.rotate(-1)
                break
            else:
                walks.popleft()

    def _tenants(self) -> Iterator[str]:
        if self.head() is None:
            return
        yield self._turn
        yield from (name for name in self._ranked if name != self._turn)

    def _cost(self, tenant: str, unit_s: float) -> float:
        """Virtual time of a grant."""
        return max(unit_s, LEAST_CHARGE_S) / self.weights.get(tenant, DEFAULT_WEIGHT)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert all(self._queues.values()), "a tenant without waiting work has no queue"
        assert self._size == sum(map(len, self._queues.values())), "the size is the sum of the queues"
        assert self._queues.keys() <= self._virtual.keys(), "every waiting tenant has a virtual time"
        self._idle.check()
        assert set(self._idle) == self._virtual.keys() - self._queues.keys(), "idle tenants with a virtual time"
        self._ranked.check()
        by_time = sorted(self._queues, key=lambda name: (self._virtual[name], name))
        assert list(self._ranked) == by_time, "waiting tenants are ranked by virtual time"
        assert self._virtual.keys() == self._since.keys(), "each virtual time has a start"
        assert self._queues or not self._virtual, "virtual times are removed when the queue is empty"
