"""Chunks: aligned intervals of the GPUs of one node (ARL-Tangram §5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SIZES: Final = (1, 2, 4, 8)
"""GPUs of a chunk: the degrees of parallelism."""
LARGEST: Final = SIZES[-1]
MOST_MEASURED: Final = 1e12
"""Most seconds or GB that a node may report: sums and products of them stay finite."""


class Chunk(NamedTuple):
    """GPUs `first` to `first + size - 1`; `first` is a multiple of `size`."""

    first: int
    size: int

    @property
    def gpus(self) -> range:
        """Numbers of its GPUs."""
        return range(self.first, self.first + self.size)

    @property
    def mask(self) -> int:
        """Its GPUs as bits."""
        return ((1 << self.size) - 1) << self.first

    def is_on(self, gpus: int) -> bool:
        """Return whether it is a chunk of a node with this many GPUs."""
        return self.size in SIZES and not self.first % self.size and 0 <= self.first <= gpus - self.size

    def overlaps(self, other: Chunk) -> bool:
        """Return whether the two share a GPU."""
        return self.first < other.first + other.size and other.first < self.first + self.size


def aligned(gpus: int, size: int) -> Iterator[Chunk]:
    """Yield the chunks of this size on a node with this many GPUs."""
    for first in range(0, gpus - size + 1, size):
        yield Chunk(first, size)


def mask_of(gpus: Iterable[int], capacity: int) -> int:
    """Return those of these GPUs that a node with this many has, as bits."""
    return sum(1 << gpu for gpu in set(gpus) if 0 <= gpu < capacity)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model service as a node reports it."""

    degrees: tuple[int, ...]
    """GPUs that one engine of it may use."""
    concurrency: int = 1
    """Most actions that use one engine at the same time."""
    awake_gb: float = 0.0
    """Memory of each GPU that an engine of it needs, at the degrees that `awake_gb_by` lacks."""
    resident: frozenset[Chunk] = frozenset()
    """Chunks that hold it: an action starts there without a restore."""
    unusable: frozenset[Chunk] = frozenset()
    """Chunks where its engine is quarantined, or its late load offers them to other services."""
    awake_gb_by: Mapping[int, float] = field(default_factory=dict)
    """Degree -> memory of each GPU that an engine of this degree needs."""
    restore_s: Mapping[int, float] = field(default_factory=dict)
    """Degree -> seconds from the beginning of a restore until it executes, on a chunk that `asleep` lacks; 0 for a
    degree without."""
    evict_s: Mapping[int, float] = field(default_factory=dict)
    """Degree -> seconds until an engine of this degree has left; 0 for a degree without."""
    asleep: Mapping[Chunk, float] = field(default_factory=dict)
    """Chunk where an engine of it sleeps -> seconds of its restore there; 0 if it was not measured."""

    def gb(self, degree: int) -> float:
        """Return the memory of each GPU that an engine of this degree needs."""
        return self.awake_gb_by.get(degree, self.awake_gb)

    def restore_on_s(self, chunk: Chunk) -> float:
        """Return the seconds of a restore on a chunk; 0 if it was not measured."""
        asleep_s = self.asleep.get(chunk)
        return self.restore_s.get(chunk.size, 0.0) if asleep_s is None else asleep_s

    def on(self, gpus: int) -> ServedModel:
        """Return it without what cannot be on a node with this many GPUs: chunks, degrees, times, amounts of memory.
        An engine has room for one action at least. Nodes choose what they report.
        """
        return ServedModel(
            tuple(degree for degree in self.degrees if degree in SIZES),
            max(1, self.concurrency),
            measured(self.awake_gb),
            frozenset(chunk for chunk in self.resident if chunk.is_on(gpus)),
            frozenset(chunk for chunk in self.unusable if chunk.is_on(gpus)),
            _measures(self.awake_gb_by),
            _measures(self.restore_s),
            _measures(self.evict_s),
            {chunk: measured(restore_s) for chunk, restore_s in self.asleep.items() if chunk.is_on(gpus)},
        )


def measured(measure: float) -> float:
    """Return a measured time or amount as a node reports it; 0 if it cannot be one."""
    return measure if 0.0 < measure <= MOST_MEASURED else 0.0


def _measures(by_degree: Mapping[int, float]) -> dict[int, float]:
    return {degree: measure for degree, measure in by_degree.items() if measured(measure)}


Served = Mapping[str, ServedModel]
"""Model service of a node -> what the node reports of it."""
