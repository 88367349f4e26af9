"""Expected completions of batches: the EBF keys of their requests (DistRS §5.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.policy.model.formulation import Request
from shared.policy.order.ebf import BOUND_S, EbfKey, expected_completion, reestimate
from shared.policy.order.estimates import Durations

Place = tuple[str, str, str]
"""(pool, lane, tenant) of a queue."""


@dataclass(slots=True)
class _Batch:
    first_s: float
    expected_s: float
    waiting: dict[Place, int] = field(default_factory=dict)
    """Number of queued requests in each queue; the batch moves there when its estimate changes."""


@dataclass(slots=True)
class BatchRegistry:
    """Expected completions of the open batches. Bounded: beyond `most`, the batch unused for longest is removed."""

    bound_s: float = BOUND_S
    most: int = 10_000
    _batches: dict[str, _Batch] = field(default_factory=dict)
    _proposed: dict[str, float] = field(default_factory=dict)
    """Estimates received before the first request."""

    def key(self, request: Request, durations: Durations) -> EbfKey:
        """Key of a request. Outside a batch: arrival + expected duration of its kind + priority in seconds."""
        arrived_s, rank = request.arrival[0] / 1000, request.rank
        if not request.batch:
            work = request.stages[0]
            known_s = min(work.timeout_s, durations.known((request.tenant, request.task, work.kind)))
            return EbfKey(arrived_s + known_s + rank, rank, request.arrival)
        return EbfKey(self._of(request).expected_s, rank, request.arrival)

    def reprioritized(self, key: EbfKey, request: Request) -> EbfKey:
        """Return the key of a request whose priority has changed. The estimates in it stay."""
        later_s = 0.0 if request.batch else request.rank - key.priority
        return key._replace(expected_completion_s=key.expected_completion_s + later_s, priority=request.rank)

    def first_arrival(self, batch: str, first_s: float, stage_timeouts_s: list[float]) -> None:
        """Restore a batch that began under a former leader from the store. Absolute seconds.

        Call it before its requests are queued; a batch that is known already does not change.
        """
        if batch not in self._batches:
            self._open(batch, first_s, stage_timeouts_s)

    def count_waiting(self, request: Request, place: Place) -> None:
        """Count a queued request of a batch."""
        if request.batch:
            waiting = self._of(request).waiting
            waiting[place] = waiting.get(place, 0) + 1
            self._batches[request.batch] = self._batches.pop(request.batch)  # the dict's order is by last use

    def uncount_waiting(self, request: Request, place: Place) -> None:
        """Uncount a request that no longer waits there."""
        if request.batch and (batch := self._batches.get(request.batch)) is not None:
            left = batch.waiting.get(place, 0) - 1
            if left > 0:
                batch.waiting[place] = left
            else:
                batch.waiting.pop(place, None)

    def places(self, name: str) -> list[Place]:
        """Queues in which requests of a batch wait."""
        batch = self._batches.get(name)
        return [] if batch is None else list(batch.waiting)

    def due(self, name: str) -> float:
        """T of a known batch."""
        return self._batches[name].expected_s

    def apply_estimate(self, name: str, at_s: float) -> list[Place]:
        """Apply a new estimate of a batch's completion. Returns the queues in which its requests' keys have changed.

        The cost does not depend on the number of requests, but on the queues in which they wait: one for each stage's
        pool, and one for each node that has their environments.
        """
        if not math.isfinite(at_s):
            return []
        batch = self._batches.get(name)
        if batch is None:
            self._proposed[name] = at_s
            self._bound(self._proposed)
            return []
        before = batch.expected_s
        batch.expected_s = reestimate(before, at_s, batch.first_s, self.bound_s)
        return list(batch.waiting) if batch.expected_s != before else []

    def ended(self, name: str) -> None:
        """Remove a batch."""
        self._batches.pop(name, None)
        self._proposed.pop(name, None)

    def _of(self, request: Request) -> _Batch:
        batch = self._batches.get(request.batch)
        if batch is None:
            timeouts = [work.timeout_s for work in request.stages]
            batch = self._open(request.batch, request.arrival[0] / 1000, timeouts)
        return batch

    def _open(self, name: str, first_s: float, stage_timeouts_s: list[float]) -> _Batch:
        expected_s = min(expected_completion(first_s, stage_timeouts_s), first_s + self.bound_s)
        proposed = self._proposed.pop(name, None)
        if proposed is not None:
            expected_s = min(max(proposed, first_s), first_s + self.bound_s)
        batch = self._batches[name] = _Batch(first_s, expected_s)
        self._bound(self._batches)
        return batch

    def _bound(self, kept: dict[str, _Batch] | dict[str, float]) -> None:
        while len(kept) > self.most:
            del kept[next(iter(kept))]
