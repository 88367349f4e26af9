"""Measurements of a replay: action completion times by trajectory, phase and part (ARL-Tangram §4.2, §6.3, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from treadle.lab.replay.tangram.trace import Batch

Floats = NDArray[np.float64]

ENVIRONMENT, REWARD = range(2)
"""Phases: tool actions with the waits of the environment, and elastic actions (Figure 7)."""
QUEUEING, EXECUTION, OVERHEAD = range(3)
"""Parts of an action's completion time; they add up to it."""
PARTS: Final = ("queueing", "execution", "overhead")


@dataclass
class SystemRun:
    """Measurements of a batch under one system."""

    system: str
    cores: int
    spent_s: Floats
    """Seconds by trajectory, phase and part, shape (n, 2, 3)."""
    done_s: Floats
    """Seconds from the batch's beginning to each trajectory's reward, shape (n,)."""
    batches: int = 1
    """Number of batches, one after another, of equal size."""
    core_s: float = 0.0
    """Core-seconds of execution and overhead."""
    widths: list[int] = field(default_factory=list)
    """Cores granted to each elastic action."""
    retries: int = 0
    """Pods that timed out and were requested again."""

    @classmethod
    def of(cls, system: str, cores: int, batch: Batch) -> SystemRun:
        """Return empty measurements."""
        return cls(system, cores, np.zeros((len(batch), 2, 3)), np.zeros(len(batch)))

    @classmethod
    def together(cls, runs: Sequence[SystemRun]) -> SystemRun:
        """Merge batches of one size under one system, at least one."""
        return cls(
            runs[0].system,
            runs[0].cores,
            np.concatenate([run.spent_s for run in runs]),
            np.concatenate([run.done_s for run in runs]),
            sum(run.batches for run in runs),
            sum(run.core_s for run in runs),
            [width for run in runs for width in run.widths],
            sum(run.retries for run in runs),
        )

    @property
    def acts_s(self) -> Floats:
        """§6.3: total ACT of each trajectory."""
        total: Floats = self.spent_s.sum(axis=(1, 2))
        return total

    @property
    def act_s(self) -> float:
        """§6.3: its average; 0 of nothing."""
        return float(self.acts_s.mean()) if len(self.done_s) else 0.0

    @property
    def parts_s(self) -> tuple[float, float, float]:
        """Table 1: queueing, execution and overhead, averages over trajectories that add up to `act_s`."""
        if not len(self.done_s):
            return 0.0, 0.0, 0.0
        queueing, execution, overhead = self.spent_s.sum(axis=1).mean(axis=0).tolist()
        return queueing, execution, overhead

    def phase_s(self, phase: int) -> float:
        """Figure 7: one phase's seconds, an average over trajectories."""
        return float(self.spent_s[:, phase].sum(axis=1).mean()) if len(self.done_s) else 0.0

    @property
    def step_s(self) -> float:
        """Seconds to the last reward of a batch, averaged over batches; 0 of nothing."""
        return float(self.done_s.reshape(self.batches, -1).max(axis=1, initial=0.0).mean())

    @property
    def width(self) -> float:
        """Mean cores of an elastic action; 0 without any."""
        return float(np.mean(self.widths)) if self.widths else 0.0

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        acts = self.acts_s if len(self.done_s) else np.zeros(1)
        return {
            "system": self.system,
            "cores": self.cores,
            "trajectories": len(self.done_s),
            "batches": self.batches,
            "act_s": {
                "mean": self.act_s,
                **{f"p{part}": float(np.percentile(acts, part)) for part in (50, 90, 99)},
                **dict(zip(PARTS, self.parts_s, strict=True)),
                "environment": self.phase_s(ENVIRONMENT),
                "reward": self.phase_s(REWARD),
            },
            "step_s": self.step_s,
            "core_s": self.core_s,
            "mean_dop": self.width,
            "pod_retries": self.retries,
        }
