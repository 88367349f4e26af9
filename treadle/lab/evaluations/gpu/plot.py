"""ACT by batch size and by GPUs, and swaps of one GPU, as one picture. Imports matplotlib (treadle[plot])."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from treadle.lab.evaluations.gpu.jobs import SLOTS, of_nodes, of_replicas, of_size
from treadle.lab.evaluations.gpu.report import MEASURES, GpuReport
from treadle.lab.replay.gpu.evaluation import FIXED, NODES, OURS, REPLICAS, STATIC, SYSTEMS
from treadle.lab.replay.gpu.workload import MIXES, Mix

COLOURS: Mapping[str, str] = dict(zip(SYSTEMS, ("#7f7f7f", "#e69f00", "#d55e00", "#0072b2"), strict=True))
"""By system; also distinguishable with colour blindness."""
PANEL_INCHES = (5.2, 3.8)
DOTS_PER_INCH = 110


def draw(report: GpuReport, path: Path) -> None:
    """Write the picture, a PNG.

    Raises:
        OSError: it cannot be written.
    """
    count = len(MIXES) + 2
    figure = Figure((PANEL_INCHES[0] * count, PANEL_INCHES[1]), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, count, squeeze=False).flat)
    for axes in panels:
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for axes, mix in zip(panels, MIXES, strict=False):
        _by_size(axes, report, mix)
    _by_gpus(panels[-2], report)
    _swaps(panels[-1], report)
    figure.savefig(path, format="png")


def _by_size(axes: Axes, report: GpuReport, mix: Mix) -> None:
    sizes = report.workload.sizes
    for system in SYSTEMS:
        act_s = [float(np.mean(report.values(of_size(mix, size), system, MEASURES["ACT, s"]))) for size in sizes]
        axes.plot(sizes, act_s, marker="o", color=COLOURS[system], label=system)
    axes.set_yscale("log")
    axes.set(title=f"ACT, s, {mix}, 40 GPUs", xlabel="batch")
    axes.legend(frameon=False, fontsize=8)


def _by_gpus(axes: Axes, report: GpuReport) -> None:
    for system, settings in (
        (STATIC, [of_replicas(one) for one in REPLICAS]),
        (OURS, [of_nodes(one) for one in NODES]),
        (FIXED, [of_nodes(one) for one in NODES]),
    ):
        runs = [report.results.runs[setting][system] for setting in settings]
        act_s = [float(np.mean([run.act_s for run in seeds])) for seeds in runs]
        axes.plot([seeds[0].gpus for seeds in runs], act_s, marker="o", color=COLOURS[system], label=system)
    axes.set_yscale("log")
    axes.set(title=f"ACT, s, MOPD+Search, batch {report.workload.capacity_size:,}", xlabel="GPUs")
    axes.legend(frameon=False, fontsize=8)


def _swaps(axes: Axes, report: GpuReport) -> None:
    names = ("LRU", "ours", "Belady", "ours, reordered")
    for at, slots in enumerate(SLOTS):
        mine = [one for one in report.results.swaps if one.slots == slots]
        means = [float(np.mean([getattr(one, name) for one in mine])) for name in _COUNTS]
        axes.bar(np.arange(len(names)) + 0.4 * at, means, width=0.38, label=f"it holds {slots}")
    axes.set_xticks(np.arange(len(names)) + 0.2, names, fontsize=8)
    axes.set(title="restores of one GPU, mean of the traces")
    axes.legend(frameon=False, fontsize=8)


_COUNTS = ("lru", "in_order", "belady", "reordered")
