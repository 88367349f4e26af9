"""Ends of a trajectory's recorded chains: which of them a new prompt extends, without the ids themselves.

An end is its length and a digest of its ids, about 150 bytes. So thousands of live trajectories fit into little memory,
whatever their length (tests/shared/tokens/test_chain_heads.py).
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

MOST_HEADS: Final = 64
"""Ends of one trajectory. The one that was made or extended first goes first; its continuation begins a chain then."""
BYTES: Final = 4
"""Bytes of an id: 32 bits, little-endian."""


class ChainHead(NamedTuple):
    """End of a chain, as it is stored."""

    length: int
    """Ids of the chain."""
    digest: bytes
    serial: int
    """Call that has made this end."""


def head_of(sequence: bytes, serial: int) -> ChainHead:
    """Return the end that a call makes: of its whole prompt and output (`packed`). O(sequence)."""
    return ChainHead(len(sequence) // BYTES, blake2b(sequence, digest_size=16).digest(), serial)


class Extension(NamedTuple):
    """What a prompt extends."""

    serial: int | None
    """Call at whose end it goes on; None: it begins a chain."""
    kept: int
    """Ids of that chain."""


def packed(ids: Iterable[int]) -> bytes:
    """Return ids as bytes.

    Raises:
        OverflowError: an id does not fit into 32 bits.
    """
    values = array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


@dataclass(slots=True)
class ChainHeads:
    """Ends of one trajectory's chains."""

    most: int = MOST_HEADS
    _serials: OrderedDict[tuple[int, bytes], int] = field(default_factory=OrderedDict)
    """(Length, digest) -> call. The newest is last."""

    def __len__(self) -> int:
        return len(self._serials)

    def match(self, prompt: bytes) -> Extension:
        """Return the longest chain that begins a prompt (`packed`). O(prompt + ends): each id is hashed once."""
        hashed, done = blake2b(digest_size=16), 0
        found = Extension(None, 0)
        view = memoryview(prompt)
        for length in sorted({length for length, _ in self._serials}):
            end = length * BYTES
            if end > len(prompt):
                break
            hashed.update(view[done:end])
            done = end
            serial = self._serials.get((length, hashed.digest()))
            if serial is not None:
                found = Extension(serial, length)
        return found

    def add(self, sequence: bytes, serial: int) -> ChainHead:
        """Add the end that a call has made (`head_of`). O(sequence)."""
        head = head_of(sequence, serial)
        self.restore(head)
        return head

    def restore(self, head: ChainHead) -> None:
        """Add a stored end. Of equal ones the first call counts."""
        key = head.length, head.digest
        self._serials[key] = min(self._serials.pop(key, head.serial), head.serial)
        while len(self._serials) > self.most:
            self._serials.popitem(last=False)
