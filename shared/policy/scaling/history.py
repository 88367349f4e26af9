"""History of a task's last batches, combined into one expectation of the next (DistRS §3.1, §5.1).

The paper expects the next batch to be like the last. After one unusual batch (a lost node, an evaluated checkpoint) the
next plan is wrong, and the longest arrival of one batch is a poor estimate for the next. So the last few batches count,
the newest most: arrivals are their weighted median rank by rank, execution times are drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np

from shared.policy.scaling.list_scheduling import Counts, Flags, Floats
from shared.policy.scaling.workload import BatchRecord

WINDOW = 5
"""Batches that count."""
DECAY = 0.65
"""Weight of a batch relative to the next newer one. Of five the newest weighs 0.4, of three 0.48: no single batch
decides."""


@dataclass(frozen=True)
class History:
    """Records of batches of one workflow and size, the newest last; never empty.

    Raises:
        ValueError: no record, or records of different sizes or workflows.
    """

    records: Sequence[BatchRecord]
    gaps_s: Sequence[float]
    """Seconds from each batch's opening to its first arrival."""
    decay: float = DECAY

    def __post_init__(self) -> None:
        shapes = {(record.size, len(record.executions_s)) for record in self.records}
        if len(shapes) != 1 or len(self.gaps_s) != len(self.records):
            raise ValueError("a history needs records, of one size and workflow, with a gap each")

    @cached_property
    def weights(self) -> Floats:
        """Weight of each record; their sum is 1."""
        weights: Floats = self.decay ** np.arange(len(self.records) - 1, -1, -1, dtype=float)
        return np.asarray(weights / weights.sum())

    @cached_property
    def arrivals_s(self) -> Floats:
        """(n,) Expected arrival of each rank, seconds after the first: the median over batches, ascending."""
        return np.maximum.accumulate(_median(self.ranked_s, self.weights))

    @cached_property
    def ranked_s(self) -> Floats:
        """(records, n) Arrivals of each batch, ascending, seconds after its first."""
        return np.sort(np.array([record.arrivals_s for record in self.records], float), axis=1)

    @cached_property
    def each_gap_s(self) -> Floats:
        """(records,) Seconds from each batch's opening to its first arrival."""
        return np.array(self.gaps_s, float)

    @cached_property
    def gap_s(self) -> float:
        """Expected seconds from the opening to the first arrival."""
        return float(_median(np.array(self.gaps_s, float)[:, None], self.weights)[0])

    @cached_property
    def executions_s(self) -> Floats:
        """(records, stages, n) Execution times, requests by rank of arrival."""
        return np.array([_by_arrival(record) for record in self.records])

    @cached_property
    def span_s(self) -> float:
        """Expected seconds from the first arrival to the earliest completion (equations 1 and 2)."""
        spans = np.array([[record.span_s] for record in self.records])
        return float(_median(spans, self.weights)[0])

    def rows(self, random: Random, ranks: Counts) -> Floats:
        """(stages, len(ranks)) Execution times of requests with these arrival ranks, drawn from the batches.

        The rank is kept, because late requests have long outputs and end differently from early ones.
        """
        chosen = np.searchsorted(np.cumsum(self.weights), uniform(random, len(ranks)), side="right")
        chosen = np.minimum(chosen, len(self.records) - 1)
        rows: Floats = self.executions_s[chosen, :, ranks].T
        return rows

    def reached(self, stage: int) -> Reached:
        """Requests that reached a stage, to draw from."""
        return self._reached[stage]

    @cached_property
    def _reached(self) -> list[Reached]:
        return [Reached(self, number) for number in range(self.executions_s.shape[1])]


class Reached:
    """All requests of a history that reached one stage, in ascending order of their time there."""

    def __init__(self, history: History, stage: int) -> None:
        records, stages, size = history.executions_s.shape
        rows = np.moveaxis(history.executions_s, 1, 2).reshape(records * size, stages)
        reached = np.flatnonzero(~np.isnan(rows[:, stage]))
        order = reached[np.argsort(rows[reached, stage], kind="stable")]
        self._rows = rows[order]
        self._lasts = np.ascontiguousarray(self._rows[:, stage])
        self._summed = np.concatenate([[0.0], np.cumsum(np.repeat(history.weights, size)[order])])

    def draw(self, random: Random, longer_than_s: Floats) -> tuple[Floats, Flags]:
        """Draw for each bound the times of one request whose stage lasted longer than it (Algorithm 2, line 18).

        Returns:
            (n, stages) the rows, and (n,) whether there was one to draw; if not, the row is NaN.
        """
        first = np.searchsorted(self._lasts, longer_than_s, side="right")
        some = first < len(self._lasts)
        rows = np.full((len(first), self._rows.shape[1]), np.nan)
        low = self._summed[first[some]]
        chances = low + (self._summed[-1] - low) * uniform(random, len(low))
        chosen = np.searchsorted(self._summed, chances, side="right") - 1
        rows[some] = self._rows[np.clip(chosen, first[some], len(self._lasts) - 1)]
        return rows, some


def uniform(chance: Random, count: int) -> Floats:
    """Random numbers from 0 to 1."""
    return np.fromiter((chance.random() for _ in range(count)), float, count)


def weighted_median(values: Floats, weights: Floats) -> float:
    """Smallest value with half of the weight at or below it; (n,) and (n,)."""
    return float(_median(values[:, None], weights / weights.sum())[0])


def _median(columns: Floats, weights: Floats) -> Floats:
    """Smallest value of each column with half of the weight at or below it; (records, n) and (records,) to (n,)."""
    order = np.argsort(columns, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= 0.5 - 1e-9
    median: Floats = np.take_along_axis(columns, np.take_along_axis(order, reached.argmax(axis=0)[None], 0), 0)[0]
    return median


def _by_arrival(record: BatchRecord) -> Floats:
    """(stages, n) Execution times, in the order of arrival."""
    order = np.argsort(np.array(record.arrivals_s), kind="stable")
    return np.array(record.executions_s, float).reshape(len(record.executions_s), record.size)[:, order]
