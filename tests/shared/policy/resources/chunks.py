"""A resource with structure: aligned chunks of one, two, four or eight units, as of GPUs that share links.

The second implementation of `Resource`. It shows that nothing in the policy needs plain counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.resources.resource import Resource, ResourceSpec

SIZES = (1, 2, 4, 8)
Blocks = tuple[int, ...]
"""Sizes of the free blocks, ascending; a block is as large as its alignment allows."""


def blocks_of(free: set[int]) -> Blocks:
    """Largest aligned blocks that are free, merged."""
    left, found = set(free), list[int]()
    for size in reversed(SIZES):
        for start in sorted(left):
            cell = set(range(start, start + size))
            if start % size == 0 and cell <= left:
                found.append(size)
                left -= cell
    return tuple(sorted(found))


def split(blocks: Blocks, units: int) -> Blocks | None:
    """Take a chunk from the smallest block that has it; the rest splits into halves. None: no block has it."""
    able = [size for size in blocks if size >= units]
    if units not in SIZES or not able:
        return None
    left, size = list(blocks), able[0]
    left.remove(size)
    while size > units:
        size //= 2
        left.append(size)
    return tuple(sorted(left))


@dataclass(frozen=True)
class ChunkStates:
    """Every set of blocks that is left after some chunks were taken."""

    reachable: list[Blocks]

    @classmethod
    def after(cls, blocks: Blocks) -> ChunkStates:
        found, frontier = {blocks}, [blocks]
        while frontier:
            here = frontier.pop()
            for left in (split(here, size) for size in SIZES):
                if left is not None and left not in found:
                    found.add(left)
                    frontier.append(left)
        return cls([*sorted(found - {blocks}), blocks])

    @property
    def units(self) -> int:
        return sum(self.reachable[-1])

    @property
    def states(self) -> int:
        return len(self.reachable)

    def left(self, state: int, units: int) -> int | None:
        left = split(self.reachable[state], units)
        return None if left is None else self.reachable.index(left)


@dataclass
class Chunks:
    """Units 0, 1, ... of one node; each holder has whole aligned chunks."""

    capacity: int
    spec: ResourceSpec
    share: int | None = None
    cells: dict[str, list[range]] = field(default_factory=dict)
    """Holder -> its chunks."""
    beyond: dict[str, int] = field(default_factory=dict)
    """Holder -> units that a node reports and that do not exist here."""

    @property
    def used(self) -> int:
        return sum(len(cell) for cell in self._taken()) + sum(self.beyond.values())

    @property
    def free(self) -> int:
        return max(0, (self.capacity if self.share is None else self.share) - self.used)

    def _taken(self) -> Iterator[range]:
        return (cell for cells in self.cells.values() for cell in cells)

    def _free_units(self) -> set[int]:
        return set(range(self.capacity)) - {unit for cell in self._taken() for unit in cell}

    def fits(self, units: int) -> bool:
        return not units or (units <= self.free and split(blocks_of(self._free_units()), units) is not None)

    def could_ever(self, units: int) -> bool:
        return not units or (units in SIZES and units <= self.capacity)

    def take(self, units: int, holder: str) -> None:
        if not units:
            return
        free = self._free_units()
        cells = [range(start, start + units) for start in range(0, self.capacity - units + 1, units)]
        whole = [cell for cell in cells if free.issuperset(cell)]
        if not whole:
            self.beyond[holder] = units
            return
        best = min(whole, key=lambda cell: (self._block_around(free, cell), cell.start))
        self.cells.setdefault(holder, []).append(best)

    def _block_around(self, free: set[int], cell: range) -> int:
        size = len(cell)
        while size < SIZES[-1]:
            start = cell.start - cell.start % (2 * size)
            if not free.issuperset(range(start, start + 2 * size)):
                break
            size *= 2
        return size

    def give_back(self, units: int, holder: str) -> None:
        if not units:
            return
        if self.beyond.get(holder) == units:
            del self.beyond[holder]
            return
        cell = next(cell for cell in self.cells[holder] if len(cell) == units)
        self.cells[holder].remove(cell)
        if not self.cells[holder]:
            del self.cells[holder]

    def states(self, but: Mapping[str, int]) -> ChunkStates:
        kept = [cell for holder, cells in self.cells.items() for cell in cells if holder not in but]
        free = set(range(self.capacity)) - {unit for cell in kept for unit in cell}
        return ChunkStates.after(blocks_of(free))


def tightest(resource: Resource, units: int) -> float:
    """Strategy of placement: large blocks stay whole."""
    assert isinstance(resource, Chunks)
    able = [size for size in blocks_of(resource._free_units()) if size >= units]
    return -min(able, default=SIZES[-1])


CHUNKS = ResourceSpec(make=Chunks, score=tightest)
