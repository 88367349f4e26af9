"""Duration of a fixed Python loop: the speed of a core, by which figures of two machines compare."""

from __future__ import annotations

from time import perf_counter
from typing import Final

ADDITIONS: Final = 1_000_000
TRIES: Final = 5


def loop_ms() -> float:
    """Return the milliseconds of a loop of a million additions: the shortest of five tries. About 0.3 to 1 s."""
    return min(_once() for _ in range(TRIES)) * 1e3


def _once() -> float:
    started, total = perf_counter(), 0
    for number in range(ADDITIONS):
        total += number
    assert total == ADDITIONS * (ADDITIONS - 1) // 2
    return perf_counter() - started
