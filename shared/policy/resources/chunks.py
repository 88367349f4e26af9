"""GPUs of one node: aligned chunks for model services (ARL-Tangram §5.3; cells as in HiveD, OSDI 2020).

A *chunk* is an aligned interval of 1, 2, 4 or 8 GPUs. Splitting and merging need no records: the free chunks follow
from the set of free GPUs. Laws (tests/shared/policy/resources/test_chunks.py):
  - a GPU is in at most one busy chunk, and a busy chunk has one model service. Several holders share it, up to the
    service's concurrency;
  - a GPU that is marked bad is in no new chunk. It still counts as existing;
  - a new holder joins a busy chunk of its service, if one has room. Otherwise the smallest free block that is large
    enough is split. Among blocks of one level, a chunk that holds the service is first, then the one that was used
    least recently. Blocks above the largest degree of the node's services count as one level: nothing needs them whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.policy.resources.resource import NO_USE, Operator, Rank, Resource, ResourceSpec, Use

SIZES: Final = (1, 2, 4, 8)
"""GPUs of a chunk: the degrees of parallelism."""
LARGEST: Final = SIZES[-1]


class Chunk(NamedTuple):
    """GPUs `first` to `first + size - 1` of a node."""

    first: int
    size: int

    @property
    def mask(self) -> int:
        """Its GPUs as bits."""
        return ((1 << self.size) - 1) << self.first

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its GPUs."""
        return tuple(range(self.first, self.first + self.size))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model service as a node reports it."""

    degrees: tuple[int, ...]
    """GPUs that one engine of it may use."""
    concurrency: int = 1
    """Most actions that use one engine at the same time."""
    awake_gb: float = 0.0
    """Memory of each GPU that an engine of it needs."""
    resident: frozenset[Chunk] = frozenset()
    """Chunks that hold it: an action starts there without a restore."""
    unusable: frozenset[Chunk] = frozenset()
    """Chunks where its engine is quarantined."""


Served = Mapping[str, ServedModel]


@dataclass(slots=True)
class _Busy:
    """A chunk that is in use."""

    service: str
    holders: set[str]


class Choice(NamedTuple):
    """Chunk for a holder, with what is better about it first. Smaller is better; comparable between nodes."""

    joins: int
    """0: it joins a busy chunk of its service; 1: it gets a chunk of its own."""
    level: int
    """Size of the free block that is split for it, at most the largest degree; 0 if it joins."""
    restores: bool
    """Its service has to be restored there."""
    used_s: float
    """Time of the chunk's last grant."""
    chunk: Chunk


class Chunks:
    """GPUs of one node, with what their chunks hold. Operations are O(GPUs of the node)."""

    __slots__ = (
        "_bad",
        "_beyond",
        "_busy",
        "_gb_of",
        "_held",
        "_largest",
        "_resident",
        "_share",
        "_used_s",
        "capacity",
        "served",
        "spec",
    )

    def __init__(self, capacity: int, spec: ResourceSpec) -> None:
        self.spec = spec
        self.capacity = capacity
        self.served: Served = {}
        """Model services of the node, as last reported."""
        self._share: int | None = None
        self._bad = 0
        self._gb_of: tuple[float, ...] = ()
        self._busy: dict[Chunk, _Busy] = {}
        self._held: dict[str, Chunk] = {}
        self._beyond: dict[str, int] = {}
        """Holder -> GPUs that the node reports, and that cannot be placed here."""
        self._resident: dict[Chunk, set[str]] = {}
        """Chunk -> services that it holds, as reported and as later grants imply."""
        self._used_s: dict[int, float] = {}
        """GPU -> time of its last grant."""
        self._largest = LARGEST

    def __repr__(self) -> str:
        return f"Chunks({self.used} of {self.capacity} used, share {self._share})"

    # ---- reports of the node -----------------------------------------------------------------------------------

    def report(self, served: Served, device_gb: Sequence[float], bad: Iterable[int] = ()) -> None:
        """Apply the node's report of its model services, the memory of its GPUs, and bad GPUs."""
        self.served, self._gb_of = dict(served), tuple(device_gb)
        self._bad = sum(1 << gpu for gpu in set(bad) if 0 <= gpu < self.capacity)
        self._largest = max((degree for one in served.values() for degree in one.degrees), default=LARGEST)
        self._resident = {}
        for name, one in served.items():
            for chunk in one.resident:
                self._resident.setdefault(chunk, set()).add(name)
        for chunk, busy in self._busy.items():  # granted, and maybe not restored when the report was written
            self._resident.setdefault(chunk, set()).add(busy.service)

    @property
    def offer(self) -> object:
        """What decides which work could ever run here; to be compared."""
        services = {name: (one.degrees, one.unusable) for name, one in self.served.items()}
        return services, self._bad

    # ---- units -------------------------------------------------------------------------------------------------

    @property
    def share(self) -> int | None:
        """GPUs that the node was assigned to own; None: all."""
        return self._share

    @share.setter
    def share(self, units: int | None) -> None:
        self._share = units

    @property
    def used(self) -> int:
        """GPUs in busy chunks."""
        return self._busy_mask().bit_count() + sum(self._beyond.values())

    @property
    def shared(self) -> int:
        """GPUs that were granted beyond `used`, because holders share chunks."""
        return sum(chunk.size * (len(busy.holders) - 1) for chunk, busy in self._busy.items())

    @property
    def free(self) -> int:
        """GPUs that the node owns and that are neither busy nor bad."""
        usable = self.capacity - (self._bad & ~self._busy_mask()).bit_count()
        owned = usable if self._share is None else min(self._share, usable)
        return max(0, owned - self.used)

    def fits(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder can get a chunk of this size now, or join one of its service."""
        return not units or self.choose(units, use.service) is not None

    def could_ever(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder could get a chunk of this size if all good GPUs were free."""
        if not units:
            return True
        if units not in SIZES or not self._serves(units, use.service):
            return False
        return any(not chunk.mask & self._bad for chunk in self._chunks(units) if self._usable(chunk, use.service))

    def rank(self, units: int, use: Use = NO_USE) -> Rank | None:
        """Return the choice without its chunk, then the free GPUs that other work could use; None: it does not fit."""
        if not units:
            return (0,)
        choice = self.choose(units, use.service)
        return None if choice is None else (*choice[:4], -self.free)

    def choose(self, units: int, service: str = "") -> Choice | None:
        """Return where a holder would go; None: nowhere now. O(GPUs)."""
        if units not in SIZES or not self._serves(units, service):
            return None
        if service and (joined := self._joinable(units, service)) is not None:
            return Choice(0, 0, False, 0.0, joined)
        if units > self.free:
            return None
        free, best = ~(self._busy_mask() | self._bad), None
        for chunk in self._chunks(units):
            if chunk.mask & ~free or not self._usable(chunk, service):
                continue
            restores = bool(service) and service not in self._resident.get(chunk, ())
            found = Choice(1, self._level(chunk, free), restores, self._last_used_s(chunk), chunk)
            if best is None or found < best:
                best = found
        return best

    def take(self, units: int, holder: str, use: Use = NO_USE) -> None:
        """Take a chunk for a holder, or join one of its service; the chunk that its node reports, if it does.

        GPUs that a node reports and that cannot be placed count as used, too.
        """
        if not units:
            return
        assert holder not in self._held.keys() | self._beyond.keys(), f"{holder} has GPUs already"
        chunk = self._reported(units, use) if use.numbers else self._chosen(units, use.service)
        if chunk is None:
            self._beyond[holder] = units
            return
        self._busy.setdefault(chunk, _Busy(use.service, set())).holders.add(holder)
        self._held[holder] = chunk
        if use.service:
            self._resident.setdefault(chunk, set()).add(use.service)
        for gpu in chunk.numbers:
            self._used_s[gpu] = use.now

    def give_back(self, units: int, holder: str) -> None:
        """Give a holder's chunk back. Its service stays there until another one needs the memory.

        Raises:
            AssertionError: it has not taken so many.
        """
        if not units:
            return
        if holder in self._beyond:
            assert self._beyond.pop(holder) == units, f"{holder} gives back {units} GPUs, and has others"
            return
        chunk = self._held.pop(holder, None)
        assert chunk is not None, f"{holder} gives back {units} GPUs, and has none"
        assert chunk.size == units, f"{holder} gives back {units} GPUs, and has {chunk}"
        busy = self._busy[chunk]
        busy.holders.discard(holder)
        if not busy.holders:
            del self._busy[chunk]

    def numbers(self, holder: str) -> tuple[int, ...]:
        """GPUs of a holder; empty if it has none here."""
        chunk = self._held.get(holder)
        return () if chunk is None else chunk.numbers

    @property
    def sharing(self) -> frozenset[str]:
        """Holders whose chunk has another holder."""
        return frozenset(name for busy in self._busy.values() if len(busy.holders) > 1 for name in busy.holders)

    def evicts(self, units: int, use: Use) -> Iterator[str]:
        """Yield the services on the chunk that a holder would get, if their memory is needed to restore its own."""
        choice = self.choose(units, use.service)
        if choice is None or not choice.restores:
            return
        chunk = choice.chunk
        present = [
            (other, name) for other, names in self._resident.items() if other.mask & chunk.mask for name in names
        ]
        needed = self._gb(use.service)
        for gpu in chunk.numbers:
            here = sum(self._gb(name) for other, name in present if other.mask >> gpu & 1)
            if here + needed > self._device_gb(gpu):
                yield from {name for other, name in present if other.mask >> gpu & 1}

    def states(self, but: Mapping[str, int]) -> Operator:
        """Sets of free blocks, with the chunks of the holders `but` given back."""
        freed = [chunk for chunk, busy in self._busy.items() if busy.holders <= but.keys()]
        busy_mask = self._busy_mask() & ~sum(chunk.mask for chunk in freed)
        free = ((1 << self.capacity) - 1) & ~(busy_mask | self._bad)
        units = self.free + sum(chunk.size for chunk in freed)
        return ChunkStates(blocks_of(free, self.capacity), units)

    # ---- parts -------------------------------------------------------------------------------------------------

    def _busy_mask(self) -> int:
        mask = 0
        for chunk in self._busy:
            mask |= chunk.mask
        return mask

    def _serves(self, units: int, service: str) -> bool:
        if not service:
            return True
        one = self.served.get(service)
        return one is not None and units in one.degrees

    def _usable(self, chunk: Chunk, service: str) -> bool:
        return not service or chunk not in self.served[service].unusable

    def _gb(self, service: str) -> float:
        one = self.served.get(service)
        return 0.0 if one is None else one.awake_gb

    def _device_gb(self, gpu: int) -> float:
        return self._gb_of[gpu] if gpu < len(self._gb_of) else 0.0

    def _joinable(self, units: int, service: str) -> Chunk | None:
        """Busy chunk of a service with room: the fullest. None while the node has more than it should."""
        if self._beyond:
            return None
        most = self.served[service].concurrency
        best, fullest = None, 0
        for chunk, busy in self._busy.items():
            count = len(busy.holders)
            if busy.service != service or chunk.size != units or not fullest < count < most:
                continue
            if not chunk.mask & self._bad and self._usable(chunk, service):
                best, fullest = chunk, count
        return best

    def _chosen(self, units: int, service: str) -> Chunk | None:
        choice = self.choose(units, service)
        return None if choice is None else choice.chunk

    def _reported(self, units: int, use: Use) -> Chunk | None:
        """Return the chunk of a holder that its node reports; None if it contradicts the present busy chunks."""
        chunk = Chunk(min(use.numbers), units)
        if chunk.numbers != tuple(sorted(use.numbers)) or chunk.first % units or chunk.numbers[-1] >= self.capacity:
            return None
        busy = self._busy.get(chunk)
        if busy is not None:
            return chunk if use.service and busy.service == use.service else None
        return None if chunk.mask & self._busy_mask() else chunk

    def _chunks(self, units: int) -> Iterator[Chunk]:
        for first in range(0, self.capacity - units + 1, units):
            yield Chunk(first, units)

    def _level(self, chunk: Chunk, free: int) -> int:
        """Size of the free block around a chunk, at most the largest degree."""
        size = chunk.size
        while size < self._largest:
            first = chunk.first - chunk.first % (2 * size)
            if first + 2 * size > self.capacity or Chunk(first, 2 * size).mask & ~free:
                break
            size *= 2
        return size

    def _last_used_s(self, chunk: Chunk) -> float:
        return max(self._used_s.get(gpu, -math.inf) for gpu in chunk.numbers)


Blocks = tuple[int, ...]
"""Sizes of free blocks, ascending."""


def blocks_of(free: int, capacity: int) -> Blocks:
    """Return the largest aligned blocks of a set of GPUs, at most `LARGEST` each. `free`: as bits."""
    found = list[int]()
    for size in reversed(SIZES):
        for first in range(0, capacity - size + 1, size):
            mask = Chunk(first, size).mask
            if not mask & ~free:
                found.append(size)
                free &= ~mask
    return tuple(sorted(found))


def split(blocks: Blocks, units: int) -> Blocks | None:
    """Return the blocks that are left after a chunk was taken from the smallest one that has it; None: none has it."""
    if units not in SIZES:
        return None
    for at, size in enumerate(blocks):
        if size >= units:
            halves = list[int]()
            while size > units:
                size //= 2
                halves.append(size)
            return tuple(sorted((*blocks[:at], *halves, *blocks[at + 1 :])))
    return None


@dataclass(slots=True)
class ChunkStates:
    """DP operator over sets of free blocks (ARL-Tangram Algorithm 4, with real splitting).

    The paper's PREV takes `need` GPUs from several blocks that need not touch, and never splits one. Here a chunk comes
    from the smallest block that has it, and the halves that are left are blocks. Taking from the smallest is best: what
    fits afterwards would fit after any other choice too (test_chunks.py tries all).
    """

    blocks: Blocks
    units: int
    """GPUs that may be taken together: less than the blocks have if the node owns less."""
    _states: list[tuple[Blocks, int]] = field(init=False)
    _left: dict[tuple[int, int], int] = field(init=False)

    def __post_init__(self) -> None:
        """Find all states that can be reached. 8 free GPUs: 25 states, about 100 us."""
        self.units = min(self.units, sum(self.blocks))
        begin = self.blocks, self.units
        steps: dict[tuple[Blocks, int], dict[int, tuple[Blocks, int]]] = {}
        frontier = [begin]
        while frontier:
            here = frontier.pop()
            if here in steps:
                continue
            steps[here] = {}
            for size in SIZES:
                left = split(here[0], size) if size <= here[1] else None
                if left is not None:
                    steps[here][size] = left, here[1] - size
                    frontier.append((left, here[1] - size))
        self._states = [*(state for state in steps if state != begin), begin]
        number = {state: at for at, state in enumerate(self._states)}
        self._left = {
            (number[here], size): number[left] for here, taken in steps.items() for size, left in taken.items()
        }

    @property
    def states(self) -> int:
        """Number of states; the last one is the present one."""
        return len(self._states)

    def left(self, state: int, units: int) -> int | None:
        """Return the state after a chunk of this size was taken; None: there is none."""
        return self._left.get((state, units))


def _chunks(capacity: int, spec: ResourceSpec) -> Resource:
    return Chunks(capacity, spec)


GPUS: Final = ResourceSpec(shortage="no free chunk of GPUs", make=_chunks)
"""Properties of the resource `gpus`."""
