"""An open batch as a planner knows it: how it was opened, what its task did of late, what is seen of it now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from shared.policy.collection import Progress, Seen, expected
from shared.policy.history import History, weighted_median
from shared.policy.listing import Floats
from shared.policy.scaling import ExpectedBatch
from shared.policy.stimuli import Progressed, Sight
from shared.policy.workload import OpenedBatch, PastBatch


@dataclass(slots=True)
class KnownBatch:
    """Mutable on purpose: what is known of it grows while it is open."""

    batch: OpenedBatch
    history: History | None = None
    """None without one."""
    earliest_gap_s: float = 0.0
    """From the hint to the first arrival: the shortest of late."""
    usual_tokens_per_s: float | None = None
    sight: Sight | None = None
    progress: Progress | None = None
    tokens_per_s: float | None = None
    """Of this rollout, as last reported."""

    def learn(self, past: Sequence[PastBatch], window: int) -> None:
        """Expect what its task's batches did of late: those of the same work, and of the size of the last of them."""
        same = [one for one in past if one.opened.same_work(self.batch)]
        same = [one for one in same if one.record.size == same[-1].record.size][-window:]
        gaps = [one.gap_s for one in same]
        self.history = History([one.record for one in same], gaps) if same else None
        self.earliest_gap_s = min(gaps, default=0.0)
        told = [place for place, one in enumerate(same) if one.tokens_per_s]
        self.usual_tokens_per_s = None
        if self.history is not None and told:  # of the batches that make the expected arrivals, or it would be no pace
            paces = np.array([same[place].tokens_per_s for place in told], float)
            self.usual_tokens_per_s = weighted_median(paces, self.history.weights[told])

    def draws_from(self, pool: str) -> bool:
        return any(stage.drawn_from == pool for stage in self.batch.stages)

    def report(self, told: Progressed) -> None:
        """Its trainer has said how far the rollout is; what a sample's length says of the pace is kept."""
        elapsed = told.at - self.batch.opened_at
        if told.tokens and elapsed > 0:
            self.tokens_per_s = told.tokens / elapsed
        pace = 1.0
        if self.tokens_per_s and self.usual_tokens_per_s:
            pace = self.usual_tokens_per_s / self.tokens_per_s
        self.progress = Progress(told.generating, pace)

    def expected(self, now: float, random: Random) -> ExpectedBatch:
        """What it will need yet, by its history. Its clock begins now: Unix seconds would cost it the microseconds."""
        batch, history, sight = self.batch, self.history, self.sight or Sight(0, 0)
        assert history is not None, "asked what is expected of a batch without history"
        seen = Seen(
            size=sight.arrived if sight.closed else max(batch.size or history.records[-1].size, sight.arrived),
            opened_s=batch.opened_at,
            first_arrival_s=batch.first_arrival_at,
            arrived=sight.arrived,
            queuing=[_table(packed, 2) for packed in sight.queuing],
            running=[_table(packed, 3) for packed in sight.running],
            unanswered=sight.arrived - sight.answered,
            looked_s=sight.looked_at,
            progress=self.progress,
        )
        return expected(now, batch.batch, batch.stages, history, seen, batch.max_extra_delay_s, random)


def _table(packed: bytes, columns: int) -> Floats:
    return np.frombuffer(packed, "<f8").reshape(-1, columns)
