"""Arena of a trial: inputs, poisoned outputs and gaps of several sets in one piece of memory.

Each launch has a set of its own. Outputs and gaps hold random bytes before a launch, so that an output that a kernel
has not written, and a write outside the outputs, are seen in the copy that comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ALIGNMENT: Final = 256
GAP: Final = 256
"""Bytes between two tensors that belong to none."""
SETS_BYTES: Final = 64 << 20
MOST_SETS: Final = 16


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output with its real shape."""

    name: str
    output: bool
    dtype: str
    shape: tuple[int, ...]
    distribution: str = "normal"
    low: float = 0.0
    high: float = 1.0

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    def draw(self, random: np.random.Generator) -> Array:
        """Return random content of an input."""
        kind = np.dtype(self.dtype)
        if self.distribution == "integers" or kind.kind in "iu":
            return random.integers(int(self.low), max(int(self.low) + 1, int(self.high)), self.shape).astype(kind)
        if self.distribution == "uniform":
            return (self.low + (self.high - self.low) * random.random(self.shape, np.float32)).astype(kind)
        return random.standard_normal(self.shape, np.float32).astype(kind)


@dataclass(slots=True)
class Arena:
    """Layout of `count` sets of the same tensors."""

    tensors: Sequence[Tensor]
    count: int
    offsets: list[dict[str, int]] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        position, self.offsets = GAP, []
        for _ in range(self.count):
            here = {}
            for one in self.tensors:
                here[one.name] = position
                position = -(-(position + one.size + GAP) // ALIGNMENT) * ALIGNMENT
            self.offsets.append(here)
        self.size = position

    @property
    def first(self) -> int:
        """Bytes up to the second set: the warm-up's. There is a second set."""
        return self.offsets[1][self.tensors[0].name]

    def fill(self, image: Array, drawn: Sequence[Mapping[str, Array]], random: np.random.Generator) -> None:
        """Write poison, then the inputs of each set."""
        poison = np.frombuffer(random.bytes(1 << 16), np.uint8)
        for start in range(0, self.size, poison.size):
            part = image[start : start + poison.size]
            part[:] = poison[: part.size]
        for offsets, inputs in zip(self.offsets, drawn, strict=True):
            for one in self.tensors:
                if not one.output:
                    self._bytes(image, offsets, one)[:] = np.frombuffer(inputs[one.name].tobytes(), np.uint8)

    def outputs(self, copy: Array, number: int) -> list[Array]:
        """Return copies of the outputs of a set."""
        found = []
        for one in self.tensors:
            if one.output:
                raw = self._bytes(copy, self.offsets[number], one).tobytes()
                found.append(np.frombuffer(raw, one.dtype).reshape(one.shape))
        return found

    def strays(self, image: Array, copy: Array) -> int:
        """Return how many bytes outside the outputs have changed."""
        changed = image != copy
        for offsets in self.offsets:
            for one in self.tensors:
                if one.output:
                    self._bytes(changed, offsets, one)[:] = False
        return int(np.count_nonzero(changed))

    def _bytes(self, memory: Array, offsets: Mapping[str, int], one: Tensor) -> Array:
        begin = offsets[one.name]
        return memory[begin : begin + one.size]


def sets_of(tensors: Sequence[Tensor]) -> int:
    """Return how many timed sets a trial has: several of small tensors, so that one launch is timed well."""
    size = sum(one.size + GAP for one in tensors)
    return max(1, min(MOST_SETS, SETS_BYTES // max(1, size)))
