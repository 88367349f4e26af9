"""Arena of a launch: inputs, poisoned outputs, gaps and margins in one piece of memory.

The GPU has the tensors of one launch at a time. All of the arena is written before each launch and copied back after
it: so a launch finds no input of a later one, and writes no output of another one. Outputs, gaps and margins hold
random bytes before a launch, so that an output that a kernel has not written, and a write outside the outputs, are seen
in the copy that comes back.
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
MARGIN: Final = 256 << 10
"""Bytes before the first and after the last tensor."""
TRIAL_BYTES: Final = 64 << 20
"""Tensors of a trial's timed launches, if they are several: the judge draws, copies and compares them."""
MOST_LAUNCHES: Final = 16


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
    """Layout of the tensors of one launch."""

    tensors: Sequence[Tensor]
    offsets: dict[str, int] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        position, self.offsets = MARGIN, {}
        for one in self.tensors:
            self.offsets[one.name] = position
            position = -(-(position + one.size + GAP) // ALIGNMENT) * ALIGNMENT
        self.size = position + MARGIN

    def image(self, inputs: Mapping[str, Array], random: np.random.Generator) -> Array:
        """Return the memory before a launch: poison of its own, and the inputs."""
        image = np.empty(self.size, np.uint8)
        poison = np.frombuffer(random.bytes(1 << 16), np.uint8)
        for start in range(0, self.size, poison.size):
            part = image[start : start + poison.size]
            part[:] = poison[: part.size]
        for one in self.tensors:
            if not one.output:
                self._bytes(image, one)[:] = np.frombuffer(inputs[one.name].tobytes(), np.uint8)
        return image

    def outputs(self, copy: Array) -> list[Array]:
        """Return copies of the outputs."""
        return [
            np.frombuffer(self._bytes(copy, one).tobytes(), one.dtype).reshape(one.shape)
            for one in self.tensors
            if one.output
        ]

    def strays(self, image: Array, copy: Array) -> int:
        """Return how many bytes outside the outputs have changed."""
        changed = image != copy
        for one in self.tensors:
            if one.output:
                self._bytes(changed, one)[:] = False
        return int(np.count_nonzero(changed))

    def _bytes(self, memory: Array, one: Tensor) -> Array:
        begin = self.offsets[one.name]
        return memory[begin : begin + one.size]


def launches_of(tensors: Sequence[Tensor]) -> int:
    """Return how many timed launches a trial has: several with small tensors, whose times vary more."""
    size = sum(one.size + GAP for one in tensors)
    return max(1, min(MOST_LAUNCHES, TRIAL_BYTES // max(1, size)))
