"""State of an open batch in the planner: its opening, its task's history, and its newest snapshot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

import numpy as np

from shared.policy.order.ebf import BOUND_S, reestimate
from shared.policy.scaling.collection import CollectionInput, ReportedProgress, expected
from shared.policy.scaling.history import History, weighted_median
from shared.policy.scaling.list_scheduling import Floats
from shared.policy.scaling.outstanding import outstanding
from shared.policy.scaling.pacing import LimitedStage, paced, takes
from shared.policy.scaling.quota_supply import Supply, granted_in_s, most_at_once, short_limits
from shared.policy.scaling.search import ExpectedBatch
from shared.policy.scaling.stimuli import ObservedBatch, ProgressReported
from shared.policy.scaling.workload import OpenedBatch, PastBatch

LEAST_CHANGE_S: Final = 0.5
"""Least change of T that is published: unknown times of a batch are drawn again at each review."""


@dataclass(slots=True)
class OpenBatchState:
    """State of an open batch. Mutable, because it is updated while the batch is open."""

    batch: OpenedBatch
    history: History | None = None
    """None if no past batch is known."""
    earliest_gap_s: float = 0.0
    """Shortest time from the hint to the first arrival in recent batches."""
    usual_tokens_per_s: float | None = None
    observed: ObservedBatch | None = None
    progress: ReportedProgress | None = None
    tokens_per_s: float | None = None
    """Token rate of this rollout, as last reported."""
    key_s: float | None = None
    """T as last published, Unix seconds; None before the first request, and without history."""
    due_s: float = math.inf
    """T + D as last expected, Unix seconds; infinite before the first request, and without history."""
    paced_s: float | None = None
    """T as its quotas permit it, as last expected, Unix seconds; None if they do not delay it."""
    limited: frozenset[str] = frozenset()
    """Stages that quotas limited at the last decision: requests wait for these, whatever units there are."""

    def learn(self, past: Sequence[PastBatch], window: int) -> None:
        """Set the history from its task's batches: those of the same work and of the size of the newest of them."""
        same = [one for one in past if one.opened.same_work(self.batch)]
        same = [one for one in same if one.record.size == same[-1].record.size][-window:]
        gaps = [one.gap_s for one in same]
        self.history = History([one.record for one in same], gaps) if same else None
        self.earliest_gap_s = min(gaps, default=0.0)
        reported = [place for place, one in enumerate(same) if one.tokens_per_s]
        self.usual_tokens_per_s = None
        if (
            self.history is not None and reported
        ):  # of the batches behind the expected arrivals, else it would be no pace
            paces = np.array([same[place].tokens_per_s for place in reported], float)
            self.usual_tokens_per_s = weighted_median(paces, self.history.weights[reported])

    def draws_from(self, pool: str) -> bool:
        return any(stage.drawn_from == pool for stage in self.batch.stages)

    def report(self, report: ProgressReported) -> None:
        """Apply a trainer's progress report; keep the token rate that it implies."""
        elapsed = report.at - self.batch.opened_at
        if report.tokens and elapsed > 0:
            self.tokens_per_s = report.tokens / elapsed
        pace = 1.0
        if self.tokens_per_s and self.usual_tokens_per_s:
            pace = self.usual_tokens_per_s / self.tokens_per_s
        self.progress = ReportedProgress(report.generating, pace)

    def outstanding(self) -> list[float]:
        """Unanswered requests by stage (`outstanding.outstanding`)."""
        size = self.batch.size
        if size is None and self.history is not None:
            size = self.history.records[-1].size
        generating = None if self.progress is None else self.progress.generating
        return outstanding(self.batch.stages, size, self.observed or ObservedBatch(0, 0), generating)

    def move(self, now: float, expected: ExpectedBatch) -> float | None:
        """Return T for the dispatcher if a review has changed it: earlier at once, later by bounded steps
        (`reestimate`).
        """
        first = self.batch.first_arrival_at
        if first is None or not expected.requests.size:
            return None
        proposed, before = now + expected.completion_s, self.key_s
        self.due_s = proposed + expected.max_extra_delay_s
        if before is None:
            self.key_s = min(max(proposed, first), first + BOUND_S)
            return self.key_s
        if abs(proposed - before) < LEAST_CHANGE_S:
            return None
        self.key_s = reestimate(before, proposed, first, BOUND_S)
        return self.key_s if self.key_s != before else None

    def pace(self, now: float, expected: ExpectedBatch, supply: Supply) -> ExpectedBatch:
        """Return the batch with the T that its quotas permit (`pacing.paced`)."""
        before_s = None if self.paced_s is None else self.paced_s - now
        expected, paced_s = paced(expected, supply, before_s)
        self.paced_s = None if paced_s is None else now + paced_s
        return expected

    def most_at_once(self, supply: Supply) -> list[float] | None:
        """By stage: the most requests that its quotas let run at once; None if no stage takes from a quota."""
        if not takes(self.batch.stages, supply):
            return None
        running = self._running()
        return [most_at_once(supply, stage, count) for stage, count in zip(self.batch.stages, running, strict=True)]

    def tightest_limits(self, supply: Supply, pool: str) -> list[str]:
        """Text of the tightest limit of each stage that draws from a pool."""
        found = []
        for stage, running in zip(self.batch.stages, self._running(), strict=True):
            if stage.drawn_from == pool and (limits := short_limits(supply, stage, running)):
                name, limit = limits[0]
                found.append(LimitedStage(self.batch.batch, stage, f"the quota {name!r} ({limit.text})").text)
        return found

    def held_back(self, supply: Supply, until_s: float) -> frozenset[str]:
        """Names of the stages whose quotas give nothing within this time."""
        if not supply:
            return frozenset()
        times = [(stage.name, granted_in_s(supply, stage.quotas)) for stage in self.batch.stages if stage.quotas]
        return frozenset(name for name, in_s in times if in_s > until_s or in_s == math.inf)

    def _running(self) -> list[int]:
        """By stage: requests that run there."""
        tables = self.observed.running if self.observed else ()
        counts = [len(_table(packed, 3)) for packed in tables[: len(self.batch.stages)]]
        return counts + [0] * (len(self.batch.stages) - len(counts))

    def allow(self, now: float, expected: ExpectedBatch) -> None:
        """Set T + D after its first request: other batches that take from its quotas may permit more delay."""
        if math.isfinite(self.due_s) and expected.requests.size:
            self.due_s = now + expected.completion_s + expected.max_extra_delay_s

    def latest_starts_s(self, strictness: float) -> list[float]:
        """By stage: latest start of a request by the timeout-aware rule, Unix seconds."""
        timeouts = [stage.timeout_s for stage in self.batch.stages]
        return [self.due_s - strictness * left_s for left_s in accumulate(reversed(timeouts))][::-1]

    def overdue(self, now: float, strictness: float, pool: str) -> int:
        """Number of requests that wait for a pool beyond their latest start. Those that quotas hold do not count."""
        queuing = self.observed.queuing if self.observed else ()
        stages = zip(self.batch.stages, self.latest_starts_s(strictness), queuing, strict=False)
        return sum(
            len(_table(packed, 2))
            for stage, at, packed in stages
            if stage.drawn_from == pool and at < now and stage.name not in self.limited
        )

    def expected(self, now: float, random: Random, *, paced: bool = False) -> ExpectedBatch:
        """Expected remaining work, by its history. Its clock begins now, because Unix seconds would lose the
        microseconds.
        """
        batch, history, observed = self.batch, self.history, self.observed or ObservedBatch(0, 0)
        assert history is not None, "no expectation without history"
        given = CollectionInput(
            size=observed.arrived if observed.closed else max(batch.size or history.records[-1].size, observed.arrived),
            opened_s=batch.opened_at,
            first_arrival_s=batch.first_arrival_at,
            arrived=observed.arrived,
            queuing=[_table(packed, 2) for packed in observed.queuing],
            running=[_table(packed, 3) for packed in observed.running],
            unanswered=observed.arrived - observed.answered,
            unqueued_end_s=observed.unqueued_end_at,
            observed_s=observed.observed_at,
            progress=self.progress,
            paced=paced,
        )
        return expected(now, batch.batch, batch.stages, history, given, batch.max_extra_delay_s, random)


def _table(packed: bytes, columns: int) -> Floats:
    return np.frombuffer(packed, "<f8").reshape(-1, columns)
