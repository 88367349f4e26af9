"""Sleeping lanes by the quotas that they wait for or reserve, and the times at which rates are refilled for them.

Each action of a lane that sleeps for quotas lacks one. The lane waits for the smallest amount of it that one of them
needs. Lanes that wait for the same amount of the same quota form a queue in the order of their heads: if the amount is
free, only the first wakes. The next one wakes after that one was served, and only if the amount is still free. So the
end of one attempt costs as much as the work that it lets start, however many lanes wait.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.order.ebf import EbfKey
from shared.policy.resources.pools import Lane, Pool
from shared.policy.resources.quota_refusals import why_never
from shared.policy.resources.quotas import Quotas

LaneKey = tuple[str, str]
"""(Pool, lane)."""
Need = tuple[str, float]
"""(Quota, amount)."""
Sort = tuple[str, str, tuple[tuple[str, int], ...], str]
"""(Pool, kind, units, model service): heads of one sort reserve units on the same node."""
Entry = tuple[EbfKey, LaneKey]
"""A sleeping lane with the key of its head."""
COMPACT_ABOVE: Final = 64
"""Outdated times that are kept, beyond the number of valid ones."""


class Sleeper(NamedTuple):
    """A sleeping lane. Its head stays the same while it sleeps."""

    pool: Pool
    lane: Lane
    head: str
    """Action at its head."""
    key: EbfKey
    """Key of the head."""
    named: tuple[Need, ...] = ()
    """Quotas that the head needs: it reserves them."""
    lacking: tuple[Need, ...] = ()
    """Quotas that its actions lack, each with the smallest amount. Empty: it sleeps only for its node."""
    sort: Sort | None = None
    """Sort of its head; None: it is bound to a node."""

    @property
    def entry(self) -> Entry:
        """Its position among sleeping lanes."""
        return self.key, (self.pool.name, self.lane.name)


@dataclass(slots=True)
class QuotaWaits:
    """Sleeping lanes with quotas. A change costs O(quotas of the lane * log lanes), and a move of 8 bytes for each lane
    that waits for the same.
    """

    sorts: dict[Sort, list[Entry]] = field(default_factory=dict)
    """Lanes that any node may serve, by sort of their heads; ascending."""
    _named: dict[str, dict[float, list[Entry]]] = field(default_factory=dict)
    """Quota -> amount -> lanes whose head needs it; ascending."""
    _lacking: dict[str, dict[float, list[Entry]]] = field(default_factory=dict)
    """Quota -> amount -> lanes that lack it; ascending."""
    _times: dict[Need, float] = field(default_factory=dict)
    """What sleeping lanes wait for -> time at which it may be refilled; never later than it is."""
    _heap: list[tuple[float, Need]] = field(default_factory=list)
    """The same by time, and outdated times."""

    def __bool__(self) -> bool:
        """Return whether a lane waits for a quota, or a time is noted."""
        return bool(self._lacking or self._heap)

    def add(self, one: Sleeper, quotas: Quotas, now: float) -> None:
        """Add a lane that begins to sleep."""
        for need in one.named:
            _insert(self._named, need, one.entry)
        for need in one.lacking:
            _insert(self._lacking, need, one.entry)
            self._watch(need, quotas, now)
        if one.sort is not None:
            insort(self.sorts.setdefault(one.sort, []), one.entry)

    def remove(self, one: Sleeper) -> None:
        """Remove a lane that has woken."""
        for need in one.named:
            _delete(self._named, need, one.entry)
        for need in one.lacking:
            _delete(self._lacking, need, one.entry)
            if need[1] not in self._lacking.get(need[0], ()):
                self._times.pop(need, None)
        if one.sort is not None:
            entries = self.sorts[one.sort]
            del entries[bisect_left(entries, one.entry)]
            if not entries:
                del self.sorts[one.sort]

    def first(self, need: Need, quotas: Quotas, now: float) -> LaneKey | None:
        """Return the first lane that lacks this, if it is free now."""
        entries = self._lacking.get(need[0], {}).get(need[1])
        return entries[0][1] if entries and not self._watch(need, quotas, now) else None

    def naming(self, quota: str) -> Iterator[list[Entry]]:
        """Yield the lanes whose head needs a quota: those of each amount."""
        yield from self._named.get(quota, {}).values()

    def never(self, quotas: Quotas, changed: Iterable[str]) -> list[LaneKey]:
        """Lanes whose head can never be given what it needs of these quotas. O(amounts of them that heads need)."""
        return [
            key
            for name in changed
            for amount, entries in self._named.get(name, {}).items()
            if why_never(quotas, {name: amount})
            for _, key in entries
        ]

    def free(self, quotas: Quotas, changed: Iterable[str], now: float) -> list[Need]:
        """What lanes lack and is free now, because these quotas have changed or rates were refilled."""
        needs = {(name, amount): None for name in changed for amount in self._lacking.get(name, ())}
        while self._heap and self._heap[0][0] <= now:
            at_s, need = heapq.heappop(self._heap)
            if self._times.get(need) == at_s:
                del self._times[need]
                needs[need] = None
        return [need for need in needs if not self._watch(need, quotas, now)]

    def next_refill_s(self, quotas: Quotas, now: float) -> float:
        """Return the next time after now at which a rate may give what a lane lacks; infinity if there is none."""
        while self._heap:
            at_s, need = self._heap[0]
            if self._times.get(need) == at_s:
                refilled_s = quotas.refilled_at(dict([need]), now)
                if refilled_s <= at_s:
                    return at_s
                del self._times[need]
                self._watch(need, quotas, now)
            if self._heap[0] == (at_s, need):
                heapq.heappop(self._heap)
        return math.inf

    def _watch(self, need: Need, quotas: Quotas, now: float) -> bool:
        """Note when this is refilled. Returns False if it is free now."""
        amounts = dict([need])
        if quotas.fits(amounts, now):
            return False
        at_s = quotas.refilled_at(amounts, now)
        if now < at_s < self._times.get(need, math.inf):
            self._times[need] = at_s
            heapq.heappush(self._heap, (at_s, need))
            if len(self._heap) > 2 * len(self._times) + COMPACT_ABOVE:
                self._heap = [(time_s, known) for known, time_s in self._times.items()]
                heapq.heapify(self._heap)
        return True

    def check(self, asleep: Iterable[Sleeper]) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        again = QuotaWaits()
        for one in asleep:
            again.add(one, Quotas(), 0.0)
        assert (self.sorts, self._named, self._lacking) == (again.sorts, again._named, again._lacking), "sleeping lanes"
        lacking = {(name, amount) for name, by_amount in self._lacking.items() for amount in by_amount}
        assert self._times.keys() <= lacking, "times of what lanes lack"
        assert {(at_s, need) for need, at_s in self._times.items()} <= set(self._heap), "every time is in the heap"
        assert len(self._heap) <= 2 * len(self._times) + COMPACT_ABOVE + 1, "the heap is bounded"


def _insert(index: dict[str, dict[float, list[Entry]]], need: Need, entry: Entry) -> None:
    insort(index.setdefault(need[0], {}).setdefault(need[1], []), entry)


def _delete(index: dict[str, dict[float, list[Entry]]], need: Need, entry: Entry) -> None:
    entries = index[need[0]][need[1]]
    del entries[bisect_left(entries, entry)]
    if not entries:
        del index[need[0]][need[1]]
        if not index[need[0]]:
            del index[need[0]]
