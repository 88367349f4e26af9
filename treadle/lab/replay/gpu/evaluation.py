"""Experiments of §6.3 and §6.4 on GPUs: systems, batch sizes, capacities, and variants of what is not published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from treadle.lab.replay.gpu.assumptions import (
    CLUSTER,
    ENGINES,
    JUDGE,
    PARTITION,
    ROLLOUT,
    SWAPPER,
    TEACHERS,
    Engines,
    GpuCluster,
    JudgeModel,
    Partition,
    Swapper,
    TaskRollout,
    Teachers,
)
from treadle.lab.replay.gpu.fifo_swapper import FifoSwapper
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.rollout import ModelServing, run_batch
from treadle.lab.replay.gpu.simulated_mesh import GpuMesh, GpuRules
from treadle.lab.replay.gpu.simulated_node import restore_s
from treadle.lab.replay.gpu.static_partition import StaticPartition
from treadle.lab.replay.gpu.trace import GpuBatch, ModelService
from treadle.lab.replay.gpu.workload import Mix, generate
from treadle.lab.replay.search.virtual_time import VirtualTime

System = Literal["static", "FIFO swapper", "treadle", "treadle, DoP 4"]
STATIC: Final = "static"
SWAPPING: Final = "FIFO swapper"
OURS: Final = "treadle"
FIXED: Final = "treadle, DoP 4"
SYSTEMS: Final[tuple[System, ...]] = (STATIC, SWAPPING, OURS, FIXED)
RULES: Final[Mapping[str, GpuRules]] = {OURS: GpuRules(), FIXED: GpuRules(degree=4)}

SIZES: Final = (128, 512, 1024, 2048, 3072)
"""Batch sizes: trajectories of each RL job."""
CAPACITY_SIZE: Final = 1024
"""§6.3: batch size of Figure 8(b), right."""
NODES: Final = (1, 2, 3, 4, 5)
"""Nodes of ours there."""
REPLICAS: Final = (1, 2, 4)
"""Replicas of the static baseline there."""

PAPER_RATIOS: Final[Mapping[int, float]] = {1024: 3.4, 2048: 18.1}
"""§6.3: ACT of the static baseline / ARL-Tangram's, by batch size."""
PAPER_SWAPPER: Final = 101.8
"""§6.3: ACT of ServerlessLLM / ARL-Tangram's, batch 1,024. At 2,048 too many of its calls time out."""
PAPER_GPUS: Final = 0.29
"""§6.3: GPUs of ARL-Tangram / those of the over-provisioned baseline for the same ACT."""
PAPER_PARTS: Final[Mapping[int, tuple[float, float, float]]] = {2048: (0.621, 0.081, 0.201), 3072: (0.705, 15.05, 0.24)}
"""Table 1, MOPD: execution, queueing, overhead by batch size; read as seconds."""


@dataclass(frozen=True)
class GpuSetting:
    """All parameters of an experiment."""

    mix: Mix = "MOPD"
    size: int = 2048
    cluster: GpuCluster = CLUSTER
    teachers: Teachers = TEACHERS
    judge: JudgeModel = JUDGE
    rollout: TaskRollout = ROLLOUT
    engines: Engines = ENGINES
    partition: Partition = PARTITION
    swapper: Swapper = SWAPPER

    def batch(self, rng: np.random.Generator) -> GpuBatch:
        """Return a batch. The same draws give the same one, whatever the system."""
        return generate(rng, self.mix, self.size, self.teachers, self.judge, self.rollout)


DEFAULT: Final = GpuSetting()
VARIANTS: Final[Mapping[str, GpuSetting]] = {
    "as it is": DEFAULT,
    "rollouts twice as fast": replace(DEFAULT, rollout=replace(ROLLOUT, token_s=ROLLOUT.token_s / 2)),
    "shares of tasks more unequal": replace(DEFAULT, teachers=replace(TEACHERS, share_spread=1.0)),
    "a GPU holds one engine": replace(DEFAULT, engines=replace(ENGINES, work_gb=45.0)),
    "MOPD+Search, 16 verdicts at once": replace(DEFAULT, mix="MOPD+Search", judge=replace(JUDGE, concurrency=16)),
    "vLLM sleep level 2": replace(DEFAULT, engines=replace(ENGINES, evict_s=0.31, restore_s=6.53)),
    "vLLM sleep level 1": replace(DEFAULT, engines=replace(ENGINES, evict_s=10.57, restore_s=2.19)),
}
"""One thing changed at a time. The two of vLLM: measured with an 8B model (facts A1), the same at every degree here."""
STARTS_S: Final = (0.0, 2.0, 10.0, 30.0)
"""Start of an engine of the FIFO swapper, swept."""


def replay(system: str, setting: GpuSetting, batch: GpuBatch) -> GpuRun:
    """Run one batch under one system.

    Raises:
        SimulationError: a call waits forever, or a law of a node does not hold.
    """
    time = VirtualTime()
    services = {one.name: one for one in batch.services}
    run = GpuRun(system, setting.cluster.all_gpus)
    return run_batch(time, _serving(system, setting, time, services, run), batch, run)


def _serving(
    system: str, setting: GpuSetting, time: VirtualTime, services: Mapping[str, ModelService], run: GpuRun
) -> ModelServing:
    engines, cluster = setting.engines, setting.cluster
    if system == STATIC:
        parts = setting.partition
        run.gpus = len(services) * parts.replicas * parts.degree
        return StaticPartition(time, services, parts.replicas, parts.degree, engines.action_s, run)
    if system == SWAPPING:
        degree = setting.swapper.degree
        load_s = {name: setting.swapper.start_s + restore_s(one, degree, engines) for name, one in services.items()}
        return FifoSwapper(time, services, cluster.all_gpus // degree, degree, load_s, engines.action_s, run)
    return GpuMesh(time, services, cluster, engines, RULES[system], run)
