"""The report for people: the paper's figures beside ours, all systems, the control-plane sweep, what was assumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from treadle.lab.evaluations.distrs.report import Figure
from treadle.lab.evaluations.distrs.table import quantity
from treadle.lab.evaluations.tangram.report import Report
from treadle.lab.replay.tangram.assumptions import CLUSTER, OVERHEADS, PODS, told
from treadle.lab.replay.tangram.evaluation import LARGEST, PAPER_RATIO, SWEPT, WIDTHS, Place, pods_of
from treadle.lab.replay.tangram.measures import ENVIRONMENT, REWARD, Run
from treadle.lab.replay.tangram.trace import Batch
from treadle.lab.replay.tangram.workload import ASSUMED


def show(report: Report, console: Console, notes: Sequence[str] = ()) -> None:
    """Print the tables; the notes, one a line, stand under the first."""
    if report.workload.scale > 1:
        console.print(f"Quick: batches, cores of a node and pods a second divided by {report.workload.scale}.")
    if report.figures:
        console.print(_figures(report.figures))
    for note in notes:
        console.print(note, markup=False)
    console.print(_systems(report))
    if report.outcomes.sweep:
        console.print(_widths(report))
        for place in SWEPT:
            console.print(_sweep(report, place))
    for line in shape(report.workload.batches(LARGEST)):
        console.print(line, markup=False)
    console.print(_assumed(generated=not report.workload.given))


def shape(batches: Sequence[Batch]) -> Iterator[str]:
    """What the trajectories are like, as they came out."""
    every = [trajectory for batch in batches for trajectory in batch]
    active = np.mean([trajectory.active_share for trajectory in every])
    elastic_s = [step.work_s for trajectory in every for step in trajectory.steps if step.is_elastic]
    fixed_s = [step.work_s for trajectory in every for step in trajectory.steps if not step.is_elastic]
    yield (
        f"The workload: {len(every):,} trajectories, {(len(elastic_s) + len(fixed_s)) / len(every):.1f} actions each; "
        f"active for {active:.0%} of their life with one core an action (the paper: 47%)."
    )
    for name, works_s in (("elastic", elastic_s), ("other", fixed_s)):
        if works_s:
            p50, p99, most = np.quantile(works_s, (0.5, 0.99, 1.0))
            yield f"Seconds of {name} actions on one core: median {p50:.3g}, 99% {p99:.3g}, longest {most:.3g}."


def _table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for column in words:
        table.add_column(column)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _figures(figures: Sequence[Figure]) -> Table:
    table = _table("ARL-Tangram §6, reproduced", ["figure"], ["paper", "reproduced"])
    for one in figures:
        table.add_row(one.figure, one.said or quantity(one.paper, one.unit), quantity(one.reproduced, one.unit))
    return table


def _systems(report: Report) -> Table:
    numbers = ["ACT, s", "queueing", "execution", "overhead", "environment", "reward", "p50", "p99", "step, s", "DoP"]
    table = _table("ACT of a trajectory, and when the last reward is there", ["batch", "cores", "system"], numbers)
    for place, runs in report.outcomes.runs.items():
        for number, (system, run) in enumerate(runs.items()):
            where = ("", "") if number else (f"{place.size:,}", f"{place.nodes * CLUSTER.cores:,}")
            table.add_row(*where, system, *_row(run))
        table.add_section()
    return table


def _row(run: Run) -> list[str]:
    acts_s = np.quantile(run.acts_s, (0.5, 0.99)).tolist() if len(run.acts_s) else (0.0, 0.0)
    seconds = (run.act_s, *run.parts_s, run.phase_s(ENVIRONMENT), run.phase_s(REWARD), *acts_s)
    return [*(f"{one:,.2f}" for one in seconds), f"{run.step_s:,.0f}", f"{run.width:.1f}" if run.width else "–"]


def _widths(report: Report) -> Table:
    title = "ACT, pods / ours, by processes of a test suite (a pod may use 4 CPUs)"
    table = _table(title, ["batch", "cores"], ["paper", *(f"DoP {width}" for width in WIDTHS)])
    for place in report.outcomes.runs:
        ratios = (f"{report.against_ours(pods_of(width), place):.2f}×" for width in WIDTHS)
        paper = PAPER_RATIO.get(place)
        cores = place.nodes * CLUSTER.cores
        table.add_row(f"{place.size:,}", f"{cores:,}", f"{paper}×" if paper else "drawn", *ratios)
    return table


def _sweep(report: Report, place: Place) -> Table:
    swept = [one for one in report.swept() if one.place == place]
    timeouts = sorted({one.timeout_s for one in swept})
    where = f"batch {place.size:,}, {place.nodes * CLUSTER.cores:,} cores"
    title = f"ACT, pods / ours, {where}, by control plane (pods asked for again); paper: {PAPER_RATIO[place]}×"
    table = _table(title, ["created", "DoP"], [f"timeout {timeout_s:g} s" for timeout_s in timeouts])
    for rate, width in dict.fromkeys((one.creations_per_s, one.width) for one in swept):
        cells = {
            one.timeout_s: f"{one.ratio:.1f}× ({one.retries:,})"
            for one in swept
            if (one.creations_per_s, one.width) == (rate, width)
        }
        table.add_row(f"{rate:g} pods/s", f"{width}", *(cells[timeout_s] for timeout_s in timeouts))
    return table


def _assumed(*, generated: bool) -> Table:
    table = _table("Stated or assumed", ["parameter"], ["value"])
    table.add_column("source")
    groups = {"pods": PODS, "overheads": OVERHEADS, "cluster": CLUSTER, **({"workload": ASSUMED} if generated else {})}
    for group, of in groups.items():
        for name, value, source in told(of):
            table.add_row(f"{group}.{name}", f"{value:g}" if value < 1e4 else f"{value:,}", source)
        table.add_section()
    return table
