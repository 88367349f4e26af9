"""Hashes of ids that are the same in each process. Python's `hash` of a text differs between processes.

A text is read as a number modulo a prime, and then mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
About 1 us for an id. Not for secrets: equal hashes are easy to make.
"""

from __future__ import annotations

from typing import Final

MASK: Final = 2**64 - 1
PRIME: Final = 2**61 - 1
ODD: Final = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: multiples of it are spread evenly."""


def mixed(number: int) -> int:
    """Return 64 bits that all depend on all lower 64 bits of a number."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & MASK
    return number ^ (number >> 31)


def hash_text(text: str, seed: int = 0) -> int:
    """Return a hash of 64 bits. Another seed gives an independent hash. O(characters)."""
    number = int.from_bytes(text.encode("utf-8", "surrogatepass"), "big") % PRIME
    return mixed((number + seed * ODD) & MASK)
