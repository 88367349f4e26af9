"""Benchmark of a decision's cost: the dispatcher's time for one action, by nodes, waiting actions and tenants.

It drives the dispatcher in virtual time, in this process. All nodes are busy and work waits. For each action that ends
the dispatcher receives the end and one new submission, each as its own event, which is the most expensive case: under
load the leader handles many at once.
"""

from __future__ import annotations

from statistics import median

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.busy_cluster import BusyCluster, Load, MixedLoad, PlainLoad
from treadle.lab.bench.decisions import uncollected
from treadle.lab.bench.figures import BenchFigure, at_most, figure

NODES = (10, 100, 1000, 4000)
MIXED_NODES = (10, 100, 1000)
WAITING = (1000, 100_000)
TENANTS = (1, 100, 10_000)
FEW_NODES = 10
FEW_WAITING = 1000
WAITING_OF_TENANTS = 20_000
"""Waiting actions for each number of tenants, so that only the tenants differ."""
BLOCK, BLOCKS = 100, 9
"""Actions whose cost is one sample, and number of samples."""
WARM_UP = 50
MOST = 2.0
"""Most times the cost at the smallest number that the cost at 1,000 nodes and 10,000 tenants may be."""


def cost_us(nodes: int, waiting: int, load: Load) -> float:
    """Return the microseconds of processor time for one action: the median of `BLOCKS` samples."""
    cluster = BusyCluster(nodes, load)
    cluster.begin(waiting)
    with uncollected():
        cluster.run(WARM_UP)
        return median(cluster.run(BLOCK) for _ in range(BLOCKS)) / BLOCK * 1e6


async def dispatch(bench: Bench) -> list[BenchFigure]:
    """Cost of one action by nodes, waiting actions and tenants."""
    figures: list[BenchFigure] = []

    def measure(group: str, what: str, number: int, us: float, first: float | None) -> float:
        bounded = {"nodes": 1000, "tenants": 10_000}.get(group) == number
        target = at_most(MOST * first, f"{MOST:g} x the cost at the smallest number") if bounded and first else None
        figures.append(figure(f"dispatch.{group}.{number}", what, us, "us", target))
        bench.log(f"  {group} {number}: {us:.0f} us an action")
        return first or us

    first: float | None = None
    for count in NODES:
        us = cost_us(count, FEW_WAITING, PlainLoad())
        first = measure("nodes", f"an action on {count:,} nodes of 8 cores", count, us, first)
    first = None
    for count in MIXED_NODES:
        us = cost_us(count, FEW_WAITING, MixedLoad(trajectories=2 * count))
        first = measure("mixed", f"elastic, large and short work and environments on {count:,} nodes", count, us, first)
    first = None
    for count in WAITING:
        us = cost_us(FEW_NODES, count, PlainLoad())
        first = measure("waiting", f"an action while {count:,} wait", count, us, first)
    first = None
    for count in TENANTS:
        us = cost_us(FEW_NODES, WAITING_OF_TENANTS, PlainLoad(tenants=count))
        first = measure("tenants", f"an action while {count:,} tenants wait", count, us, first)
    return figures
