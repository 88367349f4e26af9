"""Step, lost trajectories and use of the limit as one picture. Imports matplotlib (treadle[plot])."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from treadle.lab.evaluations.search.jobs import MAIN, of_rate
from treadle.lab.evaluations.search.report import SearchReport
from treadle.lab.replay.search.evaluation import ALONE, OURS_NAME, PAPER_RATIO, RATES, SYSTEMS

COLOURS: Mapping[str, str] = dict(zip(SYSTEMS, ("#7f7f7f", "#e69f00", "#0072b2", "#d55e00"), strict=True))
"""By system; also distinguishable with colour blindness."""
PANEL_INCHES = (5.6, 3.8)
DOTS_PER_INCH = 110


def draw(report: SearchReport, path: Path) -> None:
    """Write the picture, a PNG: four panels of the evaluation, three of a trace of one's own.

    Raises:
        OSError: it cannot be written.
    """
    names = ("step, s", "lost", "useful use")
    count = len(names) + (not report.workload.given)
    figure = Figure((PANEL_INCHES[0] * count, PANEL_INCHES[1]), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes in panels:
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        _bars(axes, report, name)
    if not report.workload.given:
        _rates(panels[-1], report)
    figure.savefig(path, format="png")


def _bars(axes: Axes, report: SearchReport, name: str) -> None:
    """One measure of all systems, with the range of the seeds."""
    for at, system in enumerate(report.results.runs[MAIN]):
        values = report.values(MAIN, system, report.measures(MAIN)[name])
        mean = float(np.mean(values))
        axes.bar(at, mean, color=COLOURS[system], yerr=[[mean - min(values)], [max(values) - mean]], capsize=4)
        axes.annotate(f"{mean:,.0f}", (at, mean), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(report.results.runs[MAIN])), list(report.results.runs[MAIN]), fontsize=8)
    axes.set(title="useful use of the searches' limit, %" if name == "useful use" else f"{name}, one step")


def _rates(axes: Axes, report: SearchReport) -> None:
    """Ratios by the limit of the service."""
    for system in SYSTEMS:
        if system != OURS_NAME:
            ratios = [float(np.mean(report.ratios(system, of_rate(per_s)))) for per_s in RATES]
            axes.plot(RATES, ratios, marker="o", color=COLOURS[system], label=f"{system} / {OURS_NAME}")
    axes.axhline(PAPER_RATIO, color="k", linewidth=0.8, ls="--", label=f"the paper's, {ALONE}")
    axes.set_xscale("log")
    axes.set_xticks(RATES)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(title="step, by the service's limit", xlabel="searches a second", ylabel="step / ours")
    axes.legend(frameon=False, fontsize=8)
