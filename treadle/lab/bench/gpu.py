"""GPUs: choice of a chunk, evictions of a node, swaps on random traces, and judge calls through the mesh."""

from __future__ import annotations

import asyncio

import numpy as np

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.chunk_choices import GPUS_OF_A_NODE, SERVICES, decision_times, eviction_times
from treadle.lab.bench.closed_loop import percentile
from treadle.lab.bench.figures import BenchFigure, at_most, figure
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
        figures += _times(f"gpu.choose.{gpus}", what, decision_times(nodes, count), most_ms)
    what = f"node's decision that evicts, {SERVICES} services asleep on each chunk"
    return figures + _times("gpu.evict", what, eviction_times(sizes.evictions), MOST_MS)


def _times(name: str, what: str, times_s: list[float], most_ms: float) -> list[BenchFigure]:
    """Return median and 99th percentile; the bound is that of the latter."""
    ordered = sorted(times_s)
    return [
        figure(f"{name}.p50", f"{what}, p50", percentile(ordered, 50) * 1e3, "ms"),
        figure(f"{name}.p99", f"{what}, p99", percentile(ordered, 99) * 1e3, "ms", at_most(most_ms)),
    ]


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
