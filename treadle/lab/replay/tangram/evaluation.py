"""Experiments of ARL-Tangram §6.3 and §6.4 on CPUs: systems, batch sizes and numbers of cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from treadle.lab.replay.tangram.assumptions import CLUSTER, OVERHEADS, PODS, Cluster, Overheads, PodRules
from treadle.lab.replay.tangram.measures import SystemRun
from treadle.lab.replay.tangram.simulated_mesh import SimulatedMesh, System
from treadle.lab.replay.tangram.simulated_pods import SimulatedPods
from treadle.lab.replay.tangram.trace import Batch

SIZES: Final = (128, 256, 512, 768, 1024, 1280, 1536)
"""§6.3, Figure 8(a) left: trajectories of a batch."""
SIZE: Final = 1280
"""§6.3, Figure 8(a) right: of the batch, where the cores vary."""
NODES: Final = (3, 4, 5)
"""The same: 768 to 1,280 cores in nodes of 256."""
LARGEST: Final = max(SIZES)

PODS_NAME: Final = "pods"
OURS: Final = "treadle"
SYSTEMS: Mapping[str, System] = {
    OURS: System(OURS),
    "Algorithm 1": System("Algorithm 1", "paper"),
    "DoP 4": System("DoP 4", dop=4),
    "DoP 16": System("DoP 16", dop=16),
    "fewest cores": System("fewest cores", None),
}
"""By the mesh's own dispatcher: our rule, the paper's (§4.2), fixed DoP (§6.4), and one core for everything."""
WIDTHS: Final = (1, 2, PODS.width, 8)
"""Processes of a test suite in a pod. Data sets run it in one (§5.2); the baseline's own number is not published."""


def pods_of(width: int) -> str:
    """Return the name of pods whose test suites use this number of processes."""
    return PODS_NAME if width == PODS.width else f"pods, DoP {width}"


RESERVING: Mapping[str, PodRules] = {
    **{pods_of(width): replace(PODS, width=width) for width in WIDTHS},
    "core for life": replace(PODS, request=1.0, limit=1, width=1),
}
"""Resources held by trajectories: the paper's baseline at each width, and with a whole core reserved for each
trajectory's life (§2.3)."""


@dataclass(frozen=True, order=True)
class OperatingPoint:
    """Batch size and nodes of an experiment: a point of Figures 8(a) and 9."""

    size: int
    """Trajectories of a batch."""
    nodes: int


PAPER_RATIO: Mapping[OperatingPoint, float] = {
    OperatingPoint(128, 5): 3.1,
    OperatingPoint(LARGEST, 5): 27.7,
    OperatingPoint(SIZE, 3): 1.89,
    OperatingPoint(SIZE, 5): 4.33,
}
"""§6.3: ACT of the baseline against ARL-Tangram's; the other points are only drawn."""
PAPER_ABLATION: Mapping[tuple[str, OperatingPoint], float] = {
    ("DoP 4", OperatingPoint(256, 5)): 2.0,
    ("DoP 16", OperatingPoint(SIZE, 5)): 3.0,
    ("DoP 4", OperatingPoint(SIZE, 3)): 1.8,
}
"""§6.4, Figure 9: ACT of a fixed DoP against the elastic one's. The last is for "1x CPU cores", taken to be 768."""
PAPER_GROWTH: Final = "< 2"
"""§6.3: ACT with the largest batch against the smallest."""
PAPER_PHASES: Final = (9.0, 2.8)
"""§6.2, Figure 7: baseline against ARL-Tangram, environment and reward, at a batch of 1,280."""
PAPER_PARTS: Mapping[int, tuple[float, float, float]] = {SIZE: (0.015, 0.975, 0.024), LARGEST: (0.428, 1.206, 0.036)}
"""§6.4, Table 1: queueing, execution and overhead by batch size, normalised."""

CREATIONS_PER_S: Final = (5.0, 10.0, 20.0)
TIMEOUTS_S: Final = (30.0, 60.0, 120.0, 300.0)
"""Rates and timeouts of the sweep over the unpublished control plane, in all combinations."""
SWEPT: Final = (OperatingPoint(128, 5), OperatingPoint(SIZE, 5), OperatingPoint(LARGEST, 5), OperatingPoint(SIZE, 3))
"""Points of the sweep: those for which the paper publishes a number."""
SWEPT_WIDTHS: Final = (1, PODS.width)

CONTRASTS: Mapping[OperatingPoint, tuple[str, ...]] = {
    OperatingPoint(256, 5): ("Algorithm 1", "DoP 4", "DoP 16"),
    OperatingPoint(SIZE, 5): ("Algorithm 1", "DoP 4", "DoP 16", "fewest cores", "core for life"),
    OperatingPoint(LARGEST, 5): ("DoP 4", "core for life"),
    OperatingPoint(SIZE, 3): ("Algorithm 1", "DoP 4"),
}
"""Further systems by point. Pods of each width and ours run at every point."""


def points() -> list[OperatingPoint]:
    """Return the points of all experiments, each once."""
    return [OperatingPoint(size, CLUSTER.nodes) for size in SIZES] + [
        OperatingPoint(SIZE, nodes) for nodes in NODES if nodes != CLUSTER.nodes
    ]


def replay(
    system: str, batch: Batch, cluster: Cluster, overheads: Overheads = OVERHEADS, rules: PodRules | None = None
) -> SystemRun:
    """Run one batch under one system.

    Args:
        rules: of a system that reserves, instead of its own.

    Raises:
        SimulationError: a policy granted what no node has.
    """
    if system in RESERVING:
        return SimulatedPods(system, batch, cluster, rules or RESERVING[system]).run()
    return SimulatedMesh(SYSTEMS[system], batch, cluster, overheads).run()
