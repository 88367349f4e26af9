"""Report for people: the paper's figures and ours, all policies, and ablations of our planner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from shared.policy.scaling.workload import Stage
from treadle.lab.evaluations.distrs.jobs import ALONE, GIVEN
from treadle.lab.evaluations.distrs.report import DistrsReport, PaperFigure, PlannerComparison
from treadle.lab.replay.distrs.evaluation import PolicyRun

UNITS = {"x": "×", "s": " s"}


def show(report: DistrsReport, console: Console, notes: Sequence[str] = ()) -> None:
    """Print the tables, with the notes after the first two, one on each line."""
    if report.figures:
        console.print(_figures(report.figures))
    console.print(_policies(report))
    if report.results.others:
        console.print(_draws(report))
    if report.results.varied:
        console.print(_compared(report.compared))
        console.print(VARIED_SHOW, markup=False)
    for note in notes:
        console.print(note, markup=False)
    if report.results.ablations:
        console.print(_ablations(report))
        console.print(ABLATIONS_SHOW, markup=False)
    searches = ", ".join(f"{count:,}: {taken:,.1f} ms" for count, taken in report.search_ms.items())
    console.print(f"One whole search by number of requests (two stages, six batches): {searches}", markup=False)


ABLATIONS_SHOW = (
    "Each part taken away from our planner alone. Progress reports help where a rollout is not as fast as the last "
    "ones: the history then expects arrivals at the wrong moments. The opening hint helps where all requests come at "
    "once; where the first come minutes before the last, they can wait for a cold start. Reviews save compile workers: "
    "between the paper's decisions a rollout's peak has long passed. Window and trade change little on this workload."
)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        words = number < sum(name in WORDS for name in columns)
        table.add_column(column, justify="left" if words else "right", no_wrap=True)
    return table


WORDS = frozenset({"figure", "workload", "condition", "policy", "planner"})
"""Columns of words; they come first."""


def _figures(figures: Sequence[PaperFigure]) -> Table:
    draws = max(len(one.draws) for one in figures)
    spread = [f"{draws} draws: mean", "least", "most"] if draws else []
    table = _table("DistRS §6, reproduced", "figure", "paper", "reproduced", *spread)
    for one in figures:
        row = [one.figure, one.said or quantity(one.paper, one.unit), quantity(one.reproduced, one.unit)]
        values = (np.mean(one.draws), min(one.draws), max(one.draws)) if one.draws else (None,) * 3
        table.add_row(
            *row, *(quantity(None if value is None else float(value), one.unit) for value in values[: len(spread)])
        )
    return table


def _draws(report: DistrsReport) -> Table:
    """Return a table of each policy over all draws: mean, minimum and maximum."""
    stages = [f"{stage.name}, norm." for stage in report.stages]
    count = 1 + len(report.results.others)
    table = _table(
        f"All policies over {count} draws: mean (least to most)", "workload", "policy", *stages, "delay: mean", "max, s"
    )
    for group, policies in report.results.runs.items():
        for number, policy in enumerate(policies):
            runs = report.draws(group, policy)
            columns = [[float(run.normalised[stage]) for run in runs] for stage in range(len(stages))]
            columns += [[run.mean_delay_s for run in runs], [run.worst_delay_s for run in runs]]
            names = {ALONE: "colocated, one task"}
            table.add_row("" if number else names.get(group, group), policy, *map(_range, columns))
        table.add_section()
    return table


def _range(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _compared(rows: Sequence[PlannerComparison]) -> Table:
    table = _table(
        "Ours and DistRS on workloads of many shapes",
        *("workload", "tasks", "stages", "batches", "D, s", "DistRS: mean", "max, s", "cost"),
        *("ours: mean", "max, s", "cost", "ours is"),
    )
    for one in rows:
        sizes = (len(one.trace.tasks), len(one.trace.stages), len(one.treadle.delays_s))
        cells = [str(one.number), *map(str, sizes), f"{one.trace.max_extra_delay_s:g}"]
        for run in (one.distrs, one.treadle):
            cells += [f"{run.mean_delay_s:.2f}", f"{run.worst_delay_s:.2f}", f"{one.cost(run):.2f}"]
        table.add_row(*cells, ", ".join(one.worse) or "no worse")
    return table


VARIED_SHOW = (
    "Cost is what was held, at the workers' prices, against what was executed. The workloads are drawn from seeds 1 to "
    "10 (treadle/lab/replay/distrs/varied.py); the planner was tuned on others."
)


def _policies(report: DistrsReport) -> Table:
    table = _table("All policies", "workload", "policy", *_columns(report.stages, normalised=True))
    for group, runs in report.results.runs.items():
        names = {GIVEN: "the trace", ALONE: "colocated, one task"}
        for number, (policy, run) in enumerate(runs.items()):
            table.add_row("" if number else names.get(group, group), policy, *_row(run, normalised=True))
        table.add_section()
    return table


def _ablations(report: DistrsReport) -> Table:
    table = _table("What each part is worth, colocated", "condition", "planner", *_columns(report.stages))
    by_condition: dict[str, Mapping[str, PolicyRun]] = {}
    for (condition, variant), run in report.results.ablations.items():
        by_condition[condition] = {**by_condition.get(condition, {}), variant: run}
    for condition, runs in by_condition.items():
        for number, (variant, run) in enumerate(runs.items()):
            table.add_row("" if number else condition, variant, *_row(run))
        table.add_section()
    return table


def _columns(stages: Sequence[Stage], *, normalised: bool = False) -> list[str]:
    ratios = [f"{stage.name}, norm." for stage in stages] if normalised else []
    return [*(f"{stage.name}, worker-s" for stage in stages), *ratios, "delay: mean", "p50", "p99", "max, s"]


def _row(run: PolicyRun, *, normalised: bool = False) -> list[str]:
    ratios = ["–" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in run.normalised] if normalised else []
    delays = run.delays_s if len(run.delays_s) else np.zeros(1)
    spread = (run.mean_delay_s, *np.quantile(delays, (0.5, 0.99, 1.0)))
    return [*(f"{held:,.0f}" for held in run.worker_s), *ratios, *(f"{delay:.2f}" for delay in spread)]


def quantity(value: float | None, unit: str) -> str:
    """Format a number with its unit; a dash for None."""
    return "–" if value is None else f"{value:.3g}{UNITS[unit]}"


# ---- differences from the paper -------------------------------------------------------------------------------------
# Why our figures differ from the paper's, in a sentence or two each.
#
# The workload is generated from what §3 publishes, and nothing was fitted to §6. The numbers below were measured by
# changing one thing and replaying all of it, with seed 1 unless others are named.

GPU_TIME = (
    "10, 11, GPU time: DistRS holds about a quarter more than it executes here, since its timeout-aware rule lets "
    "nothing queue in the last 180 s (120 + 60) of a batch. D hardly matters beside that: with 1 s or 10 s instead of"
    " 3 the ratio is 3.5. Seeds 1 to 3: 3.4 to 3.6 colocated, 3.4 disaggregated."
)
CPU_TIME = (
    "10, CPU time: the gaps vary by 2%, so the six tasks drift apart over 50 iterations; then decisions for one fall "
    "into the tails of others and let compile workers go sooner. Over 10 iterations the ratio is 2.1, over 50 without"
    " that variation 2.4, for seeds 2 and 3 it is 2.3 and 2.6."
)
DELAY = (
    "10, mean extra delay: one batch of 294 waits 133 s, which is 0.45 s of the mean. It was left one compile worker "
    "for its last 13 requests, because the last ones of the batch before had been cut off at 16K tokens and compiled "
    "nothing."
)
OVERLAP = (
    "11: a rollout waits for the rewards of the last one here. Overlapped, as one-step staleness allows, GPU and CPU "
    "ratios are 3.5 and 2.2, and the mean extra delay is 0.1 s."
)
ONE_TASK = (
    "13: nearly all of the delay comes from executions that end at their timeout. The paper gives no share of them, "
    "ours is 2%: over seeds 1 to 4 DistRS waits 7.6 s in the mean, with half as many 4.2 s, with none 0.5 s; history "
    "20 s, 20 s and 16 s."
)
ORDER = (
    "14: our requests arrive over some 330 s, so two batches 100 s apart compete most of the time, and either order "
    "needs nearly as many GPUs: 1.0 to 1.3 times over seeds and iterations. 200 s apart it is 1.4 to 1.5."
)
SEARCH = "15: the simulation is compiled here, and no allocation is simulated twice."

NOTES = (GPU_TIME, CPU_TIME, DELAY, OVERLAP, ONE_TASK, ORDER, SEARCH)
"""For the evaluation as the paper ran it: six tasks of 50 batches of 2,048."""
