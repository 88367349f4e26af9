"""Earliest Batch First: the one order of waiting work, for the dispatcher and for SIMULATE (DistRS §5.2).

A batch has no value until its last answer, so the order depends on when its batch could be complete. Requests of the
batch with the earliest expected completion go first, within a batch by priority, then by arrival. Outside batches a
priority counts in seconds: it is added to the expected completion (ADR 0059).

Age wins: an expected completion is at most `first arrival + bound`, and new work arrives ever later. So every key is at
some time the smallest, and nothing waits forever (`reestimate` keeps that law when estimates change).
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Id = TypeVar("Id", bound=Hashable)

BOUND_S = 3600.0
"""Latest expected completion after the first arrival: makes every key finite, so age wins."""

STEPS_TO_BOUND = 10
"""A re-estimate moves at most this fraction of the bound at once. One wrong estimate cannot send a batch behind all
others, and a right one is reached within ten."""

COMPACT_ABOVE = 64
"""Removed entries that the heap may hold, beyond the number of waiting ones."""

FRONT, ENOUGH = 96, 72
"""Length to which the sorted front is filled, and the length below which it is filled again. A decision reads some 64
entries, twice or more."""


class EbfKey(NamedTuple):
    """Position in the order; smaller goes first. Total: `arrival` is a stream id, so no two requests share one."""

    expected_completion_s: float
    """Time at which the batch could be complete, absolute seconds of the arrival clock. Outside a batch: the action's,
    plus its priority."""
    priority: float
    """Priority of the request (`Request.rank`), lower first; 0 without a prediction."""
    arrival: tuple[int, int]
    """Stream id of the arrival: milliseconds, sequence."""


def expected_completion(
    first_arrival_s: float, stage_timeouts_s: Sequence[float], history_s: float | None = None
) -> float:
    """Return the earliest moment at which a batch could be complete (equations 1 and 2), absolute seconds.

    Args:
        first_arrival_s: arrival of the batch's first request, absolute seconds.
        stage_timeouts_s: timeout of each stage, seconds.
        history_s: `BatchRecord.span_s` of the task's last batch: seconds from its first arrival to its
            earliest completion. None without history: every stage is expected to last its timeout.
    Raises:
        ValueError: a part is negative or not finite: such a key would never be the smallest.
    """
    ahead_s = math.fsum(stage_timeouts_s) if history_s is None else history_s
    if not (math.isfinite(first_arrival_s) and math.isfinite(ahead_s) and ahead_s >= 0):
        raise ValueError(f"expected completion must be finite and not before {first_arrival_s}: {ahead_s} s ahead")
    return first_arrival_s + ahead_s


def reestimate(
    current_s: float, proposed_s: float, first_arrival_s: float, bound_s: float, *, step_s: float | None = None
) -> float:
    """The expected completion after a new estimate: earlier at once, later by a step, never beyond the bound.

    Args:
        current_s: expected completion so far, absolute seconds.
        proposed_s: the new estimate, absolute seconds; infinity means "as late as may be".
        first_arrival_s: arrival of the batch's first request, absolute seconds.
        bound_s: latest expected completion, seconds after the first arrival, >= 0.
        step_s: most seconds one call may add, > 0; None: a tenth of the bound (`STEPS_TO_BOUND`).
    Raises:
        ValueError: the estimate is not a number, or a bound or step is out of range.
    """
    if math.isnan(proposed_s) or not bound_s >= 0 or (step_s is not None and not step_s > 0):
        raise ValueError(f"cannot re-estimate to {proposed_s} with bound {bound_s} s and step {step_s} s")
    step = bound_s / STEPS_TO_BOUND if step_s is None else step_s
    return min(proposed_s, current_s + step, first_arrival_s + bound_s)


Entry = tuple[EbfKey, int, Id]
"""Key, serial number of the push (equal keys leave in the order of their pushes), id."""


@dataclass(slots=True)
class EbfQueue(Generic[Id]):
    """Waiting work in EBF order.

    The front is a sorted list, the rest a binary heap; removal is lazy in both. `push`, `remove`, `update` and `pop`
    are O(log n) amortised, `peek` O(1) amortised. Walking the first k in order removes nothing that waits. It is O(k)
    for the first `FRONT`, which a decision reads again and again, and O(k log k) beyond them.
    """

    _front: list[Entry[Id]] = field(default_factory=list)
    """Ascending; no entry of the heap precedes any of it."""
    _heap: list[Entry[Id]] = field(default_factory=list)
    _live: dict[Id, Entry[Id]] = field(default_factory=dict)
    _serial: int = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: object) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[Id]:
        """Every id in order; stop at any point. The queue must not change meanwhile.

        Raises:
            RuntimeError: the queue changed during the walk.
        """
        self._refill()
        live, serial, size = self._live, self._serial, len(self._live)
        for entry in itertools.chain(self._front, self._behind()):
            if live.get(entry[2]) is entry:
                yield entry[2]
                if self._serial != serial or len(live) != size:
                    raise RuntimeError("the queue changed during iteration: collect the ids first, then change it")

    def _behind(self) -> Iterator[Entry[Id]]:
        """Entries of the heap in order: a walk over its tree with a heap of its frontier."""
        heap = self._heap
        frontier: list[tuple[Entry[Id], int]] = [(heap[0], 0)] if heap else []
        while frontier:
            entry, at = heapq.heappop(frontier)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heapq.heappush(frontier, (heap[child], child))
            yield entry

    def waiting(self) -> list[Id]:
        """Every id, in the order of the pushes. O(n), without the cost of an order."""
        return list(self._live)

    def key(self, item: Id) -> EbfKey:
        """Key of a waiting id.

        Raises:
            KeyError: it does not wait here.
        """
        return self._live[item][0]

    def push(self, key: EbfKey, item: Id) -> None:
        """Add an id.

        Raises:
            ValueError: it waits already (`update` moves it), or its key is not a number and cannot be ordered.
        """
        if item in self._live:
            raise ValueError(f"{item!r} is queued already: use update() to move it")
        if math.isnan(key.expected_completion_s) or math.isnan(key.priority):
            raise ValueError(f"{item!r} has no place in the order: {key}")
        self._serial += 1
        entry = (key, self._serial, item)
        self._live[item] = entry
        front = self._front
        if not front or entry > front[-1]:
            heapq.heappush(self._heap, entry)
            return
        bisect.insort(front, entry)
        if len(front) > 2 * FRONT:
            for one in front[FRONT:]:
                heapq.heappush(self._heap, one)
            del front[FRONT:]

    def remove(self, item: Id) -> EbfKey:
        """Remove an id and return its key.

        Raises:
            KeyError: it does not wait here.
        """
        entry = self._live.pop(item)
        self._compact()
        return entry[0]

    def discard(self, item: Id) -> bool:
        """Remove an id; False if it does not wait here."""
        if self._live.pop(item, None) is None:
            return False
        self._compact()
        return True

    def update(self, key: EbfKey, item: Id) -> None:
        """Give a waiting id another key.

        Raises:
            KeyError: it does not wait here.
            ValueError: the key cannot be ordered; the id then keeps its old one.
        """
        old = self._live.pop(item)
        try:
            self.push(key, item)
        except ValueError:
            self._live[item] = old
            raise
        self._compact()

    def peek(self) -> tuple[EbfKey, Id]:
        """Key and id of the first entry.

        Raises:
            IndexError: the queue is empty.
        """
        key, _, item = self._first()
        return key, item

    def head(self) -> Id:
        """Return the first id.

        Raises:
            IndexError: the queue is empty.
        """
        return self._first()[2]

    def pop(self) -> tuple[EbfKey, Id]:
        """Remove and return the first entry.

        Raises:
            IndexError: the queue is empty.
        """
        key, _, item = self._first()
        del self._live[item]
        self._compact()
        return key, item

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        front, heap, live = self._front, self._heap, self._live
        waiting = [entry for entry in [*front, *heap] if live.get(entry[2]) is entry]
        assert len(waiting) == len(live), "each id has exactly one live entry"
        assert len(heap) - len(waiting) <= COMPACT_ABOVE + len(waiting), "removed entries are bounded"
        assert all(heap[(at - 1) // 2] <= heap[at] for at in range(1, len(heap))), "heap order"
        assert front == sorted(front), "the front is in order"
        assert len(front) <= 2 * FRONT, "the front is bounded"
        assert not (front and heap) or front[-1] <= heap[0], "nothing behind goes before the front"

    def _first(self) -> Entry[Id]:
        front, live = self._front, self._live
        for gone, entry in enumerate(front):
            if live.get(entry[2]) is entry:
                if gone:
                    del front[:gone]
                return entry
        self._refill()
        if not front:
            raise IndexError("the queue is empty")
        return front[0]

    def _refill(self) -> None:
        """Remove deleted entries from the front, and fill it from the heap if it is short. O(`FRONT`), and O(log n) for
        each entry that moves; each moves once, unless new entries displace it.
        """
        front, heap, live = self._front, self._heap, self._live
        front[:] = [entry for entry in front if live.get(entry[2]) is entry]
        if len(front) >= ENOUGH:
            return
        while heap and len(front) < FRONT:
            entry = heapq.heappop(heap)
            if live.get(entry[2]) is entry:
                front.append(entry)

    def _compact(self) -> None:
        """Rebuild the heap when more than half of it was removed: amortised O(1) a removal."""
        if len(self._heap) > COMPACT_ABOVE + 2 * len(self._live):
            self._front.clear()
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)
