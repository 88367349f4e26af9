"""Report for people: the paper's figures and ours, all systems, swaps of one GPU, kernels, the assumptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from treadle.lab.evaluations.distrs.table import quantity
from treadle.lab.evaluations.gpu.report import MEASURES, GpuReport, assumed
from treadle.lab.replay.gpu.kernels import RUN
from treadle.lab.replay.tangram.assumptions import assumptions_of


def show(report: GpuReport, console: Console, notes: Sequence[str] = ()) -> None:
    """Print the tables, with the notes after the first, one on each line."""
    console.print(_figures(report))
    for note in notes:
        console.print(note, markup=False)
    console.print(_systems(report))
    console.print(_swaps(report))
    worse = report.more_swaps
    verdict = "On every trace" if not worse else f"On all traces but {[(one.seed, one.slots) for one in worse]}"
    console.print(f"{verdict} ours restores as often as LRU at most, and with reordering as Belady.", markup=False)
    if report.results.kernels:
        console.print(_kernels(report))
    console.print(_assumed(report))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format a mean and the smallest and largest value; only the mean if they are equal in print."""
    mean, least, most = (f"{one:,.{digits}f}" for one in (np.mean(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least}–{most})"


def _table(title: str, *columns: str, words: int = 1) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < words else "right", no_wrap=number >= words)
    return table


def _figures(report: GpuReport) -> Table:
    table = _table("ARL-Tangram §6.3, §6.4, GPUs, reproduced", "figure", "paper", "reproduced", "seeds")
    for one in report.figures:
        seeds = f"{min(one.draws):.2f}–{max(one.draws):.2f}" if one.draws else "–"
        table.add_row(one.figure, one.said or quantity(one.paper, one.unit), quantity(one.reproduced, one.unit), seeds)
    return table


def _systems(report: GpuReport) -> Table:
    title = "All systems: means of the seeds; ACT with least–most; swaps: restores per 1,000 calls"
    table = _table(title, "setting", "system", "GPUs", *MEASURES, words=2)
    for setting, systems in report.results.runs.items():
        for number, (system, runs) in enumerate(systems.items()):
            cells = []
            for name, of in MEASURES.items():
                values = report.values(setting, system, of)
                cells.append(spread(values) if name == "ACT, s" else f"{np.mean(values):,.{_digits(name)}f}")
            table.add_row("" if number else setting, system, str(runs[0].gpus), *cells)
        table.add_section()
    return table


def _digits(measure: str) -> int:
    return {"p99": 1, "swaps": 0, "DoP": 1}.get(measure, 2)


def _swaps(report: GpuReport) -> Table:
    title = "Restores of one GPU on random traces: in the order of arrival, and with reordering"
    columns = ("services", "calls", "LRU", "ours", "p99 wait", "Belady", "ours, reordered", "p99 wait")
    table = _table(title, "it holds", "seed", *columns)
    for one in report.results.swaps:
        table.add_row(
            str(one.slots), str(one.seed), str(one.services), str(one.calls), str(one.lru), str(one.in_order),
            f"{one.in_order_p99_s:.1f} s", str(one.belady), str(one.reordered), f"{one.reordered_p99_s:.1f} s",
        )  # fmt: skip
    return table


def _kernels(report: GpuReport) -> Table:
    title = "DistRS with measured kernels as its GPU stage: held / executed GPU-seconds, and the trainers' delays"
    table = _table(title, "workload", "policy", "GPU, norm.", "delay: mean, s", "max, s", words=2)
    for architecture, policies in report.results.kernels.items():
        for number, (policy, runs) in enumerate(policies.items()):
            columns = (
                [float(run.normalised[RUN]) for run in runs],
                [run.mean_delay_s for run in runs],
                [run.worst_delay_s for run in runs],
            )
            table.add_row("" if number else architecture, policy, *map(spread, columns))
        table.add_section()
    return table


def _assumed(report: GpuReport) -> Table:
    table = Table("parameter", "value", "source", title="Stated or assumed", title_justify="left", pad_edge=False)
    for group, of in assumed(report.workload).items():
        for name, value, source in assumptions_of(of):
            table.add_row(f"{group}.{name}", f"{value:g}" if value < 1e4 else f"{value:,}", source)
        table.add_section()
    return table
