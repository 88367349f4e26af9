"""Model services that the chunks of one node hold, as its reports say and later grants imply.

A grant makes its service resident, and what does not fit beside it leaves: the engines that were used least recently,
as on the node. So the next choice does not wait for a report of the node, which decides what really leaves. A grant
that is undone in its round has no effect (`undo`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.model.chunks import Chunk, Served, measured
from shared.policy.resources.engine_records import EngineTable

ROUNDING_GB: Final = 1e-6
"""Difference of sums of memory that counts as rounding."""
NOWHERE: Final[frozenset[Chunk]] = frozenset()


class Held(NamedTuple):
    """Times of a service on a chunk that holds it."""

    since_s: float = -math.inf
    """Beginning of its turn: the first grant since it became resident; the expected end of the restore for it, and its
    first execution once that was reported."""
    used_s: float = -math.inf
    """Its last grant there."""
    swap_s: float = 0.0
    """Expected seconds of the evictions and the restore for it; 0: not known."""


class Turn(NamedTuple):
    """A service that would have to leave a chunk."""

    service: str
    since_s: float
    """Beginning of its turn; minus infinity: it has none."""
    swap_s: float
    """Expected seconds of the evictions and the restore before it; 0: not known."""


class Implied(NamedTuple):
    """Effects of one grant, to undo them."""

    chunk: Chunk
    service: str
    before: Held | None
    """What the chunk held of the service before."""
    left: tuple[tuple[Chunk, str, Held], ...]
    """Engines that left for it."""
    used_s: tuple[float, ...]
    """Last grant on each GPU before."""


@dataclass(slots=True)
class ModelResidency:
    """Residency on one node. Each call is O(GPUs of the node + chunks that hold something)."""

    gpus: int
    served: Served = field(default_factory=dict)
    """Model services of the node, as last reported."""
    device_gb: Sequence[float] = ()
    """Memory of each GPU."""
    table: EngineTable = field(default_factory=EngineTable)
    """What `_held` has, for records."""
    _held: dict[str, dict[Chunk, Held]] = field(default_factory=dict)
    """Service -> chunks that hold it."""
    _on: dict[int, dict[tuple[Chunk, str], float]] = field(default_factory=dict)
    """GPU -> what holds memory on it: (chunk, service) -> GB."""
    _free_gb: list[float] = field(default_factory=list)
    """Memory of each GPU that no resident engine takes. A report computes it anew, so rounding errors do not add up."""
    _restoring: set[tuple[Chunk, str]] = field(default_factory=set)
    """Engines for whose restore an action was granted, and of whose actions none was reported to execute yet."""
    _left: dict[tuple[Chunk, str], tuple[tuple[Chunk, str], ...]] = field(default_factory=dict)
    """(Chunk, service) -> engines that would leave, until the next change: a decision asks several times."""
    used_s: list[float] = field(init=False)
    """By GPU, time of its last grant; minus infinity: none."""

    def __post_init__(self) -> None:
        self.used_s = [-math.inf] * self.gpus

    def report(self, served: Served, device_gb: Sequence[float], busy: Iterable[tuple[Chunk, str]]) -> None:
        """Apply a report. `busy`: chunks in use, which hold their service, perhaps since the report was written.
        What cannot be on the node is left out (`ServedModel.on`).
        """
        self.served = {name: one.on(self.gpus) for name, one in served.items()}
        self.device_gb, before = tuple(map(measured, device_gb)), self._held
        resident = [(chunk, name) for name, one in self.served.items() for chunk in sorted(one.resident)]
        self._held, self._on, self._free_gb, self.table = {}, {}, list(self.device_gb), EngineTable()
        self._left.clear()
        for chunk, name in [*resident, *busy]:
            self._hold(chunk, name, before.get(name, {}).get(chunk, Held()))
        self._restoring = {(chunk, name) for chunk, name in self._restoring if self.holds(chunk, name)}

    def chunks_of(self, service: str) -> AbstractSet[Chunk]:
        """Chunks that hold a service."""
        held = self._held.get(service)
        return NOWHERE if held is None else held.keys()

    def holds(self, chunk: Chunk, service: str) -> bool:
        """Return whether a chunk holds a service."""
        return chunk in self._held.get(service, ())

    def last_used_s(self, chunk: Chunk) -> float:
        """Return the time of the last grant on one of its GPUs; minus infinity: none."""
        return max(self.used_s[chunk.first : chunk.first + chunk.size])

    def free_gb(self, chunk: Chunk) -> float:
        """Least memory that no resident engine takes, of the GPUs of a chunk; 0 if none is reported. O(its GPUs)."""
        return min(self._free_gb[chunk.first : chunk.first + chunk.size], default=0.0)

    def granted(self, chunk: Chunk, service: str, now: float) -> Implied:
        """Note a grant. `service` may be empty: the GPUs are used by something else. Returns its effects."""
        first, size = chunk
        used_s = tuple(self.used_s[first : first + size])
        self.used_s[first : first + size] = [now] * size
        if not service:
            return Implied(chunk, service, None, (), used_s)
        here = self._held.get(service, {}).get(chunk)
        leaving = () if here is not None else self._leaving(chunk, service)
        left = tuple((other, name, self._held[name][other]) for other, name in leaving)
        for other, name in leaving:
            self._drop(other, name)
        if here is None:
            one = self.served.get(service)
            restore_s = 0.0 if one is None else one.restore_on_s(chunk)
            swap_s = self._slowest_s(leaving) + restore_s
            here_now = Held(now + swap_s, now, swap_s)
            self._restoring.add((chunk, service))
        else:
            here_now = Held(now if here.since_s == -math.inf else here.since_s, now, here.swap_s)
        self._hold(chunk, service, here_now)
        return Implied(chunk, service, here, left, used_s)

    def executes(self, chunk: Chunk, service: str, now: float) -> bool:
        """Note that an action executes: if it is the first one since a restore, the turn of its service begins now.
        Returns whether it is.
        """
        if (chunk, service) not in self._restoring:
            return False
        self._restoring.remove((chunk, service))
        self._hold(chunk, service, self._held[service][chunk]._replace(since_s=now))
        return True

    def begins_s(self, chunk: Chunk, service: str, now: float) -> float:
        """Return the time at which a grant would execute: after what leaves for it, and the restore of its service."""
        return max(now + self.swap_s(chunk, service), self.since_s(chunk, service))

    def swap_s(self, chunk: Chunk, service: str) -> float:
        """Return the seconds of the evictions and the restore before a service is resident on a chunk; 0 if it is."""
        one = self.served.get(service)
        if one is None or self.holds(chunk, service):
            return 0.0
        return self.evict_s(service, chunk) + one.restore_on_s(chunk)

    def evict_s(self, service: str, chunk: Chunk) -> float:
        """Return the seconds until what leaves a chunk for this service has left."""
        return self._slowest_s(self._leaving(chunk, service))

    def undo(self, effects: Implied) -> None:
        """Undo a grant that was never sent. Of several grants, the last first."""
        chunk, service, before, left, used_s = effects
        self.used_s[chunk.first : chunk.first + chunk.size] = used_s
        if service and self.holds(chunk, service):
            if before is None:
                self._drop(chunk, service)
            else:
                self._hold(chunk, service, before)
        for other, name, held in left:
            if not self.holds(other, name):
                self._hold(other, name, held)

    def leaving(self, chunk: Chunk, service: str) -> Iterator[Turn]:
        """Yield the services that leave for a restore of this one."""
        for other, name in self._in_the_way(chunk, service):
            held = self._held[name][other]
            yield Turn(name, held.since_s, held.swap_s)

    def since_s(self, chunk: Chunk, service: str) -> float:
        """Return the beginning of a service's turn on a chunk; minus infinity: it has none there."""
        held = self._held.get(service, {}).get(chunk)
        return -math.inf if held is None else held.since_s

    def memory(self) -> list[float]:
        """Return the memory of each GPU; 0 where none is reported."""
        return [*self.device_gb[: self.gpus], *[0.0] * (self.gpus - len(self.device_gb))]

    def slots_of(self, service: str) -> int:
        """Return the most holders of an engine of a service."""
        one = self.served.get(service)
        return 1 if one is None else one.concurrency

    def _in_the_way(self, chunk: Chunk, service: str) -> Iterator[tuple[Chunk, str]]:
        """Yield (chunk, service) of what has memory on a GPU that does not hold it and this service together."""
        needed_gb = self._gb(service, chunk)
        for gpu in chunk.gpus:
            here = self._on.get(gpu)
            if here and math.fsum((needed_gb, *here.values())) > self._memory_gb(gpu) + ROUNDING_GB:
                yield from here

    def _leaving(self, chunk: Chunk, service: str) -> tuple[tuple[Chunk, str], ...]:
        """Engines that leave: those that were used most recently stay, as far as memory suffices."""
        known = self._left.get((chunk, service))
        if known is None:
            known = self._left[chunk, service] = tuple(self._choose_leaving(chunk, service))
        return known

    def _choose_leaving(self, chunk: Chunk, service: str) -> list[tuple[Chunk, str]]:
        first, size = chunk
        beside: dict[tuple[Chunk, str], float] = {}
        for gpu in range(first, first + size):
            if here := self._on.get(gpu):
                beside |= here
        if not beside:
            return []
        needed_gb = self._gb(service, chunk) - ROUNDING_GB
        room = [self._memory_gb(gpu) - needed_gb for gpu in range(first, first + size)]
        leave = list[tuple[Chunk, str]]()
        for _, other, name in sorted([(self._held[name][other].used_s, other, name) for other, name in beside])[::-1]:
            gb, begin, end = beside[other, name], max(other.first - first, 0), other.first - first + other.size
            if min(room[begin:end]) >= gb:
                room[begin:end] = [one - gb for one in room[begin:end]]
            else:
                leave.append((other, name))
        return leave

    def _hold(self, chunk: Chunk, service: str, times: Held) -> None:
        self._left.clear()
        held = self._held.setdefault(service, {})
        if chunk in held:
            self.table.set_times(service, chunk, times.since_s, times.used_s)
        else:
            self.table.add(service, chunk, self.served.get(service), times.since_s, times.used_s)
            gb, free = self._gb(service, chunk), self._free_gb
            for gpu in chunk.gpus:
                self._on.setdefault(gpu, {})[chunk, service] = gb
                if gpu < len(free):
                    free[gpu] -= gb
        held[chunk] = times

    def _drop(self, chunk: Chunk, service: str) -> None:
        self._left.clear()
        held = self._held[service]
        del held[chunk]
        self._restoring.discard((chunk, service))
        if not held:
            del self._held[service]
        self.table.remove(service, chunk)
        for gpu in chunk.gpus:
            gb = self._on[gpu].pop((chunk, service))
            if gpu < len(self._free_gb):
                self._free_gb[gpu] += gb

    def _slowest_s(self, leaving: Iterable[tuple[Chunk, str]]) -> float:
        """Seconds of the slowest eviction: a node evicts engines of one chunk at the same time."""
        slowest_s = 0.0
        for other, name in leaving:
            if (left := self.served.get(name)) is not None and left.evict_s:
                slowest_s = max(slowest_s, left.evict_s.get(other.size, 0.0))
        return slowest_s

    def _gb(self, service: str, chunk: Chunk) -> float:
        one = self.served.get(service)
        return 0.0 if one is None else one.gb(chunk.size)

    def _memory_gb(self, gpu: int) -> float:
        return self.device_gb[gpu] if gpu < len(self.device_gb) else 0.0
