"""How long the search takes against the number of requests (DistRS §6.4, Figure 15)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import numpy as np

from shared.policy.scaling.search import search
from treadle.lab.replay.distrs.search_load import search_load

REQUESTS = (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 100_000)
"""The paper goes to 16,000."""
ROUNDS = 3


def search_ms(requests: Sequence[int], seed: int, rounds: int = ROUNDS) -> dict[int, float]:
    """Milliseconds of one whole search, by the number of requests of six open batches: a median, after a warm-up.

    Two stages, EBF. Leave the machine alone meanwhile.
    """
    taken = {}
    for count in requests:
        batches, ceilings = search_load(count, chance=np.random.default_rng(seed))
        times = []
        for _ in range(1 + rounds):
            began = perf_counter()
            search(batches, ceilings)
            times.append(perf_counter() - began)
        taken[count] = 1e3 * median(times[1:])
    return taken
