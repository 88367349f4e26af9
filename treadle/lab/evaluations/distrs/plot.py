"""The paper's Figures 10 to 15 as one picture. Imports matplotlib, which is not always there (treadle[plot])."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from shared.policy.scaling.list_scheduling import Floats
from treadle.lab.evaluations.distrs.jobs import ALONE, ARCHITECTURES, GIVEN, POLICIES
from treadle.lab.evaluations.distrs.report import DistrsReport
from treadle.lab.replay.distrs.evaluation import APART_S, PAPER, PAPER_SEARCH_S, PAPER_SINGLE_S, PolicyRun, dearest

COLOURS: Mapping[str, str] = {
    "zq-dedicated": "#7f7f7f", "history": "#e69f00", "autoscaler": "#cc79a7", "distrs": "#0072b2", "treadle": "#d55e00",
    "ideal": "#009e73",
}  # fmt: skip
"""By policy; also distinguishable with colour blindness."""
PANEL_INCHES = (5.6, 3.8)
DOTS_PER_INCH = 110
WINDOWS_SHOWN = 3.0
"""Iterations of the first task that the allocation over time shows."""

Panel = Callable[[Axes, DistrsReport], None]


def draw(report: DistrsReport, path: Path) -> None:
    """Write the picture, a PNG: nine panels of the generated workload, five of a given one.

    Raises:
        OSError: it cannot be written.
    """
    rows = _PANELS_OF_A_TRACE if GIVEN in report.results.runs else _PANELS
    wide, high = max(map(len, rows)), len(rows)
    figure = Figure((PANEL_INCHES[0] * wide, PANEL_INCHES[1] * high + 0.5), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(high, wide, squeeze=False)
    for axes, panel in zip(grid.flat, (panel for row in rows for panel in row), strict=False):
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        panel(axes, report)
    for axes in list(grid.flat)[sum(map(len, rows)) :]:
        axes.remove()
    handles = [Patch(color=COLOURS[policy], label=policy) for policy in POLICIES]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=12)
    figure.savefig(path, format="png")


# --- of both ------------------------------------------------------------------------------------------------------


def _over_time(axes: Axes, report: DistrsReport) -> None:
    """Figure 10(a): what is held of the dearest stage, over a few iterations well after the beginning."""
    group = next(iter(report.results.runs))
    runs, stage = report.results.runs[group], dearest(report.stages)
    opened = np.sort(runs["ideal"].open_s[:, 0])
    lasts = (opened[-1] - opened[0]) * report.tasks / max(1, len(opened) - report.tasks)  # from a batch to its next
    begin = float(opened[len(opened) // 2])
    until = begin + WINDOWS_SHOWN * max(float(lasts), float(np.diff(runs["ideal"].open_s).max()))
    until = min(until, float(runs["ideal"].open_s.max()))
    most = 1
    for policy, run in runs.items():
        moments = np.array([moment for moment, _ in run.held])
        held = np.array([workers[stage] for _, workers in run.held])
        first, last = np.searchsorted(moments, (begin, until))
        most = max(most, int(held[max(0, first - 1) : last].max(initial=0)))
        axes.step(moments / 60, held, where="post", color=COLOURS[policy], linewidth=1.4)
    axes.set_ylim(0, 1.06 * most)
    axes.set_xlim(begin / 60, until / 60)
    axes.set(xlabel="minutes of the run", ylabel=f"{report.stages[stage].name} workers held")
    axes.set_title("workers over time" if group == GIVEN else f"10(a)  GPUs over time, {group}")


def _delays(axes: Axes, report: DistrsReport) -> None:
    """Figures 10(c) and 11(c): the share of batches that wait no longer."""
    first, *others = [group for group in report.results.runs if group != ALONE]
    for group, style, width in [(first, "-", 1.8), *((other, ":", 1.3) for other in others)]:
        for policy, run in report.results.runs[group].items():
            delays = np.sort(run.delays_s)
            shares = np.arange(1, len(delays) + 1) / max(1, len(delays))
            axes.step([0.0, *delays], [0.0, *shares], where="post", color=COLOURS[policy], ls=style, linewidth=width)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlim(left=-0.05)
    axes.set_ylim(0, 1.03)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="extra delay, s", ylabel="share of batches that wait no longer")
    axes.set_title("10(c), 11(c)  extra delay of a batch" if others else "extra delay of a batch")
    if others:
        styles = [Line2D([], [], color="k", label=first), Line2D([], [], color="k", ls=":", label=others[0])]
        axes.legend(handles=styles, loc="lower right", frameon=False)


def _search(axes: Axes, report: DistrsReport) -> None:
    """Figure 15."""
    axes.loglog(
        list(report.search_ms), [taken / 1e3 for taken in report.search_ms.values()],
        color=COLOURS["treadle"], marker="o", label="ours",
    )  # fmt: skip
    given = GIVEN in report.results.runs
    if not given:
        axes.loglog(*zip(*PAPER_SEARCH_S.items(), strict=True), "k*", markersize=11, label="the paper's")
        axes.legend(frameon=False, loc="upper left")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("one search of a generated load" if given else "15  one search: two stages, six batches")
    axes.set(xlabel="requests", ylabel="seconds")


def _bars(axes: Axes, groups: Mapping[str, Mapping[str, float]]) -> None:
    """Bars by policy, side by side in their group, with the value on each."""
    for place, values in enumerate(groups.values()):
        width = 0.84 / len(values)
        for number, (policy, value) in enumerate(values.items()):
            at = place - 0.42 + (number + 0.5) * width
            axes.bar(at, value, width * 0.92, color=COLOURS[policy])
            axes.annotate(
                _short(value),
                (at, value), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7,
            )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")


def _short(value: float) -> str:
    """Three digits or so."""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# --- of the generated workload ------------------------------------------------------------------------------------


def _gpu_time(axes: Axes, report: DistrsReport) -> None:
    _time(axes, report, dearest(report.stages), "GPU", 1.0)


def _cpu_time(axes: Axes, report: DistrsReport) -> None:
    stage = 1 - dearest(report.stages)
    _time(axes, report, stage, "CPU", report.stages[stage].worker_cost)


def _time(axes: Axes, report: DistrsReport, stage: int, name: str, units: float) -> None:
    """Figures 10 and 11, the bars of (a) and (b); `units` of the resource a worker."""
    groups = {group: report.results.runs[group] for group in ARCHITECTURES}
    hours: dict[str, dict[str, float]] = {
        group: {policy: float(run.worker_s[stage]) * units / 3600 for policy, run in runs.items()}
        for group, runs in groups.items()
    }
    _bars(axes, hours)
    axes.set_ylim(top=1.3 * max(value for values in hours.values() for value in values.values()))
    for place, group in enumerate(ARCHITECTURES):
        ratio = hours[group]["zq-dedicated"] / max(hours[group]["distrs"], 1e-9)
        text = f"zq-dedicated / distrs\n{ratio:.2f}× (paper {PAPER[group][f'{name.lower()}_ratio']}×)"
        axes.annotate(text, (place, 0.99), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=9)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(title=f"10, 11  {name} time", ylabel=f"{name} hours held")


def _normalised(axes: Axes, report: DistrsReport) -> None:
    """Figure 12."""
    stage = dearest(report.stages)
    _bars(
        axes,
        {
            group: {policy: float(run.normalised[stage]) for policy, run in report.results.runs[group].items()}
            for group in ARCHITECTURES
        },
    )
    axes.axhline(1, color="k", linewidth=0.8, linestyle="--")
    axes.set(title="12  normalised GPU time", ylabel="GPU time held / executed")


def _held_alone(axes: Axes, report: DistrsReport) -> None:
    """Figure 13(a)."""
    stage = dearest(report.stages)
    for policy, run in report.results.runs[ALONE].items():
        held = [_mean_held(run, stage, begin, end) for begin, end in run.open_s]
        axes.plot(range(2, len(held) + 2), held, color=COLOURS[policy], linewidth=1.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(title="13(a)  one task: GPUs while a batch is open", xlabel="iteration", ylabel="GPUs held, mean")


def _delays_alone(axes: Axes, report: DistrsReport) -> None:
    """Figure 13(b)."""
    runs = report.results.runs[ALONE]
    for policy, run in runs.items():
        if policy != "zq-dedicated":
            axes.plot(range(1, len(run.delays_s) + 1), np.sort(run.delays_s), color=COLOURS[policy], linewidth=1.8)
    axes.set_ylim(bottom=0, top=1.25 * max(1.0, axes.get_ylim()[1]))
    means = [
        f"{policy}: mean {runs[policy].mean_delay_s:.1f} s (paper {paper} s)"
        for policy, paper in PAPER_SINGLE_S.items()
    ]
    axes.text(0.03, 0.96, "\n".join(means), transform=axes.transAxes, va="top", fontsize=9)
    axes.set(title="13(b)  one task: extra delay", xlabel="batches, sorted by their delay", ylabel="extra delay, s")


def _mean_held(run: PolicyRun, stage: int, begin: float, end: float) -> float:
    """Workers held between two moments, over the time in which there were any."""
    moments: Floats = np.array([moment for moment, _ in run.held])
    first, last = np.searchsorted(moments, (begin, end))
    inside = np.array([begin, *moments[first:last], end])
    held = np.array([run.held[max(0, number)][1][stage] for number in range(first - 1, last)], float)
    lasts = np.diff(inside) * (held > 0)
    return float(held @ lasts / lasts.sum()) if lasts.sum() else 0.0


def _order(axes: Axes, report: DistrsReport) -> None:
    """Figure 14(a)."""
    order = report.results.order
    if order is None:
        return
    axes.plot(order.workers, order.ebf_s, color=COLOURS["distrs"], marker=".", label="EBF")
    axes.plot(order.workers, order.fcfs_s, color=COLOURS["history"], marker=".", label="FCFS")
    axes.axhline(
        report.max_extra_delay_s, color="k", linewidth=0.8, ls="--", label=f"D = {report.max_extra_delay_s:g} s"
    )
    late = np.flatnonzero(np.array(order.fcfs_s) > report.max_extra_delay_s / 10)
    axes.set_xlim(right=order.workers[min(int(late.max(initial=0)) + 5, len(order.workers) - 1)] + 0.5)
    axes.legend(frameon=False)
    axes.set(title=f"14(a)  two batches, {APART_S:.0f} s apart", xlabel="GPUs", ylabel="mean extra delay, s")


# --- of a given trace ---------------------------------------------------------------------------------------------


def _held_by_stage(axes: Axes, report: DistrsReport) -> None:
    _bars(axes, _by_stage(report, lambda run: run.worker_s / 3600))
    axes.set_yscale("log")
    axes.set(title="worker time by stage", ylabel="worker-hours held")


def _normalised_by_stage(axes: Axes, report: DistrsReport) -> None:
    _bars(axes, _by_stage(report, lambda run: np.nan_to_num(run.normalised)))
    axes.axhline(1, color="k", linewidth=0.8, linestyle="--")
    axes.set(title="normalised worker time by stage", ylabel="held / executed")


def _by_stage(report: DistrsReport, of_stages: Callable[[PolicyRun], Floats]) -> dict[str, dict[str, float]]:
    runs = report.results.runs[GIVEN]
    return {
        stage.name: {policy: float(of_stages(run)[number]) for policy, run in runs.items()}
        for number, stage in enumerate(report.stages)
    }


_PANELS: tuple[tuple[Panel, ...], ...] = (
    (_over_time, _gpu_time, _cpu_time),
    (_delays, _normalised, _held_alone),
    (_delays_alone, _order, _search),
)
_PANELS_OF_A_TRACE: tuple[tuple[Panel, ...], ...] = (
    (_over_time, _held_by_stage, _delays),
    (_normalised_by_stage, _search),
)
