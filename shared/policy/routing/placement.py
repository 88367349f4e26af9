"""Placement: the worker of a call, by the loads of the workers that may get it.

`WorkerPlacement` is the seam for later policies. It is asked for each call, with the worker to which its trajectory is
pinned, so a policy that migrates trajectories returns another worker. The router offers usable workers only.

Laws (tests/shared/policy/routing/test_placement.py):
  - `StickyLeastLoaded`: a usable pinned worker stays. Else the worker with the least load, and of equal ones the one
    that a hash of (trajectory, worker) puts first, so that trajectories with equal choices spread;
  - `ConsistentHash`: a usable pinned worker stays. Else the next usable worker on a ring of hashes. If a worker is
    added or removed, only trajectories of that worker get another place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from shared.policy.routing.hashing import hash_text, mixed
from shared.policy.routing.model import ModelCall

VIRTUAL_NODES: Final = 160
"""Points of each worker on the ring, as vllm-router has. The load of a worker differs by about 8% from the mean."""


class WorkerLoad(NamedTuple):
    """Load of one worker."""

    worker: str
    calls: int
    """Calls in flight and waiting."""
    most_calls: int | None
    trajectories: int
    """Trajectories that are pinned to it."""
    tokens: int
    """KV tokens that are reserved, or that waiting trajectories ask for."""
    kv_tokens: int | None
    doubtful: bool
    """It has asked for a pause, or has failed a call since its last success."""


class WorkerPlacement(Protocol):
    """Policy that chooses the worker of a call."""

    def place(self, call: ModelCall, tokens: int, pinned: str, loads: Mapping[str, WorkerLoad]) -> str:
        """Return the worker of a call.

        Args:
            call: the call.
            tokens: expected tokens of its trajectory at its end.
            pinned: worker of its trajectory, usable or not; empty: it has none.
            loads: usable workers by id, at least one. A load is computed when it is read: membership is O(1), a walk is
                O(workers).

        Returns:
            A key of `loads`.
        """
        ...

    def add(self, worker: str) -> None:
        """Add a registered worker. No effect if it is known."""
        ...

    def remove(self, worker: str) -> None:
        """Remove a worker. No effect if it is not known."""
        ...


def key_of(call: ModelCall) -> str:
    """Text by which a call is hashed."""
    return call.trajectory or call.id


class StickyLeastLoaded:
    """The pinned worker, else the one with the least load. O(1) if the pinned worker is usable, else O(workers).

    Load is the share of the KV capacity that is reserved or asked for, this trajectory included. If the capacity of a
    worker is not known, the calls are compared: their share of the caps, or their number if a worker has no cap.
    """

    __slots__ = ()

    def place(self, call: ModelCall, tokens: int, pinned: str, loads: Mapping[str, WorkerLoad]) -> str:
        """See `WorkerPlacement.place`."""
        if pinned in loads:
            return pinned
        usable = list(loads.values())
        measured = all(load.kv_tokens for load in usable)
        capped = all(load.most_calls for load in usable)
        seed = hash_text(key_of(call))

        def rank(load: WorkerLoad) -> tuple[bool, float, float, int, int, str]:
            calls = load.calls / (load.most_calls if capped and load.most_calls else 1)
            share = (load.tokens + tokens) / load.kv_tokens if measured and load.kv_tokens else 0.0
            return load.doubtful, share, calls, load.trajectories, mixed(seed ^ hash_text(load.worker)), load.worker

        return min(usable, key=rank).worker

    def add(self, worker: str) -> None:
        """See `WorkerPlacement.add`. Loads are enough for this policy."""

    def remove(self, worker: str) -> None:
        """See `WorkerPlacement.remove`. Loads are enough for this policy."""


@dataclass(slots=True)
class ConsistentHash:
    """The pinned worker, else the next usable one on the ring. O(log ring), and O(1) for each point passed over."""

    virtual_nodes: int = VIRTUAL_NODES
    _ring: list[tuple[int, str]] = field(default_factory=list)
    """(Point, worker), ascending."""
    _workers: set[str] = field(default_factory=set)

    def place(self, call: ModelCall, tokens: int, pinned: str, loads: Mapping[str, WorkerLoad]) -> str:  # noqa: ARG002
        """See `WorkerPlacement.place`.

        Raises:
            LookupError: no usable worker is on the ring.
        """
        if pinned in loads:
            return pinned
        ring = self._ring
        begin = bisect_left(ring, (hash_text(key_of(call)), ""))
        for at in range(len(ring)):
            worker = ring[(begin + at) % len(ring)][1]
            if worker in loads:
                return worker
        raise LookupError(f"none of {sorted(loads)} is on the ring: add each worker that is registered")

    def add(self, worker: str) -> None:
        """See `WorkerPlacement.add`. O(virtual nodes x ring) moves of 8 bytes."""
        if worker not in self._workers:
            self._workers.add(worker)
            for at in range(self.virtual_nodes):
                insort(self._ring, (hash_text(worker, at + 1), worker))

    def remove(self, worker: str) -> None:
        """See `WorkerPlacement.remove`. O(ring)."""
        if worker in self._workers:
            self._workers.discard(worker)
            self._ring = [point for point in self._ring if point[1] != worker]
