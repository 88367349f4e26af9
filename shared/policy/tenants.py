"""Weighted fair sharing between tenants, earliest batch first inside each (architecture §3).

Each tenant has a virtual time: the unit-seconds it was granted, divided by its weight. The tenant furthest behind goes
first. One that was idle starts level with the busiest-behind tenant, so idleness is not saved up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shared.policy.ebf import EbfKey, EbfQueue


@dataclass(slots=True)
class FairQueue:
    """Waiting actions of one pool. Head in O(tenants + log n)."""

    weights: dict[str, float] = field(default_factory=dict)
    """Tenant -> weight > 0; 1 where not named."""
    _queues: dict[str, EbfQueue[str]] = field(default_factory=dict)
    _virtual: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def push(self, tenant: str, key: EbfKey, action: str) -> None:
        """Queue an action."""
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = EbfQueue()
        if not queue:
            floor = min((self._virtual[name] for name, other in self._queues.items() if other), default=0.0)
            self._virtual[tenant] = max(self._virtual.get(tenant, 0.0), floor)
        queue.push(key, action)

    def remove(self, tenant: str, action: str) -> bool:
        """Take an action out; False when it does not wait here. An idle tenant is forgotten once all are idle."""
        queue = self._queues.get(tenant)
        if queue is None or action not in queue:
            return False
        queue.remove(action)
        if not len(self):
            self._queues.clear()
            self._virtual.clear()
        return True

    def update(self, tenant: str, key: EbfKey, action: str) -> None:
        """Give a waiting action another key."""
        self._queues[tenant].update(key, action)

    def charge(self, tenant: str, unit_s: float) -> None:
        """Book what a tenant was granted, in expected unit-seconds."""
        if tenant in self._virtual:
            self._virtual[tenant] += unit_s / self.weights.get(tenant, 1.0)

    def head(self) -> str | None:
        """Whose turn it is."""
        return next(iter(self), None)

    def ahead(self, tenant: str, key: EbfKey, *, most: int = 4096) -> Iterator[str]:
        """What would be served before a newcomer of this tenant with this key: of its own queue, at most `most`.

        Other tenants' shares run beside it and are not counted: an optimistic bound where tenants compete.
        """
        queue = self._queues.get(tenant)
        for seen, action in enumerate(queue or ()):
            if seen >= most or (queue is not None and queue.key(action) > key):
                return
            yield action

    def __iter__(self) -> Iterator[str]:
        """Actions tenant by tenant, the one furthest behind first, each in EBF order."""
        waiting = [name for name, queue in self._queues.items() if queue]
        if len(waiting) == 1:
            yield from self._queues[waiting[0]]
            return
        for tenant in sorted(waiting, key=lambda name: (self._virtual[name], name)):
            yield from self._queues[tenant]
