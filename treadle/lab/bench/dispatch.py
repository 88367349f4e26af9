"""Benchmark of a decision's cost: the dispatcher's time for one action, by nodes, waiting actions and tenants.

It drives the dispatcher in virtual time, in this process. All nodes are busy and work waits. For each action that ends
the dispatcher receives the end and one new submission, each as its own event, which is the most expensive case: under
load the leader handles many at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.busy_cluster import BusyCluster, Load, MixedLoad, PlainLoad
from treadle.lab.bench.decisions import uncollected
from treadle.lab.bench.figures import BenchFigure, at_most, figure
from treadle.lab.bench.sizes import DispatchSizes

FEW_NODES = 10
FEW_WAITING = 1000
WAITING_OF_TENANTS = 20_000
"""Waiting actions for each number of tenants, so that only the tenants differ."""
BLOCK, BLOCKS = 100, 9
"""Actions whose cost is one sample, and number of samples."""
WARM_UP = 50
MOST = 2.0
BOUNDED = {"nodes": 1000, "tenants": 10_000}
"""Group -> number at which the cost may be at most `MOST` times the cost at the smallest number."""


class Case(NamedTuple):
    """One measurement. The first one of a group is what the others are compared with."""

    group: str
    number: int
    what: str
    nodes: int
    waiting: int
    load: Load

    @property
    def name(self) -> str:
        """Name of its figure."""
        return f"dispatch.{self.group}.{self.number}"


def cases(sizes: DispatchSizes) -> Iterator[Case]:
    """Yield the measurements of these sizes, group by group."""
    for n in sizes.nodes:
        yield Case("nodes", n, f"an action on {n:,} nodes of 8 cores", n, FEW_WAITING, PlainLoad())
    for n in sizes.mixed_nodes:
        what = f"elastic, large and short work and environments on {n:,} nodes"
        yield Case("mixed", n, what, n, FEW_WAITING, MixedLoad(trajectories=2 * n))
    for n in sizes.waiting:
        yield Case("waiting", n, f"an action while {n:,} wait", FEW_NODES, n, PlainLoad())
    for n in sizes.tenants:
        load = PlainLoad(tenants=n)
        yield Case("tenants", n, f"an action while {n:,} tenants wait", FEW_NODES, WAITING_OF_TENANTS, load)


def cost_us(case: Case) -> float:
    """Return the microseconds of processor time for one action: the median of `BLOCKS` samples."""
    cluster = BusyCluster(case.nodes, case.load)
    cluster.begin(case.waiting)
    with uncollected():
        cluster.run(WARM_UP)
        return median(cluster.run(BLOCK) for _ in range(BLOCKS)) / BLOCK * 1e6


async def dispatch(bench: Bench) -> list[BenchFigure]:
    """Cost of one action by nodes, waiting actions and tenants."""
    figures: list[BenchFigure] = []
    first: dict[str, float] = {}
    for case in cases(bench.sizes.dispatch):
        us = cost_us(case)
        least = first.setdefault(case.group, us)
        bounded = BOUNDED.get(case.group) == case.number
        target = at_most(MOST * least, f"{MOST:g} x the cost at the smallest number") if bounded else None
        figures.append(figure(case.name, case.what, us, "us", target))
        bench.log(f"  {case.group} {case.number}: {us:.0f} us an action")
    return figures
