"""Collection of the expected remaining work of open batches: Algorithm 2 of DistRS (§5.2), from history and snapshots.

A request of an open batch is *future* (has not arrived), *queuing* at a stage, *running* at one, or answered. Its
unknown times are drawn from the history: for a queuing request from requests that reached its stage, for a running one
from those that lasted longer there than it has. If no such request is known, the timeout is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np

from shared.policy.scaling.history import History
from shared.policy.scaling.list_scheduling import Counts, Flags, Floats
from shared.policy.scaling.workload import ExpectedBatch, Requests, Stage


@dataclass(frozen=True)
class ReportedProgress:
    """Progress of a rollout, as its trainer (or the trajectory router) reports it."""

    generating: int
    """Samples that have not been submitted yet."""
    pace: float = 1.0
    """Seconds per token, relative to the history's: the slowdown of this rollout."""


@dataclass(frozen=True)
class CollectionInput:
    """Input of Algorithm 2: an open batch at one moment. Times are absolute, on the clock of `now`."""

    size: int
    opened_s: float
    first_arrival_s: float | None = None
    arrived: int = 0
    """Requests that have arrived, answered ones included."""
    queuing: Sequence[Floats] = ()
    """By stage: (n, 2) of each request that waits for it: its arrival, and when it would have been here without any
    queueing."""
    running: Sequence[Floats] = ()
    """By stage: (n, 3) of each request it executes: the same two, and its start here."""
    unanswered: int | None = None
    """Requests that have arrived and are not answered; None: those in `queuing` and `running`."""
    unqueued_end_s: float | None = None
    """Time at which the last of the answered requests would have been done without any queueing; None: unknown."""
    observed_s: float | None = None
    """Time of the snapshot in `queuing` and `running`; None: now."""
    progress: ReportedProgress | None = None
    paced: bool = False
    """Without a report, estimate the pace from the arrivals so far; False: use the history's (as the paper does)."""


TRUSTED_ARRIVALS: Final = 8
"""Arrivals after which the pace that they show weighs as much as the history's."""


def collect(now: float, stages: Sequence[Stage], history: History, batch: CollectionInput, random: Random) -> Requests:
    """Return the requests of a batch with work left (Algorithm 2). Their clock begins now.

    O(n): some 0.3 us a request, and 2 us when a history is drawn from for the first time.
    """
    parts = [_future(now, history, batch, random)]
    for stage, waits in enumerate(batch.queuing):
        if len(waits):
            parts.append(_queuing(now, stages, history, stage, waits, random))
    for stage, runs in enumerate(batch.running):
        if len(runs):
            parts.append(_running(now, stages, history, stage, runs, batch.observed_s, random))
    unlisted = (batch.unanswered or 0) - sum(part.size for part in parts[1:])
    if unlisted > 0:  # on their way to the dispatcher, or newer than its snapshot
        parts.append(_queuing(now, stages, history, 0, np.full((unlisted, 2), now), random))
    return Requests(
        np.concatenate([part.arrivals_s for part in parts]),
        np.concatenate([part.ready_s for part in parts]),
        np.concatenate([part.executions_s for part in parts], axis=1),
        np.concatenate([part.running for part in parts]),
        np.concatenate([np.broadcast_to(part.queued_s, part.size) for part in parts]),
    )


def expected(
    now: float,
    name: str,
    stages: Sequence[Stage],
    history: History,
    batch: CollectionInput,
    max_extra_delay_s: float,
    random: Random,
) -> ExpectedBatch:
    """Return the batch as input of SIMULATE.

    T is when the batch's last request, answered or not, would be done without any queueing. So a decision during a
    batch does not grant delay twice, and d is the batch's own. A batch that is already later than D gets as much delay
    as it has.
    """
    requests = collect(now, stages, history, batch, random)
    if not requests.size:
        return ExpectedBatch(name, tuple(stages), requests, max_extra_delay_s, 0.0)
    completion = requests.completion_s
    if batch.unqueued_end_s is not None:
        completion = max(completion, batch.unqueued_end_s - now)
    allowed = max(max_extra_delay_s, requests.soonest_s - completion)
    return ExpectedBatch(name, tuple(stages), requests, allowed, completion, declared_delay_s=max_extra_delay_s)


def _future(now: float, history: History, batch: CollectionInput, random: Random) -> Requests:
    """Requests that have not arrived yet; overdue ones are expected now."""
    first = batch.first_arrival_s
    if first is None:
        first = max(now, batch.opened_s + history.gap_s)
    ranks = np.minimum(np.arange(min(batch.arrived, batch.size), batch.size), len(history.arrivals_s) - 1)
    arrivals = first + history.arrivals_s[ranks]
    if batch.paced and batch.arrived and batch.first_arrival_s is not None:
        arrivals = _by_pace(now, history, batch, ranks)
    if batch.progress is not None:
        ranks = ranks[: batch.progress.generating]
        arrivals = _by_progress(now, history, batch, batch.progress, len(ranks))
    arrivals = np.maximum(arrivals - now, 0.0)
    return Requests(arrivals, arrivals, history.rows(random, ranks), np.zeros(len(ranks), bool))


def _by_pace(now: float, history: History, batch: CollectionInput, ranks: Counts) -> Floats:
    """Arrivals of the ranks if the rollout keeps its present pace, absolute and ascending.

    Each past batch predicts the time left: its own time from the same rank on, times the relative pace. The earliest
    prediction counts: work postponed because of late arrivals makes a batch late if they do not come that late.
    """
    elapsed_s, last = now - batch.opened_s, history.ranked_s.shape[1] - 1
    came_s, next_s = (history.ranked_s[:, min(rank, last)] for rank in (batch.arrived - 1, batch.arrived))
    position_s = np.clip(elapsed_s - history.each_gap_s, came_s, next_s)
    usual_s = history.each_gap_s + position_s
    pace = np.ones(len(usual_s))
    np.divide(elapsed_s, usual_s, out=pace, where=(usual_s > 0) & (elapsed_s > 0))
    pace **= batch.arrived / (batch.arrived + TRUSTED_ARRIVALS)
    left_s: Floats = (pace[:, None] * (history.ranked_s[:, ranks] - position_s[:, None])).min(axis=0, initial=math.inf)
    return now + left_s


def _by_progress(
    now: float, history: History, batch: CollectionInput, progress: ReportedProgress, count: int
) -> Floats:
    """Arrivals of the samples that are still generated: (count,) ascending, absolute.

    On the history's time scale, this rollout is at (now - opening) / pace. The history's samples that arrived later
    represent the remaining ones, whatever their number: their remaining times, evenly chosen.
    """
    position = max(0.0, now - batch.opened_s) / progress.pace - history.gap_s
    later = history.arrivals_s[history.arrivals_s > position] - position
    if not len(later):
        later = np.zeros(1)
    places = (np.arange(count) + 0.5) * len(later) / max(count, 1)
    places = np.where(np.arange(count) == count - 1, len(later) - 1, places)
    arrivals: Floats = now + progress.pace * later[places.astype(int)]
    return arrivals


def _queuing(
    now: float, stages: Sequence[Stage], history: History, stage: int, waits: Floats, random: Random
) -> Requests:
    arrivals, unqueued = waits.T
    rows = _drawn(stages, history, stage, np.full(len(waits), -1.0), random)
    return _here(arrivals - now, rows, now - unqueued, np.zeros(len(waits), bool))


def _running(
    now: float,
    stages: Sequence[Stage],
    history: History,
    stage: int,
    runs: Floats,
    observed_s: float | None,
    random: Random,
) -> Requests:
    """Requests that ran at the time of the snapshot. Some have ended since and are in the next stage."""
    arrivals, unqueued, began = runs.T
    ran_s, elapsed_s = (
        np.maximum(at - began, 0.0) for at in (now if observed_s is None else min(observed_s, now), now)
    )
    rows = _drawn(stages, history, stage, ran_s, random)
    ended = (rows[:, stage] > ran_s) & (rows[:, stage] <= elapsed_s)
    rows[:, stage] = np.where(ended, np.nan, np.maximum(rows[:, stage] - elapsed_s, 0.0))
    left = ~np.isnan(rows).all(axis=1)
    return _here((arrivals - now)[left], rows[left], (began - unqueued)[left], ~ended[left])


def _drawn(stages: Sequence[Stage], history: History, stage: int, longer_than_s: Floats, random: Random) -> Floats:
    """(n, stages) Times from a stage on; the timeout, and nothing after it, if no request lasted so long.

    Args:
        longer_than_s: bounds; below zero: draw from all requests that reached the stage.
    """
    rows, some = history.reached(stage).draw(random, longer_than_s)
    rows[:, :stage] = np.nan
    rows[~some, stage] = stages[stage].timeout_s
    return rows


def _here(arrivals_s: Floats, rows: Floats, queued_s: Floats, running: Flags) -> Requests:
    return Requests(arrivals_s, np.zeros(len(rows)), rows.T, running, np.maximum(queued_s, 0.0))
