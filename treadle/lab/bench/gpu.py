"""GPUs: choice of a chunk, evictions of a node, swaps on random traces, and judge calls through the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.chunk_choices import GPUS_OF_A_NODE, SERVICES, decision_times, eviction_times
from treadle.lab.bench.closed_loop import percentile
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.judged_calls import judged_calls
from treadle.lab.bench.sizes import GpuSizes
from treadle.lab.replay.gpu.swaps import SEEDS, SwapCounts, count_swaps

SMALL_NODES, LARGE_NODES = 5, 160
MOST_MS, MOST_LARGE_MS = 0.2, 2.0
SLOTS = (1, 2)
"""Services that a GPU holds at the same time, trace by trace."""


async def gpus(bench: Bench) -> list[BenchFigure]:
    """Measure the policy in this process, then a stack with described GPUs."""
    sizes = bench.sizes.gpu
    return [
        *await asyncio.to_thread(_choices, sizes),
        *await asyncio.to_thread(_swaps, sizes),
        *await judged_calls(bench),
    ]


def _choices(sizes: GpuSizes) -> list[BenchFigure]:
    figures: list[BenchFigure] = []
    for nodes, count, most_ms in (
        (SMALL_NODES, sizes.choices, MOST_MS),
        (LARGE_NODES, sizes.large_choices, MOST_LARGE_MS),
    ):
        gpus = nodes * GPUS_OF_A_NODE
        what = f"leader's decision with a chunk, {gpus:,} GPUs and {SERVICES} services"
        run = partial(decision_times, nodes, count)
        figures += decision_figures(f"gpu.choose.{gpus}", what, run, sizes.repeats, most_ms)
        run = partial(decision_times, nodes, count // 3, elastic=True)
        what = f"the same for actions that may use several degrees, {gpus:,} GPUs"
        figures += decision_figures(f"gpu.choose.elastic.{gpus}", what, run, sizes.repeats, most_ms)
    what = f"node's decision that evicts, {SERVICES} services asleep on each chunk"
    figures += decision_figures("gpu.evict", what, partial(eviction_times, sizes.evictions), sizes.repeats, MOST_MS)
    return figures


def decision_figures(
    name: str, what: str, run: Callable[[], list[float]], repeats: int, most_ms: float
) -> Iterator[BenchFigure]:
    """Yield what one run took, and what its decisions cost: the least of repeated runs, each of the same decisions.

    Both have the bound. The time of one run has the pauses of the machine, too.
    """
    runs = [run() for _ in range(repeats)]
    if len({len(times_s) for times_s in runs}) != 1:
        raise BenchError(f"repeated runs of {name} made different decisions")
    least = sorted(min(times_s) for times_s in zip(*runs, strict=True))
    once = sorted(runs, key=lambda times_s: percentile(sorted(times_s), 99))[repeats // 2]
    least_of = f"least of {repeats} runs of each decision"
    yield figure(f"{name}.p50", f"{what}, p50 of one run", percentile(sorted(once), 50) * 1e3, "ms")
    yield figure(f"{name}.p99", f"{what}, p99 of one run", percentile(sorted(once), 99) * 1e3, "ms", at_most(most_ms))
    yield figure(f"{name}.cost.p50", f"{what}, {least_of}, p50", percentile(least, 50) * 1e3, "ms")
    yield figure(f"{name}.cost.p99", f"{what}, {least_of}, p99", percentile(least, 99) * 1e3, "ms", at_most(most_ms))


def _swaps(sizes: GpuSizes) -> list[BenchFigure]:
    return [
        one
        for slots in SLOTS
        for seed in SEEDS[: sizes.traces]
        for one in swap_figures(count_swaps(np.random.default_rng(seed), seed, slots))
    ]


def swap_figures(counts: SwapCounts) -> list[BenchFigure]:
    """Return the figures of one random trace."""
    name = f"gpu.swaps.{counts.slots}.seed{counts.seed}"
    what = f"{counts.services} services, {counts.slots} at a time, {counts.calls} calls, seed {counts.seed}"
    lru, belady = at_most(counts.lru, "LRU in the order of arrival"), at_most(counts.belady, "Belady's optimum for it")
    return [
        figure(f"{name}.in_order", f"swaps in order of arrival: {what}", counts.in_order, "", lru),
        figure(f"{name}.reordered", f"swaps, reordered within max_wait_s: {what}", counts.reordered, "", belady),
        figure(f"{name}.reordered.p99_wait", "wait of these calls, p99", counts.reordered_p99_s, "s"),
    ]
