"""Measurements of one step under one system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from treadle.lab.replay.search.provider import SimulatedProvider
from treadle.lab.replay.search.trace import SEARCH

BUSY_PART: Final = 0.9
"""Part of the admitted calls that bounds the time in which the use of a limit is measured: then trajectories end, and
fewer calls are wanted."""


@dataclass
class StepRun:
    """Measurements of one step."""

    system: str
    batch: int
    done_s: list[float] = field(default_factory=list)
    """Seconds to each trajectory's reward, by place of the batch."""
    act_s: list[float] = field(default_factory=list)
    """Seconds of each call with its waits and retries, also of failed ones."""
    lost: int = 0
    """Trajectories lost, those that replaced others included."""
    first_lost: int = 0
    """Places of the batch whose first trajectory was lost."""
    missing: int = 0
    """Places that were given up: the batch is smaller."""
    wasted: int = 0
    """Answered calls of trajectories that were lost later."""
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Upstream -> outcome -> calls, as the service counts them."""
    use: dict[str, float] = field(default_factory=dict)
    """Upstream -> admitted calls / calls that its limit allows, until `BUSY_PART` of them was admitted."""
    most_running: dict[str, int] = field(default_factory=dict)
    """Upstream -> most calls at one time."""

    def measure(self, providers: Mapping[str, SimulatedProvider]) -> None:
        """Add what the services have counted."""
        for name, provider in providers.items():
            self.outcomes[name] = {str(outcome): count for outcome, count in provider.counts.items()}
            self.most_running[name] = provider.most_running
            at = int(BUSY_PART * len(provider.admitted_s))
            self.use[name] = at / provider.limit(provider.admitted_s[at]) if provider.admitted_s else 0.0

    @property
    def rollout_s(self) -> float:
        """Time of the last reward."""
        return max(self.done_s)

    def step_s(self, update_s: float) -> float:
        """Duration of the step: rollout, rewards, and all that follows."""
        return self.rollout_s + update_s

    @property
    def mean_act_s(self) -> float:
        return float(np.mean(self.act_s)) if self.act_s else 0.0

    def calls(self, outcome: str) -> int:
        """Return the calls of all services with this outcome."""
        return sum(counts[outcome] for counts in self.outcomes.values())

    @property
    def answered(self) -> int:
        return self.calls("ok")

    @property
    def useful_use(self) -> float:
        """Use of the searches' limit by trajectories that were not lost."""
        return self.use[SEARCH] * (1.0 - self.wasted / self.answered) if self.answered else 0.0

    def document(self, update_s: float) -> dict[str, Any]:
        """Return a part of the document of `--json`."""
        return {
            "system": self.system,
            "batch": self.batch,
            "step_s": self.step_s(update_s),
            "rollout_s": self.rollout_s,
            "act_s": self.mean_act_s,
            "lost": self.lost,
            "first_lost": self.first_lost,
            "missing": self.missing,
            "wasted": self.wasted,
            "calls": self.outcomes,
            "use": self.use,
            "useful_use": self.useful_use,
            "most_running": self.most_running,
        }
