"""``treadle replay``."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shared.store.stimulus_log import LogError
from treadle.cli.replay_dispatch import dispatch
from treadle.cli.replay_errors import FAILED, WRONG, ReplayError, check_drawable, failing
from treadle.cli.replay_gpu import gpu
from treadle.cli.replay_search import search
from treadle.lab.evaluations.distrs.jobs import (
    DRAWS,
    REQUESTS,
    WORKLOADS,
    DistrsWorkload,
    Jobs,
    generated,
    given,
    replay,
    search_ms,
)
from treadle.lab.evaluations.distrs.report import DistrsReport
from treadle.lab.evaluations.distrs.table import NOTES, show
from treadle.lab.evaluations.planner_decisions import Comparison, compared, newest_log
from treadle.lab.evaluations.planner_decisions import show as show_decisions
from treadle.lab.evaluations.pool import progress_bar
from treadle.lab.evaluations.tangram.jobs import QUICK, TangramWorkload, evaluation, run_all
from treadle.lab.evaluations.tangram.jobs import given as given_trajectories
from treadle.lab.evaluations.tangram.report import TangramReport
from treadle.lab.evaluations.tangram.table import NOTES as TANGRAM_NOTES
from treadle.lab.evaluations.tangram.table import show as show_tangram
from treadle.lab.replay.distrs.generate import ITERATIONS, SIZE, TASKS
from treadle.lab.replay.distrs.trace import RewardTrace
from treadle.lab.replay.tangram.assumptions import CLUSTER
from treadle.lab.replay.tangram.recorded import Recording
from treadle.lab.traces.rewards import TraceError, read_trace
from treadle.lab.traces.tangram import read_trajectories
from treadle.lab.traces.tangram_recorded import read_recordings

SEARCH_WEIGHT = 0.1
"""Weight of the search's measurement in the progress bar, relative to all replays."""


def register(app: typer.Typer) -> None:
    app.callback()(papers)
    app.command("distrs")(distrs)
    app.command("tangram")(tangram)
    app.command("search")(search)
    app.command("gpu")(gpu)
    app.command("planner")(planner)
    app.command("dispatch")(dispatch)


def papers() -> None:
    """Reproduce a paper's evaluation in virtual time, or decisions of a planner or a dispatcher from their logs.

    All run the policies that the services run.
    """


def distrs(
    trace: Annotated[Path | None, typer.Option(help="A workload of your own, instead of the paper's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG. Needs treadle[plot].")] = None,
    iterations: Annotated[
        int | None, typer.Option(min=2, help=f"Batches of each task. [default: {ITERATIONS}]")
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help=f"Tasks that train at once. [default: {TASKS}]")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help=f"Requests of a batch. [default: {SIZE}]")] = None,
    max_extra_delay: Annotated[
        float | None, typer.Option(min=0.0, help="D, in seconds. [default: the trace's; 3 of the paper's]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload and of the policies' random draws.")] = 1,
    draws: Annotated[
        int, typer.Option(min=1, help="Draws of the evaluation, from this seed on. With 1 no spread is printed.")
    ] = DRAWS,
    workloads: Annotated[
        int, typer.Option(min=0, help="Workloads of many shapes on which ours is compared with DistRS.")
    ] = WORKLOADS,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes; with 1 there is none.")] = 2,
    search_up_to: Annotated[int, typer.Option(min=0, help="Most requests that the search is timed on.")] = REQUESTS[-1],
) -> None:
    """DistRS §6: workers that six policies hold, and delays of trainers. About twelve minutes on two cores; with
    --draws 1 --workloads 0 about two.

    A trace is JSON Lines: {"stages": [{"name", "worker_cost", "timeout_s", "cold_start_s"?}], "max_extra_delay_s",
    "batch_gap_s"?}, then one request a line: {"task", "batch", "index", "arrival_s", "stages": [seconds, ...],
    "batch_start_s"?}. The first batch of each task is its history and is not replayed.

    Exit status: 0 replayed; 1 a worker process was killed; 2 the trace or an option is wrong; 130 interrupted.
    """
    sizes = {"tasks": tasks, "iterations": iterations, "size": batch_size}
    asked = {name: value for name, value in sizes.items() if value is not None}
    with failing():
        workload = DistrsWorkload(seed=seed, max_extra_delay_s=max_extra_delay, **asked)
        check_drawable(plot)
        if trace is not None and asked:
            raise ReplayError("--trace has its own sizes: leave out --iterations, --tasks and --batch-size", WRONG)
        own = None if trace is None else _replayable(trace)
        shapes = range(1, workloads + 1)
        jobs = generated(workload, draws, shapes) if own is None else given(own, workload)
        report = _run(jobs, workload, own, processes, search_up_to)
        if plot is not None:
            from treadle.lab.evaluations.distrs.plot import draw  # matplotlib is not always there

            draw(report, plot)
    if as_json:
        typer.echo(json.dumps(report.document(), allow_nan=False))
    else:
        standard = own is None and not asked and max_extra_delay is None
        show(report, Console(width=None if sys.stdout.isatty() else 150), NOTES if standard else ())
    if plot is not None:
        typer.echo(f"drawn: {plot}", err=True)


def tangram(
    trace: Annotated[
        str | None,
        typer.Option(help="Trajectories of your own: a file. `data`: recorded agents, with the evaluation's rewards."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG. Needs treadle[plot].")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help=f"All sizes divided by {QUICK}: some twenty seconds.")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of 256 cores, for a file of your own.")] = CLUSTER.nodes,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes; with 1 there is none.")] = 2,
    data: Annotated[
        Path, typer.Option(envvar="TREADLE_DATA", help="Folder of recorded agents, for --trace data.")
    ] = Path("../shared/data"),
) -> None:
    """ARL-Tangram §6.3, §6.4: waiting times of agents' actions on shared CPUs. 2.5 minutes on two cores.

    Trajectories think and act in virtual time. The mesh's own dispatcher assigns cores. It is compared with Kubernetes
    pods that last as long as a trajectory, fixed degrees of parallelism, and the paper's Algorithm 1.

    A trace is JSON Lines, one trajectory a line; all begin together: {"trajectory", "group"?, "steps": [{"think_s"?,
    "kind", "work_s", "units"?: [fewest, most], "elasticity"?: {"4": 0.9} or {"model": "amdahl", "serial": 0.05} or
    {"model": "power", "exponent": 0.9}, "profile_s"?}]}. work_s is on one core. The
    scheduler expects profile_s.

    Exit status: 0 replayed; 1 a worker process was killed; 2 the trace or an option is wrong; 130 interrupted.
    """
    with failing():
        check_drawable(plot)
        if trace not in (None, "data") and quick:
            raise ReplayError("--trace has its own size: leave out --quick", WRONG)
        workload = _trajectories(trace, data, TangramWorkload(seed, QUICK if quick else 1))
        jobs = given_trajectories(workload, nodes) if workload.given else evaluation(workload)
        with progress_bar(Console(stderr=True), "replaying ARL-Tangram §6", sum(job.weight for job in jobs)) as on_done:
            report = TangramReport(workload, run_all(jobs, processes, on_done))
        if plot is not None:
            from treadle.lab.evaluations.tangram.plot import draw  # matplotlib is not always there

            draw(report, plot)
    if as_json:
        typer.echo(json.dumps(report.document(), allow_nan=False))
    else:
        notes = TANGRAM_NOTES if trace is None and not quick else ()
        show_tangram(report, Console(width=None if sys.stdout.isatty() else 150), notes)
    if plot is not None:
        typer.echo(f"drawn: {plot}", err=True)


def planner(
    log: Annotated[Path, typer.Argument(help="A stimulus log; of a folder, the newest.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    last: Annotated[int, typer.Option(min=0, help="Print so many decisions, the latest.")] = 20,
    every: Annotated[bool, typer.Option("--all", help="Print all decisions.")] = False,
) -> None:
    """Repeat every decision of a scaling planner from its stimulus log, and compare.

    A stimulus log holds the configuration of a planner, its seed, all stimuli (opened and ended batches, waiting and
    running requests, progress reports, nodes) with their times, and all its commands. Equal stimuli give equal
    commands; a difference is a defect, or a change of the policy since. To get logs, set SCALING_PLANNER_STIMULUS_LOGS
    to a folder: each term of the planner begins a log there, ten are kept. They can be read while the planner runs.

    --json prints {"stimuli", "decisions", "same", "differences"}. The first hundred differences are listed, each as
    {"stimulus", "at_s", "description", "then", "again"}.

    Exit status: 0 all the same; 1 something differs; 2 the file is no stimulus log of this version.
    """
    with failing():
        made = _compared(log, None if every else last)
    if as_json:
        typer.echo(json.dumps(made.document()))
    else:
        show_decisions(made, Console(width=None if sys.stdout.isatty() else 150, markup=False))
    if not made.same:
        raise typer.Exit(FAILED)


def _compared(log: Path, last: int | None) -> Comparison:
    """Raises:
    ReplayError: it is no log, or cannot be read.
    """
    try:
        return compared(newest_log(log) if log.is_dir() else log, last)
    except LogError as error:
        raise ReplayError(str(error), WRONG) from error
    except OSError as error:
        raise ReplayError(f"cannot read {log} ({error.strerror}): name a stimulus log", WRONG) from error


def _run(
    jobs: Jobs, workload: DistrsWorkload, own: RewardTrace | None, processes: int, search_up_to: int
) -> DistrsReport:
    """First the search, while nothing else runs; then the replays."""
    usual = workload.trace("colocated") if own is None else workload.bounded(own)
    weight = sum(job.weight for job in jobs)
    with progress_bar(
        Console(stderr=True), "replaying DistRS §6" if own is None else "replaying", 1.1 * weight
    ) as on_done:
        taken = search_ms([count for count in REQUESTS if count <= search_up_to], workload.seed)
        on_done(SEARCH_WEIGHT * weight, "search time")
        results = replay(jobs, processes, on_done)
    return DistrsReport(usual.stages, len(usual.tasks), usual.max_extra_delay_s, results, taken)


def _replayable(path: Path) -> RewardTrace:
    """The trace in a file.

    Raises:
        ReplayError: it cannot be read, or has nothing to replay.
    """
    try:
        trace = read_trace(path)
    except TraceError as error:
        raise ReplayError(str(error), WRONG) from error
    except OSError as error:
        raise ReplayError(f"cannot read {path} ({error.strerror}): name a trace file", WRONG) from error
    if all(len(task.batches) < 2 for task in trace.tasks):
        raise ReplayError(f"{path}: each task has one batch, which is its history: give two or more of a task", WRONG)
    return trace


def _trajectories(trace: str | None, data: Path, workload: TangramWorkload) -> TangramWorkload:
    """The workload, with what a trace holds.

    Raises:
        ReplayError: it cannot be read.
    """
    try:
        if trace is None:
            return workload
        if trace == "data":
            return replace(workload, recordings=_recordings(data))
        given = read_trajectories(Path(trace))
    except TraceError as error:
        raise ReplayError(str(error), WRONG) from error
    except OSError as error:
        raise ReplayError(f"cannot read {trace} ({error.strerror}): name a trace file, or `data`", WRONG) from error
    needed, widest = max((step.least, trajectory.name) for trajectory in given for step in trajectory.steps)
    if needed > CLUSTER.cores:
        raise ReplayError(f"{trace}: {widest} needs {needed} cores, a node has {CLUSTER.cores}", WRONG)
    return replace(workload, given=given)


def _recordings(data: Path) -> tuple[Recording, ...]:
    try:
        return read_recordings(data)
    except OSError as error:
        problem = f"no recorded agents: cannot read {error.filename} ({error.strerror})"
        raise ReplayError(f"{problem}: set TREADLE_DATA to the folder with agents/ and traces/", WRONG) from error
