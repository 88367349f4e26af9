"""The paper's Figures 8(a) and 9, Table 1 and the sweep as one picture. Imports matplotlib (treadle[plot])."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from treadle.lab.evaluations.tangram.report import TangramReport
from treadle.lab.replay.tangram.assumptions import CLUSTER
from treadle.lab.replay.tangram.evaluation import (
    LARGEST,
    NODES,
    OURS,
    PAPER_RATIO,
    PODS_NAME,
    SIZE,
    SIZES,
    OperatingPoint,
)
from treadle.lab.replay.tangram.measures import PARTS, SystemRun

COLOURS: Mapping[str, str] = {
    OURS: "#d55e00", "Algorithm 1": "#0072b2", "DoP 4": "#e69f00", "DoP 16": "#cc79a7", "fewest cores": "#56b4e9",
    PODS_NAME: "#7f7f7f", "pods, DoP 1": "#b0b0b0", "pods, DoP 2": "#989898", "pods, DoP 8": "#5f5f5f",
    "core for life": "#009e73",
}  # fmt: skip
"""By system; also distinguishable with colour blindness."""
PART_COLOURS = ("#e69f00", "#0072b2", "#7f7f7f")
PANEL_INCHES = (5.6, 3.8)
DOTS_PER_INCH = 110

Panel = Callable[[Axes, TangramReport], None]


def draw(report: TangramReport, path: Path) -> None:
    """Write the picture, a PNG: six panels of the evaluation, two of a trace of one's own.

    Raises:
        OSError: it cannot be written.
    """
    rows = _OF_A_TRACE if report.workload.given else _PANELS
    wide, high = len(rows[0]), len(rows)
    figure = Figure((PANEL_INCHES[0] * wide, PANEL_INCHES[1] * high), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes, panel in zip(grid.flat, (panel for row in rows for panel in row), strict=True):
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes, report)
    figure.savefig(path, format="png")


def _by_size(axes: Axes, report: TangramReport) -> None:
    """Figure 8(a), left."""
    points = [OperatingPoint(size, CLUSTER.nodes) for size in SIZES]
    _lines(axes, report, points, SIZES)
    axes.set(title="8(a)  1,280 cores", xlabel="batch", ylabel="ACT of a trajectory, s")


def _by_cores(axes: Axes, report: TangramReport) -> None:
    """Figure 8(a), right."""
    _lines(axes, report, [OperatingPoint(SIZE, nodes) for nodes in NODES], [nodes * CLUSTER.cores for nodes in NODES])
    axes.set(title=f"8(a)  batch {SIZE:,}", xlabel="cores", ylabel="ACT of a trajectory, s")


def _lines(axes: Axes, report: TangramReport, points: Sequence[OperatingPoint], at: Sequence[int]) -> None:
    runs = report.results.runs
    for system, marker in ((PODS_NAME, "s"), (OURS, "o")):
        acts_s = [runs[point][system].act_s for point in points]
        axes.plot(at, acts_s, color=COLOURS[system], marker=marker, label=system)
    for point, where in zip(points, at, strict=True):
        pods_s, ours_s = (runs[point][system].act_s for system in (PODS_NAME, OURS))
        paper = f"\n(paper {PAPER_RATIO[point]:g}×)" if point in PAPER_RATIO else ""
        axes.annotate(
            f"{pods_s / ours_s:.1f}×{paper}", (where, pods_s), xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=8,
        )  # fmt: skip
    axes.set_xticks(at)
    axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.2)
    axes.legend(frameon=False, loc="lower right")


def _ablation(axes: Axes, report: TangramReport) -> None:
    """Figure 9."""
    shown = ("DoP 4", "DoP 16", "Algorithm 1", OURS)
    points = [point for point, runs in report.results.runs.items() if "DoP 4" in runs]
    _bars(axes, [report.results.runs[point] for point in points], shown)
    axes.set_xticks(
        range(len(points)), [f"{point.size:,} on\n{point.nodes * CLUSTER.cores:,} cores" for point in points]
    )
    axes.set(title="9  how wide elastic actions run", ylabel="ACT of a trajectory, s")
    axes.legend(frameon=False)


def _all(axes: Axes, report: TangramReport) -> None:
    (runs,) = report.results.runs.values()
    _bars(axes, [runs], tuple(runs))
    axes.set_xticks([])
    axes.set(title="all systems", ylabel="ACT of a trajectory, s")
    axes.legend(frameon=False, fontsize=8)


def _bars(axes: Axes, groups: Sequence[Mapping[str, SystemRun]], systems: Sequence[str]) -> None:
    """Draw bars side by side in their group, with the value on each."""
    width = 0.84 / len(systems)
    for number, system in enumerate(systems):
        there = [(point, runs[system]) for point, runs in enumerate(groups) if system in runs]
        at = [point - 0.42 + (number + 0.5) * width for point, _ in there]
        heights = [run.act_s for _, run in there]
        axes.bar(at, heights, width * 0.92, color=COLOURS[system], label=system)
        for where, height in zip(at, heights, strict=True):
            axes.annotate(
                f"{height:.0f}", (where, height), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7
            )


def _parts(axes: Axes, report: TangramReport) -> None:
    """Table 1."""
    systems = [(point, OURS) for point in (OperatingPoint(SIZE, CLUSTER.nodes), OperatingPoint(LARGEST, CLUSTER.nodes))]
    below = np.zeros(len(systems))
    parts_s = np.array([report.results.runs[point][system].parts_s for point, system in systems])
    for part, name in enumerate(PARTS):
        axes.bar(range(len(systems)), parts_s[:, part], bottom=below, color=PART_COLOURS[part], label=name, width=0.5)
        below += parts_s[:, part]
    axes.set_xticks(range(len(systems)), [f"batch {point.size:,}" for point, _ in systems])
    axes.set(title="Table 1  parts of ours", ylabel="ACT of a trajectory, s")
    axes.legend(frameon=False)


def _distribution(axes: Axes, report: TangramReport) -> None:
    """Distribution of ACT over trajectories."""
    point = OperatingPoint(SIZE, CLUSTER.nodes)
    runs = report.results.runs.get(point) or next(iter(report.results.runs.values()))
    for system, run in runs.items():
        acts_s = np.sort(run.acts_s)
        axes.step(acts_s, np.arange(1, len(acts_s) + 1) / len(acts_s), color=COLOURS[system], label=system)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(title=f"ACT of {len(acts_s):,} trajectories", xlabel="ACT, s", ylabel="share that waits no longer")
    axes.legend(frameon=False, fontsize=8)


def _sweep(axes: Axes, report: TangramReport) -> None:
    """Ratio at the largest operating point, by timeout, for each rate of pods and width."""
    point = OperatingPoint(LARGEST, CLUSTER.nodes)
    swept = [one for one in report.swept() if one.point == point]
    for rate, width in dict.fromkeys((one.creations_per_s, one.width) for one in swept):
        mine = [(one.timeout_s, one.ratio) for one in swept if (one.creations_per_s, one.width) == (rate, width)]
        axes.plot(*zip(*mine, strict=True), marker=".", label=f"{rate:g} pods/s, DoP {width}")
    axes.axhline(PAPER_RATIO[point], color="k", linewidth=0.8, ls="--", label="the paper's")
    axes.set_xscale("log")
    axes.set_xticks(sorted({one.timeout_s for one in swept}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(title=f"batch {LARGEST:,}, by control plane", xlabel="a pod's timeout, s", ylabel="ACT, pods / ours")
    axes.legend(frameon=False, fontsize=8)


_PANELS: tuple[tuple[Panel, ...], ...] = ((_by_size, _by_cores, _ablation), (_parts, _distribution, _sweep))
_OF_A_TRACE: tuple[tuple[Panel, ...], ...] = ((_all, _distribution),)
