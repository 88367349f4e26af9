"""A reward workload shaped by what DistRS §3 publishes of a real one; nothing here is fitted to the results of §6.

Every sample of a batch begins with the rollout and arrives when its output is complete: after its tokens at the
batch's decoding speed. It ends in one of four states (Figure 6(b)): generation failed (answered as it arrives), compile
failed (takes only compile time), execute error and success (take both stages). The table below holds every figure, with
the sentence of the paper that it comes from; *ours* marks what the paper leaves open, with the reason of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from shared.policy.scaling.workload import UNREACHED, Stage
from treadle.lab.replay.distrs.trace import Floats, RewardTrace, TracedBatch, TracedTask

Architecture = Literal["colocated", "disaggregated"]


@dataclass(frozen=True)
class StageDuration:
    """Durations of one stage, for the requests that reach it."""

    normal_s: float
    """Median of most requests."""
    spread: float
    """Standard deviation of their logarithm."""
    long_share: float
    """Share that takes significantly longer."""


# --- The task -----------------------------------------------------------------------------------------------------
TASKS = 6  # §6.1: "we concurrently run six RL training tasks using this trace"
ITERATIONS = 50  # §3: "runs for 50 iterations"
SIZE = 2048  # §3: "with a batch size of 2048 per iteration"

# --- Output lengths, tokens ---------------------------------------------------------------------------------------
MOST_TOKENS = 16_384  # §3: "maximum rollout generation length is set to 16K tokens"
FEWEST_TOKENS = 1_000  # ours: §3.1 has requests "sparse or absent" when a rollout begins, so no output is very short
MEDIAN_TOKENS = 5_000  # ours: with SPREAD it gives the rise, the peak and the long tail of Figure 5(b) under the 16K
SPREAD = 0.55  # ours: standard deviation of the logarithm of the tokens beyond the fewest; see MEDIAN_TOKENS
DRIFT = 0.01  # ours: step of the median's random walk, a batch; §3.1: lengths evolve "relatively slowly", no direction

# --- Rollout, seconds ---------------------------------------------------------------------------------------------
TOKEN_S = 0.027  # ours: 16K tokens take 440 s; §5.1: "the rollout phase typically lasts several hundred seconds"
TOKEN_NOISE = 0.01  # ours: relative, a batch; small, as the curves of Figure 5(c) "overlap closely"
PREFILL_S = 2.0  # ours: short beside the rollout; the paper does not speak of it
JITTER_S = 0.5  # ours: at most this from the last token to the arrival; only so that arrivals do not fall together

# --- Gaps, seconds from a batch's completion to the next rollout ---------------------------------------------------
GAP_S: dict[Architecture, float] = {
    "colocated": 200.0,  # ours: training and switching, so that an iteration takes §6.2's "over 600 seconds" and
    # §3.1's "roughly half of the time within each iteration sees no reward requests arriving"
    "disaggregated": 5.0,  # ours: weights are handed over; §6.1: "we adjust the idle gaps between adjacent batches,
    # reflecting the continuous rollout performed by dedicated resources". The loop is closed here too: a rollout waits
    # for the rewards of the one before it, some 60 s, which one-step staleness would let it overlap
}
GAP_NOISE = 0.02  # ours: relative, a batch; the paper gives none
WINDOW_S = 100.0  # ours: §6.1: start times "staggered within a short time window"; §6.3 sets two batches 100 s apart

# --- States -------------------------------------------------------------------------------------------------------
PROGRESS = (0.0, 0.5, 1.0)
STATES = {  # ours in height; Figure 6(b) in direction, as §3.1 says it in words. Shares at PROGRESS, linear between
    "generation failed": (0.30, 0.18, 0.08),  # "steadily decreases"
    "compile failed": (0.40, 0.25, 0.12),  # "steadily decreases"
    "execute error": (0.25, 0.35, 0.25),  # "first increase and then decline"
    "success": (0.05, 0.22, 0.55),  # "grow significantly"
}

# --- Stages -------------------------------------------------------------------------------------------------------
STAGES = (
    # §6.1: "each compiler is allocated 4 CPU cores"; the unit of cost is one core. §3.1: timeout "120 seconds"
    Stage("compile", worker_cost=4.0, timeout_s=120.0),
    # §6.1: an executor has one GPU. ours: a GPU is priced as 40 cores; Algorithm 1 only asks which stage is dearer
    Stage("run", worker_cost=40.0, timeout_s=60.0),
)
STAGE_DURATIONS = (
    # §3.1: "normal requests typically require around 50 seconds for compilation", "most exhibit relatively consistent
    # runtimes, although a small fraction take significantly longer". ours: the spread and the fraction
    StageDuration(normal_s=50.0, spread=0.08, long_share=0.01),
    # §3.1: "a few seconds for execution". ours: four, the spread, and the fraction
    StageDuration(normal_s=4.0, spread=0.25, long_share=0.02),
)
ENDLESS = 0.7  # ours: share of the long ones that only the timeout ends; §3.1: "many of these", as of endless loops

# --- Planning -----------------------------------------------------------------------------------------------------
MAX_EXTRA_DELAY_S = 3.0  # D. ours: §5.1: "at most a few seconds"


def generate(
    chance: np.random.Generator,
    *,
    architecture: Architecture,
    tasks: int = TASKS,
    iterations: int = ITERATIONS,
    size: int = SIZE,
    token_noise: float = TOKEN_NOISE,
    spread: float = SPREAD,
) -> RewardTrace:
    """Return a trace of closed-loop tasks that all replay the same batches at different starts, as in §6.1.

    With the same seed, the two architectures have the same batches. Only the gaps between them differ (§6.1).

    Args:
        chance: generator of random numbers; the same seed gives the same trace.
        architecture: of the trainer (§2.1).
        tasks: number of tasks that train at once.
        iterations: batches of each.
        size: requests of each batch.
        token_noise: standard deviation of the logarithm of a batch's decoding speed.
        spread: the same of an output's tokens beyond the fewest.

    Raises:
        ValueError: a count is not positive.
    """
    if min(tasks, iterations, size) < 1:
        raise ValueError("tasks, iterations and size must be at least 1")
    medians = (MEDIAN_TOKENS - FEWEST_TOKENS) * np.exp(np.cumsum(chance.normal(0.0, DRIFT, iterations)))
    batches = [
        _batch(chance, progress, median, size, token_noise, spread)
        for progress, median in zip(np.linspace(0.0, 1.0, iterations), medians, strict=True)
    ]
    starts = np.sort(chance.uniform(0.0, WINDOW_S, tasks))
    gaps = GAP_S[architecture] * np.exp(chance.normal(0.0, GAP_NOISE, (tasks, iterations)))
    gaps[:, 0] = starts - starts[0]
    return RewardTrace(
        stages=STAGES,
        max_extra_delay_s=MAX_EXTRA_DELAY_S,
        tasks=tuple(
            TracedTask(
                f"task-{number}",
                tuple(replace(batch, gap_s=float(gap)) for batch, gap in zip(batches, row, strict=True)),
            )
            for number, row in enumerate(gaps)
        ),
    )


def states_at(progress: float) -> dict[str, float]:
    """Return the share of each state of Figure 6(b), at a part of the training from 0 to 1."""
    return {state: float(np.interp(progress, PROGRESS, shares)) for state, shares in STATES.items()}


def _batch(
    chance: np.random.Generator, progress: float, median: float, size: int, token_noise: float, spread: float
) -> TracedBatch:
    """Return one iteration's batch. `median`: tokens beyond the fewest."""
    lengths = np.floor(FEWEST_TOKENS + median * np.exp(chance.normal(0.0, spread, size))).clip(max=MOST_TOKENS)
    token_s = TOKEN_S * np.exp(chance.normal(0.0, token_noise))
    arrivals = PREFILL_S + lengths * token_s + chance.uniform(0.0, JITTER_S, size)
    order = np.argsort(arrivals, kind="stable")
    return TracedBatch(arrivals[order], _executions(chance, progress, lengths[order]), lengths=lengths[order])


def _executions(chance: np.random.Generator, progress: float, lengths: Floats) -> Floats:
    """Return seconds by stage and request, NaN from the stage that it did not reach; shape (2, n).

    An output cut off at the most tokens has no finished code, and a compilation cut off at its timeout no program.
    """
    failed, uncompiled, *_ = states_at(progress).values()
    fate = chance.uniform(size=len(lengths))
    compiling, running = (
        _seconds(chance, stage, lasts, len(lengths)) for stage, lasts in zip(STAGES, STAGE_DURATIONS, strict=True)
    )
    compiling[(fate < failed) | (lengths == MOST_TOKENS)] = UNREACHED
    running[(fate < failed + uncompiled) | ~(compiling < STAGES[0].timeout_s)] = UNREACHED
    return np.stack([compiling, running])


def _seconds(chance: np.random.Generator, stage: Stage, lasts: StageDuration, size: int) -> Floats:
    """Return execution times of `size` requests, shape (size,): most near `normal_s`, few long, many of these up to the
    timeout.
    """
    normal = lasts.normal_s * np.exp(chance.normal(0.0, lasts.spread, size))
    stretch = (stage.timeout_s - lasts.normal_s) / (1.0 - ENDLESS)
    long = lasts.normal_s + chance.uniform(0.0, stretch, size)
    return np.where(chance.uniform(size=size) < lasts.long_share, long, normal).clip(max=stage.timeout_s)


def describe(trace: RewardTrace) -> dict[str, float]:
    """Return the statistics of §3 for a trace's first task, because Figures 5 and 6 show one task.

    A request without a stage counts as generation failed, one that compiles and does not run as compile failed. A trace
    has no answers, so only `states_at` distinguishes execute error and success.
    """
    batches = trace.tasks[0].batches
    return {**_arrivals(batches), **_resources(trace.stages, batches)}


def _arrivals(batches: tuple[TracedBatch, ...]) -> dict[str, float]:
    """Figure 5: rates in bins of 10 s, silence in bins of 5 s, likeness of arrivals aligned at the first."""
    lasting = np.array([_iteration_s(*pair) for pair in zip(batches, (*batches[1:], None), strict=True)])
    busy = np.array([len(np.unique(batch.arrivals_s // 5.0)) * 5.0 for batch in batches])
    whole = slice(-1) if len(batches) > 1 else slice(None)
    return {
        "iteration_s": float(lasting[whole].mean()),
        "ideal_span_s": float(np.mean([batch.ideal_span_s for batch in batches])),
        "first_arrival_s": float(np.mean([batch.arrivals_s[0] for batch in batches])),
        "last_arrival_s": float(np.mean([batch.arrivals_s[-1] for batch in batches])),
        "peak_per_10_s": float(max(np.bincount((batch.arrivals_s // 10.0).astype(int)).max() for batch in batches)),
        "silent_share": float(1.0 - (busy[whole] / lasting[whole]).mean()),
        "last_twentieth_span": float(np.mean([_tail(batch.arrivals_s) for batch in batches])),
        "adjacent_likeness": float(np.mean([_likeness(*pair) for pair in pairwise(batches)] or 1.0)),
        "first_last_likeness": _likeness(batches[0], batches[-1]),
    }


def _iteration_s(batch: TracedBatch, following: TracedBatch | None) -> float:
    """Seconds from the batch's start to the next one's, when nothing delays it; of the last one, to its completion."""
    if following is None:
        return batch.ideal_span_s
    if batch.start_s is not None and following.start_s is not None:
        return following.start_s - batch.start_s
    return batch.ideal_span_s + following.gap_s


def _tail(arrivals: Floats) -> float:
    """Share of the time between first and last arrival in which the last twentieth arrives: 0.05 at an even rate."""
    span = arrivals[-1] - arrivals[0]
    return float((arrivals[-1] - np.quantile(arrivals, 0.95)) / span) if span else 0.0


def _likeness(one: TracedBatch, other: TracedBatch) -> float:
    """1 less the Kolmogorov-Smirnov distance of the arrivals, each counted from its batch's first (Figure 5(c))."""
    first, second = (batch.arrivals_s - batch.arrivals_s[0] for batch in (one, other))
    moments = np.concatenate([first, second])
    shares = (np.searchsorted(arrivals, moments, side="right") / len(arrivals) for arrivals in (first, second))
    return float(1.0 - np.abs(np.subtract(*shares)).max())


def _resources(stages: tuple[Stage, ...], batches: tuple[TracedBatch, ...]) -> dict[str, float]:
    """Figure 6: node time and shares of the first and the last batch, execution times of all."""
    found: dict[str, float] = {}
    for number, stage in enumerate(stages):
        took = np.concatenate([batch.executions_s[number][batch.reached(number)] for batch in batches])
        found[f"{stage.name}_median_s"] = float(np.median(took)) if took.size else UNREACHED
        found[f"{stage.name}_timeout_share"] = float(np.mean(took >= stage.timeout_s)) if took.size else UNREACHED
        for when, batch in (("first", batches[0]), ("last", batches[-1])):
            before = batch.reached(number - 1) if number else np.ones(batch.size, dtype=bool)
            found[f"stopped_before_{stage.name}_{when}"] = float(np.mean(before & ~batch.reached(number)))
            found[f"{stage.name}_busy_{when}_s"] = float(np.nansum(batch.executions_s[number]))
    return found
