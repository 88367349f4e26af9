"""Records of the GPUs and engines of one node, for the search of a plan (`shared/policy/elastic/engine_plan.py`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.policy.model.chunks import SIZES, Chunk, ServedModel

MOST_SLOTS: Final = 8
"""Most slots of one engine that are listed: those that are free first."""

USE_COLUMNS: Final = 4 + MOST_SLOTS
ENGINE_COLUMNS: Final = 8
MOST_CHUNKS: Final = 8
"""Most chunks of one size of which a row lists whether an engine sleeps there: all of a node with eight GPUs."""
ROW_COLUMNS: Final = 7 + MOST_CHUNKS

Floats = NDArray[np.float64]

_NO_ENGINES: Final = [0.0] * (len(SIZES) * ROW_COLUMNS)
_NONE_ASLEEP: Final = (-1.0,) * MOST_CHUNKS
_UNUSABLE, _LEAST_S, _ASLEEP_S = 3, 6, 7
"""Columns of a row that several chunks change."""
_AT: Final = {size: at * ROW_COLUMNS for at, size in enumerate(SIZES)}
"""Size -> its first column."""
_pack: Final = struct.Struct(f"{len(_NO_ENGINES)}d").pack
_NO_ROW: Final = _pack(*_NO_ENGINES)


class EngineRecords(NamedTuple):
    """State of one node.

    `values` has, one after the other, as bytes of floats:
      - GPUs; resident engines; GPUs that it may grant now, others that are free wait for the next end on it; uses of
        GPUs; rows of the `EngineTable`;
      - by GPU: memory in GB; time of its last grant, minus infinity if there was none;
      - by use of GPUs: first GPU and number of GPUs; row of the engine that uses them, if that can be joined, else -1;
        predicted end, infinity if they must not be granted; predicted end of the use of each slot, `MOST_SLOTS` of
        them: ascending, minus infinity for a free one, infinity for none. A later use replaces an earlier one;
      - by row of the `EngineTable`: see there.
    """

    gpus: int
    engines: int
    """Resident engines."""
    owned: int
    """GPUs that it owns."""
    busy: int
    """GPUs that are in use."""
    values: bytes


@dataclass(slots=True)
class EngineTable:
    """Resident engines of a node as rows of an array, which is changed in place.

    Columns: `number_of` the service; first GPU and size of the chunk (size 0: the row is not used); memory on each GPU;
    seconds of an eviction; most holders; expected end of the restore; last grant.
    """

    _rows: dict[tuple[str, Chunk], int] = field(default_factory=dict)
    _spare: list[int] = field(default_factory=list)
    """Rows that are not used."""
    _values: Floats = field(default_factory=lambda: np.zeros((0, ENGINE_COLUMNS)))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> int:
        """Rows, with those that are not used."""
        return len(self._values)

    @property
    def values(self) -> Floats:
        """All rows, one after the other."""
        return self._values.reshape(-1)

    def row(self, service: str, chunk: Chunk) -> int:
        """Return the row of an engine; -1: it is not resident."""
        return self._rows.get((service, chunk), -1)

    def add(self, service: str, chunk: Chunk, one: ServedModel | None, since_s: float, used_s: float) -> None:
        """Add an engine. Cost: O(1), amortized."""
        if not self._spare:
            count = self.rows
            self._values = np.concatenate((self._values, np.zeros((count + 8, ENGINE_COLUMNS))))
            self._spare = list(range(self.rows - 1, count - 1, -1))
        row = self._rows[service, chunk] = self._spare.pop()
        size = chunk.size
        slots, gb, evict_s = (
            (1, 0.0, 0.0) if one is None else (one.concurrency, one.gb(size), one.evict_s.get(size, 0.0))
        )
        self._values[row] = number_of(service), chunk.first, size, gb, evict_s, slots, since_s, used_s

    def set_times(self, service: str, chunk: Chunk, since_s: float, used_s: float) -> None:
        """Set the expected end of an engine's restore, and its last grant."""
        self._values[self._rows[service, chunk], -2:] = since_s, used_s

    def remove(self, service: str, chunk: Chunk) -> None:
        """Remove an engine."""
        row = self._rows.pop((service, chunk))
        self._values[row] = 0.0
        self._spare.append(row)


def number_of(service: str) -> int:
    """Return a number for the name of a service, exact as a float. Valid in this process only."""
    return hash(service) & (1 << 53) - 1


def service_row(one: ServedModel | None) -> bytes:
    """Return what a plan needs to know of a service on a node, as bytes of floats. For each of `SIZES` one after the
    other: 0 if there is no such engine; seconds of its restore on a chunk where none sleeps; its memory on each GPU;
    chunks where it is quarantined, as bits by `first // size`; most holders; seconds of its eviction; seconds of its
    shortest restore; by `first // size`, seconds of the restore of the one that sleeps there, -1 if none does.
    """
    if one is None:
        return _NO_ROW
    row, sizes = _NO_ENGINES.copy(), one.degrees
    for size in sizes:
        at, restore_s = _AT[size], one.restore_s.get(size, 0.0)
        known = (1.0, restore_s, one.gb(size), 0.0, one.concurrency, one.evict_s.get(size, 0.0), restore_s)
        row[at : at + ROW_COLUMNS] = (*known, *_NONE_ASLEEP)
    for first, size in one.unusable:
        if size in sizes:
            row[_AT[size] + _UNUSABLE] += 1 << first // size
    for (first, size), asleep_s in one.asleep.items():
        if size in sizes and first < MOST_CHUNKS * size:
            at = _AT[size]
            row[at + _ASLEEP_S + first // size] = asleep_s
            row[at + _LEAST_S] = min(row[at + _LEAST_S], asleep_s)
    return _pack(*row)


def floats(values: Iterable[bytes]) -> Floats:
    """Return records or rows one after the other as an array. Takes less than a third of `numpy.concatenate`."""
    return np.frombuffer(bytearray().join(values))
