"""Swaps of one GPU that holds one or two of several services: ours, LRU, and Belady's optimum for the arrival order.

LRU and Belady serve in the order of arrival, so their numbers of restores do not depend on times. Ours is the mesh in
virtual time (`simulated_mesh`), in the order of arrival (no wait before a swap), or with calls of one service batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from shared.policy.model.elasticity import RIGID
from treadle.lab.replay.gpu.assumptions import ENGINES, GpuCluster
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.rollout import run_batch
from treadle.lab.replay.gpu.simulated_mesh import GpuMesh, GpuRules
from treadle.lab.replay.gpu.trace import GpuBatch, GpuCall, ModelService
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.assumptions import assumed

SEEDS: Final = tuple(range(1, 11))
"""Of the traces."""
ONE_GPU: Final = GpuCluster(nodes=1, gpus=1)


@dataclass(frozen=True)
class SwapTraces:
    """Random traces: Poisson arrivals, and each call of a random service."""

    calls: int = assumed(300, "ours")
    fewest_services: int = assumed(3, "ours: a trace has 3 to 8 services with random shares")
    most_services: int = assumed(8, "ours")
    act_s: float = assumed(0.6, "ours: mean execution, exponential; about that of Table 1")
    least_load: float = assumed(0.7, "ours: executions alone use 70 % to 120 % of the GPU")
    most_load: float = assumed(1.2, "ours")
    restore_s: float = assumed(0.65, "ours: that of a teacher with a degree of 4")
    turn_s: float = assumed(30.0, "ours: turn of a service before another one evicts it, with reordering")


TRACES: Final = SwapTraces()


@dataclass(frozen=True)
class SwapCounts:
    """Restores of one trace."""

    seed: int
    slots: int
    """Services that the GPU holds."""
    services: int
    calls: int
    lru: int
    belady: int
    in_order: int
    """Ours in the order of arrival."""
    reordered: int
    """Ours, batched."""
    in_order_p99_s: float
    """99th percentile of the wait until the execution."""
    reordered_p99_s: float

    def document(self) -> dict[str, Any]:
        return {one: getattr(self, one) for one in self.__dataclass_fields__}


def lru_swaps(order: Sequence[str], slots: int) -> int:
    """Return the restores of LRU for services in this order."""
    held, swaps = list[str](), 0
    for service in order:
        if service in held:
            held.remove(service)
        else:
            swaps += 1
            del held[: len(held) - slots + 1]
        held.append(service)
    return swaps


def belady_swaps(order: Sequence[str], slots: int) -> int:
    """Return the fewest possible restores for services in this order: the one that is needed last is evicted."""
    held, swaps = set[str](), 0
    for at, service in enumerate(order):
        if service in held:
            continue
        swaps += 1
        if len(held) >= slots:
            coming = order[at:]
            held.remove(max(sorted(held), key=lambda one: coming.index(one) if one in coming else len(coming)))
        held.add(service)
    return swaps


def random_trace(rng: np.random.Generator, slots: int, traces: SwapTraces = TRACES) -> GpuBatch:
    """Return a trace with services of which the GPU holds `slots`."""
    count = int(rng.integers(traces.fewest_services, traces.most_services + 1))
    shares = rng.dirichlet(np.ones(count))
    every_s = traces.act_s / rng.uniform(traces.least_load, traces.most_load)
    due_s = np.cumsum(rng.exponential(every_s, traces.calls)).tolist()
    works_s = rng.exponential(traces.act_s, traces.calls).tolist()
    names = [f"s{number}" for number in rng.choice(count, traces.calls, p=shares).tolist()]
    part_gb = ONE_GPU.device_gb / slots - 1.0
    services = tuple(
        ModelService(f"s{number}", part_gb - ENGINES.work_gb, RIGID, traces.act_s, degrees=(1,))
        for number in range(count)
    )
    drawn = enumerate(zip(names, due_s, works_s, strict=True))
    return GpuBatch(services, tuple(GpuCall(at, name, at_s, work_s) for at, (name, at_s, work_s) in drawn))


def count_swaps(rng: np.random.Generator, seed: int, slots: int, traces: SwapTraces = TRACES) -> SwapCounts:
    """Return the restores of all policies on the trace of a generator with this seed."""
    batch = random_trace(rng, slots, traces)
    order = [call.service for call in batch.calls]
    in_order, reordered = (_ours(batch, wait_s, traces) for wait_s in (0.0, traces.turn_s))
    return SwapCounts(
        seed, slots, len(batch.services), len(batch.calls), lru_swaps(order, slots), belady_swaps(order, slots),
        in_order.restores, reordered.restores, _p99_wait_s(in_order), _p99_wait_s(reordered),
    )  # fmt: skip


def _ours(batch: GpuBatch, swap_wait_s: float, traces: SwapTraces) -> GpuRun:
    time, run = VirtualTime(), GpuRun("treadle", 1)
    services = {one.name: one for one in batch.services}
    engines = replace(ENGINES, restore_s=traces.restore_s)
    mesh = GpuMesh(time, services, ONE_GPU, engines, GpuRules(degree=1, swap_wait_s=swap_wait_s), run)
    return run_batch(time, mesh, batch, run)


def _p99_wait_s(run: GpuRun) -> float:
    return float(np.quantile(np.add(run.queue_s, run.overhead_s), 0.99))
