"""GPUs of one node: aligned chunks for model services (ARL-Tangram §5.3; cells as in HiveD, OSDI 2020).

A *chunk* is an aligned interval of 1, 2, 4 or 8 GPUs. The free ones follow from the set of free GPUs, without records.
Laws (tests/shared/policy/resources/test_chunks.py):
  - a GPU is in at most one busy chunk, and a busy chunk has one model service. Several holders share it, up to the
    service's concurrency;
  - a GPU that is marked bad or is released is in no new chunk. It still counts as existing. Work that needs a released
    one waits for it, because it comes back when the node's share needs it; work that needs a bad one can never start;
  - a new holder joins a busy chunk of its service that has room. Otherwise it gets a free chunk that holds the service,
    in the smallest free block. Otherwise the smallest free block is split; among equals, one where it sleeps is first,
    by the time of evictions and restore; then one with memory for it beside what is resident; then the one that was
    used least recently. Blocks above the largest degree of the node's services are equal: nothing needs them whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from shared.policy.model.chunks import LARGEST, SIZES, Chunk, Served, mask_of
from shared.policy.resources.chunk_choice import (
    BusyChunk,
    ChunkCache,
    ChunkChoice,
    FreeChunk,
    best_free,
    free_levels,
    reported,
    taken,
)
from shared.policy.resources.chunk_records import records_of
from shared.policy.resources.chunk_states import ChunkStates, blocks_of
from shared.policy.resources.engine_records import EngineRecords, service_row
from shared.policy.resources.model_residency import Implied, ModelResidency, Turn
from shared.policy.resources.resource import NO_USE, Operator, Rank, Resource, ResourceSpec, Use


class Chunks:
    """GPUs of one node, with what their chunks hold. Operations are O(GPUs of the node)."""

    __slots__ = (
        "_away", "_beyond", "_busy_of", "_former", "_held", "_implied", "_largest", "_mask", "_rows",
        "_share", "bad", "busy", "cache", "capacity", "models", "spec",
    )  # fmt: skip

    def __init__(self, capacity: int, spec: ResourceSpec) -> None:
        self.spec = spec
        self.capacity = capacity
        self.models = ModelResidency(capacity)  # model services that its chunks hold
        self._share: int | None = None
        self.bad = 0  # bad GPUs, as bits
        self._away = 0  # GPUs that must not be granted now: bad and released ones, as bits
        self._mask = 0  # GPUs in busy chunks, as bits
        self.busy: dict[Chunk, BusyChunk] = {}
        self._busy_of: dict[str, dict[Chunk, BusyChunk]] = {}
        """Service -> busy chunks that it has."""
        self._former: dict[Chunk, BusyChunk] = {}  # free, and used by no other service since
        self.cache = ChunkCache()
        self._implied: dict[str, Implied] = {}
        """Holder -> effects of its grant on residency, since the last report."""
        self._held: dict[str, Chunk] = {}  # by holder
        self._rows: dict[str, bytes] = {}
        """Service -> row of a plan, until a report changes it."""
        self._beyond: dict[str, int] = {}
        """Holder -> GPUs that the node reports, and that cannot be placed here."""
        self._largest = LARGEST

    def __repr__(self) -> str:
        return f"Chunks({self.used} of {self.capacity} used, share {self._share})"

    # ---- reports of the node -----------------------------------------------------------------------------------

    def report(
        self, served: Served, device_gb: Sequence[float], bad: Iterable[int] = (), released: Iterable[int] = ()
    ) -> None:
        """Apply the node's report of its model services, the memory of its GPUs, and bad and released GPUs."""
        before, rows = self.models.served, self._rows
        self.models.report(served, device_gb, [(at, one.service) for at, one in self.busy.items()])
        self._implied.clear()
        self.cache.clear()
        same = (name for name, one in self.models.served.items() if name in rows and before.get(name) == one)
        self._rows = {name: rows[name] for name in same}
        self.bad = mask_of(bad, self.capacity)
        self._away = self.bad | mask_of(released, self.capacity)
        degrees = (degree for one in self.models.served.values() for degree in one.degrees)
        self._largest = max(degrees, default=LARGEST)

    @property
    def offer(self) -> object:
        """What decides which work could ever run here; to be compared."""
        return {name: (one.degrees, one.unusable) for name, one in self.models.served.items()}, self.bad

    # ---- units -------------------------------------------------------------------------------------------------

    @property
    def share(self) -> int | None:
        """GPUs that the node was assigned to own; None: all."""
        return self._share

    @share.setter
    def share(self, units: int | None) -> None:
        self._share = units
        self.cache.clear()

    @property
    def used(self) -> int:
        """GPUs in busy chunks."""
        return self._mask.bit_count() + sum(self._beyond.values())

    @property
    def shared(self) -> int:
        """GPUs that were granted beyond `used`, because holders share chunks."""
        return sum(chunk.size * (len(busy.holders) - 1) for chunk, busy in self.busy.items())

    @property
    def free(self) -> int:
        """GPUs that the node owns and that are not busy, bad or released."""
        if self.cache.units is None:
            usable = self.capacity - (self._away & ~self._mask).bit_count()
            self.cache.units = max(0, (usable if self._share is None else min(self._share, usable)) - self.used)
        return self.cache.units

    def fits(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder can get a chunk of this size now, or join one of its service."""
        asked = (units, use.service, use.numbers)
        if not units or use.numbers or asked in self.cache.choices:
            return not units or self.choose(*asked) is not None
        if not self._serves(units, use.service):  # what follows costs less than `choose`, because chunks need no order
            return False
        free = units <= self.free and self._any_usable(self._free_levels(units), use.service)
        return free or self._joinable(units, use.service) is not None

    def could_ever(self, units: int, use: Use = NO_USE) -> bool:
        """Return whether one holder could get a chunk of this size if all good GPUs were free."""
        if not units or not self._serves(units, use.service):
            return not units
        good = free_levels(((1 << self.capacity) - 1) & ~self.bad, self.capacity, units, LARGEST)
        return self._any_usable(good, use.service)

    def rank(self, units: int, use: Use = NO_USE) -> Rank | None:
        """Return the choice without its chunk, then the free GPUs that other work could use; None: it does not fit."""
        if not units:
            return (0,)
        choice = self.choose(units, use.service)
        return None if choice is None else (*choice[:-1], -self.free)

    def choose(self, units: int, service: str = "", numbers: tuple[int, ...] = ()) -> ChunkChoice | None:
        """Return where a holder would go: to its numbers, if it has any; None: nowhere now. O(GPUs) after a change."""
        asked, known = (units, service, numbers), self.cache.choices
        if asked not in known:
            known[asked] = self._choose_numbers(*asked) if numbers else self._choose(units, service)
        return known[asked]

    def _choose(self, units: int, service: str) -> ChunkChoice | None:
        if not self._serves(units, service):
            return None
        if (joined := self._joinable(units, service)) is not None:
            return ChunkChoice(0, False, 0, False, 0.0, False, 0.0, joined)
        if units > self.free or not (free := self._free_chunks(units)):
            return None
        if not service:
            return ChunkChoice(1, False, free[0].level, False, 0.0, False, free[0].used_s, free[0].chunk)
        return best_free(free, self.models, service, units)

    def engine_records(self) -> EngineRecords:
        """Return the state of its chunks. O(GPUs + resident engines) after a change."""
        if self.cache.records is None:
            units = self.free, self.capacity if self._share is None else self._share, self.used
            self.cache.records = records_of(self.models, units, self.busy, not self._beyond, self._away)
        return self.cache.records

    def service_row(self, service: str) -> bytes:
        """Return what a plan needs to know of a service here. Computed once, until a report changes it."""
        if service not in self._rows:
            self._rows[service] = service_row(self.models.served.get(service))
        return self._rows[service]

    def _free_chunks(self, units: int) -> list[FreeChunk]:
        found = self.cache.free.get(units)
        if found is None:
            used_s, free_gb = self.models.last_used_s, self.models.free_gb
            free = [FreeChunk(level, used_s(chunk), chunk, free_gb(chunk)) for level, chunk in self._free_levels(units)]
            found = self.cache.free[units] = sorted(free)
        return found

    def _free_levels(self, units: int) -> tuple[tuple[int, Chunk], ...]:
        free = ~(self._mask | self._away) & ((1 << self.capacity) - 1)
        return free_levels(free, self.capacity, units, self._largest)

    def take(self, units: int, holder: str, use: Use = NO_USE) -> None:
        """Take a chunk for a holder, or join one of its service; the chunk that its node reports, if it does.

        GPUs that a node reports and that cannot be placed count as used, too.
        """
        if not units:
            return
        assert holder not in self._held.keys() | self._beyond.keys(), f"{holder} has GPUs already"
        choice = self.choose(units, use.service, use.numbers)
        chunk = None if choice is None else choice.chunk
        if chunk is None and use.numbers:  # it is there, even if it could not be granted there now
            chunk = reported(self.capacity, self.busy, self._mask, units, use.service, use.numbers)
        self.cache.clear()
        if chunk is None:
            self._beyond[holder] = units
            return
        busy = self.busy.get(chunk)
        if busy is None:
            busy = self.busy[chunk] = taken(self._former, chunk, use.service, use.now)
            if use.service:
                self._busy_of.setdefault(use.service, {})[chunk] = busy
        self._held[holder] = chunk
        self._mask |= chunk.mask
        self._implied[holder] = self.models.granted(chunk, use.service, use.now)
        busy.add(holder, use.now, max(use.now, self.models.since_s(chunk, use.service)), use.lasts_s)

    def give_back(self, units: int, holder: str) -> None:
        """Give a holder's chunk back. Its service stays there until another one needs the memory.

        Raises:
            AssertionError: it has not taken so many.
        """
        if not units:
            return
        self.cache.clear()
        if holder in self._beyond:
            assert self._beyond.pop(holder) == units, f"{holder} gives back {units} GPUs, and has others"
            return
        chunk = self._held.pop(holder, None)
        assert chunk is not None, f"{holder} gives back {units} GPUs, and has none"
        assert chunk.size == units, f"{holder} gives back {units} GPUs, and has {chunk}"
        busy = self.busy[chunk]
        del busy.holders[holder]
        self._implied.pop(holder, None)
        if not busy.holders:
            self._former[chunk] = self.busy.pop(chunk)
            self._mask &= ~chunk.mask
            if busy.service:
                del self._busy_of[busy.service][chunk]

    def undo(self, units: int, holder: str) -> None:
        """Give back what a holder was granted in this round, as if it had not been granted: nothing was sent."""
        effects = self._implied.get(holder)
        self.give_back(units, holder)
        if effects is not None and (effects.before or effects.chunk not in self.busy):  # else others share it
            self.models.undo(effects)

    def executes(self, holder: str, now: float) -> None:
        """Note that a holder's service is resident: its node executes it."""
        chunk = self._held.get(holder)
        if chunk is not None and self.models.executes(chunk, self.busy[chunk].service, now):
            self.cache.clear()

    def numbers(self, holder: str) -> tuple[int, ...]:
        """GPUs of a holder; empty if it has none here."""
        return tuple(self._held[holder].gpus) if holder in self._held else ()

    @property
    def sharing(self) -> frozenset[str]:
        """Holders whose chunk has another holder."""
        return frozenset(name for busy in self.busy.values() if len(busy.holders) > 1 for name in busy.holders)

    def restores_on(self, units: int, use: Use) -> tuple[int, ...]:
        """Return the chunk that a holder would get, if its service is not resident there."""
        choice = self.choose(units, use.service, use.numbers)
        return tuple(choice.chunk.gpus) if choice is not None and choice.restores else ()

    def evicts(self, units: int, use: Use, among: Collection[str]) -> Iterator[Turn]:
        """Yield the services that leave the chunk that a holder would get; see `ModelResidency.leaving`."""
        choice = self.choose(units, use.service, use.numbers)
        if choice is not None and choice.restores and any(map(self.models.chunks_of, among)):
            yield from (one for one in self.models.leaving(choice.chunk, use.service) if one.service in among)

    def begins_s(self, units: int, use: Use) -> float:
        """Return the time at which a holder would execute: after evictions and the restore of its service."""
        choice = self.choose(units, use.service, use.numbers)
        return use.now if choice is None else self.models.begins_s(choice.chunk, use.service, use.now)

    def states(self, but: Mapping[str, int]) -> Operator:
        """Sets of free blocks, with the chunks of the holders `but` given back."""
        freed = [chunk for chunk, busy in self.busy.items() if busy.holders.keys() <= but.keys()]
        busy = self._mask & ~sum(chunk.mask for chunk in freed)
        free = ((1 << self.capacity) - 1) & ~(busy | self._away)
        units = self.free + sum(chunk.size for chunk in freed)
        return ChunkStates(blocks_of(free, self.capacity), units)

    def is_open(self, chunk: Chunk, service: str) -> bool:
        """Return whether a service may use a chunk: it can be served there, and no GPU is bad or released."""
        one = self.models.served.get(service)
        return not chunk.mask & self._away and (not service or (one is not None and chunk not in one.unusable))

    # ---- parts -------------------------------------------------------------------------------------------------

    def _serves(self, units: int, service: str) -> bool:
        one = self.models.served.get(service)
        return units in SIZES and (not service or (one is not None and units in one.degrees))

    def _any_usable(self, chunks: Sequence[tuple[int, Chunk]], service: str) -> bool:
        unusable = self.models.served[service].unusable if service else ()
        return any(chunk not in unusable for _, chunk in chunks) if unusable else bool(chunks)

    def _joinable(self, units: int, service: str) -> Chunk | None:
        """Busy chunk of a service with room: the fullest. None while the node has more than it should."""
        if self._beyond or service not in self._busy_of:
            return None
        best, fullest, most = None, 0, self.models.served[service].concurrency
        for chunk, busy in self._busy_of[service].items():
            count = len(busy.holders)
            if chunk.size == units and fullest < count < most and self.is_open(chunk, service):
                best, fullest = chunk, count
        return best

    def _choose_numbers(self, units: int, service: str, numbers: tuple[int, ...]) -> ChunkChoice | None:
        chunk = reported(self.capacity, self.busy, self._mask, units, service, numbers)
        if chunk is None or not self._serves(units, service) or not self.is_open(chunk, service):
            return None
        joins = chunk in self.busy
        if joins and (self._beyond or len(self.busy[chunk].holders) >= self.models.served[service].concurrency):
            return None
        if not joins and units > self.free:
            return None
        away = bool(service) and not self.models.holds(chunk, service)
        return ChunkChoice(not joins, away, 0, away, 0.0, away, 0.0, chunk)


def _chunks(capacity: int, spec: ResourceSpec) -> Resource:
    return Chunks(capacity, spec)


GPUS: Final = ResourceSpec(shortage="no free chunk of GPUs", make=_chunks)
"""Properties of the resource `gpus`."""
