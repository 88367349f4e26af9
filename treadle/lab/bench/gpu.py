"""GPUs: choice of a chunk, evictions of a node, swaps on random traces, and judge calls through the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.chunk_choices import GPUS_OF_A_NODE, SERVICES, DecisionTime, decision_times, eviction_times
from treadle.lab.bench.closed_loop import percentile
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.judged_calls import judged_calls
from treadle.lab.bench.sizes import GpuSizes
from treadle.lab.replay.gpu.swaps import SEEDS, SwapCounts, count_swaps

SMALL_NODES, LARGE_NODES = 5, 160
MOST_MS, MOST_LARGE_MS = 0.2, 2.0
SLOTS = (1, 2)
"""Services that a GPU holds at the same time, trace by trace."""

Times = TypeVar("Times")


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
        what = f"of a chunk, {gpus:,} GPUs and {SERVICES} services"
        figures += _leader_figures(f"{gpus}", what, sizes, most_ms, partial(decision_times, nodes, count))
        what = f"of a chunk and its degree, {gpus:,} GPUs"
        run = partial(decision_times, nodes, count // 3, elastic=True)
        figures += _leader_figures(f"elastic.{gpus}", what, sizes, most_ms, run)
    what = f"node's decision that evicts, {SERVICES} services asleep on each chunk"
    figures += decision_figures("gpu.evict", what, _repeated(partial(eviction_times, sizes.evictions), sizes), MOST_MS)
    return figures


def _leader_figures(
    name: str, what: str, sizes: GpuSizes, most_ms: float, run: Callable[[], list[DecisionTime]]
) -> Iterator[BenchFigure]:
    """Yield figures of the choice, and of the whole decision: submission, choice and grant. Both have the bound."""
    runs = _repeated(run, sizes)
    choices = [[one.choosing_s for one in times] for times in runs]
    yield from decision_figures(f"gpu.choose.{name}", f"choice {what}", choices, most_ms)
    whole = [[one.took_s for one in times] for times in runs]
    yield from decision_figures(f"gpu.decide.{name}", f"leader's decision with the choice {what}", whole, most_ms)


def _repeated(run: Callable[[], Times], sizes: GpuSizes) -> list[Times]:
    return [run() for _ in range(sizes.repeats)]


def decision_figures(name: str, what: str, runs: Sequence[Sequence[float]], most_ms: float) -> Iterator[BenchFigure]:
    """Yield what one run took, and what its decisions cost: the least of repeated runs, each of the same decisions.

    Both have the bound. The time of one run has the pauses of the machine, too.

    Raises:
        BenchError: the runs made different decisions.
    """
    if len({len(times_s) for times_s in runs}) != 1:
        raise BenchError(f"repeated runs of {name} made different decisions")
    least = sorted(min(times_s) for times_s in zip(*runs, strict=True))
    once = sorted(runs, key=lambda times_s: percentile(sorted(times_s), 99))[len(runs) // 2]
    least_of, bound = f"least of {len(runs)} runs of each decision", at_most(most_ms)
    yield figure(f"{name}.p50", f"{what}, p50 of one run", percentile(sorted(once), 50) * 1e3, "ms")
    yield figure(f"{name}.p99", f"{what}, p99 of one run", percentile(sorted(once), 99) * 1e3, "ms", bound)
    yield figure(f"{name}.cost.p50", f"{what}, {least_of}, p50", percentile(least, 50) * 1e3, "ms")
    yield figure(f"{name}.cost.p99", f"{what}, {least_of}, p99", percentile(least, 99) * 1e3, "ms", bound)


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
