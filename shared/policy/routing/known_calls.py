"""Calls that wait or are in flight, by id, replica and deadline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from shared.policy.routing.keyed_heap import KeyedHeap
from shared.policy.routing.model import ModelCall
from shared.policy.routing.pins import PinnedTrajectory
from shared.policy.routing.worker_queue import Holder, Order


@dataclass(slots=True)
class KnownCall:
    """A call that waits or is in flight."""

    call: ModelCall
    order: Order
    worker: str = ""
    sent: bool = False
    pin: PinnedTrajectory | None = None
    """Pin that counts it."""

    @property
    def holder(self) -> Holder:
        """Holder of its reservation."""
        return (self.call.trajectory, "") if self.call.trajectory else ("", self.call.id)


@dataclass(slots=True)
class KnownCalls:
    """All calls. Each method is O(log calls), amortised, if it has no other cost."""

    _by_id: dict[str, KnownCall] = field(default_factory=dict)
    _by_replica: dict[str, set[str]] = field(default_factory=dict)
    _deadlines: KeyedHeap[float] = field(default_factory=KeyedHeap)
    """Waiting calls by deadline."""
    _serial: int = 0

    def __contains__(self, call: object) -> bool:
        return call in self._by_id

    def __getitem__(self, call: str) -> KnownCall:
        return self._by_id[call]

    def __iter__(self) -> Iterator[KnownCall]:
        return iter(self._by_id.values())

    def get(self, call: str) -> KnownCall | None:
        """Return a call; None: it is not known."""
        return self._by_id.get(call)

    @property
    def waiting(self) -> int:
        """Number of waiting calls."""
        return len(self._deadlines)

    def add(self, call: ModelCall, now: float) -> KnownCall:
        """Add a call that has arrived now. `wait` or `send` follows."""
        self._serial += 1
        known = self._by_id[call.id] = KnownCall(call, (call.priority, now, self._serial))
        self._by_replica.setdefault(call.replica, set()).add(call.id)
        return known

    def wait(self, known: KnownCall, worker: str) -> None:
        """Note that a call waits for a worker."""
        known.worker = worker
        self._deadlines.set(known.call.id, known.call.deadline_s)

    def send(self, known: KnownCall, worker: str) -> None:
        """Note that a call is in flight."""
        known.worker, known.sent = worker, True
        self._deadlines.discard(known.call.id)

    def remove(self, call: str) -> KnownCall | None:
        """Remove a call; None: it was not known."""
        known = self._by_id.pop(call, None)
        if known is not None:
            self._deadlines.discard(call)
            mine = self._by_replica[known.call.replica]
            mine.discard(call)
            if not mine:
                del self._by_replica[known.call.replica]
        return known

    def late(self, now: float) -> KnownCall | None:
        """Return a waiting call whose deadline has passed; None: there is none."""
        first = self._deadlines.first()
        return self._by_id[first[1]] if first is not None and first[0] <= now else None

    def due_s(self) -> float:
        """Return the first deadline of a waiting call; infinity: none waits."""
        first = self._deadlines.first()
        return inf if first is None else first[0]

    def replicas(self) -> set[str]:
        """Return the replicas that have calls. O(replicas)."""
        return set(self._by_replica)

    def of_replica(self, replica: str) -> set[str]:
        """Return the calls of a replica. O(these)."""
        return set(self._by_replica.get(replica, ()))

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        self._deadlines.check()
        assert set(self._deadlines) == {name for name, one in self._by_id.items() if not one.sent}
        assert {call for calls in self._by_replica.values() for call in calls} == self._by_id.keys()
