"""``treadle replay search``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from treadle.cli.replay_errors import WRONG, ReplayError, check_drawable, failing
from treadle.lab.evaluations.pool import progress_bar
from treadle.lab.evaluations.search.jobs import QUICK, SEEDS, SearchWorkload, evaluation, run_all
from treadle.lab.evaluations.search.report import SearchReport
from treadle.lab.evaluations.search.table import NOTES, show
from treadle.lab.replay.search.trace import SearchBatch
from treadle.lab.traces.rewards import TraceError
from treadle.lab.traces.search import read_search_trace


def search(
    trace: Annotated[Path | None, typer.Option(help="Trajectories of your own: a file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG. Needs treadle[plot].")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds, from 1 on. With 1 no spread is printed.")] = SEEDS,
    quick: Annotated[bool, typer.Option("--quick", help=f"Batches and limits divided by {QUICK}.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes; with 1 there is none.")] = 2,
) -> None:
    """ARL-Tangram §6.2, DeepSearch: a training step of agents that call external services with limits.

    Trajectories think and call in virtual time; the services count what they admit. In the mesh its own dispatcher
    grants calls. It is compared with trajectories that call by themselves, with three retries and a timeout of 600 s,
    and with a limiter in each process of the trainer.

    A trace is JSON Lines, one trajectory a line; all begin together: {"trajectory", "calls": [{"think_s"?, "upstream"?:
    "search" or "pages", "work"?}], "last_s"?}. work is the latency relative to the service's median.

    Exit status: 0 replayed; 1 a worker process was killed; 2 the trace or an option is wrong; 130 interrupted.
    """
    with failing():
        check_drawable(plot)
        if trace is not None and quick:
            raise ReplayError("--trace has its own size: leave out --quick", WRONG)
        workload = SearchWorkload(seeds, QUICK if quick else 1, () if trace is None else _trajectories(trace))
        weight = sum(job.weight for job in evaluation(workload))
        with progress_bar(Console(stderr=True), "replaying DeepSearch", weight) as on_done:
            report = SearchReport(workload, run_all(workload, processes, on_done))
        if plot is not None:
            from treadle.lab.evaluations.search.plot import draw  # matplotlib is not always there

            draw(report, plot)
    if as_json:
        typer.echo(json.dumps(report.document(), allow_nan=False))
    else:
        standard = trace is None and not quick and seeds == SEEDS
        show(report, Console(width=None if sys.stdout.isatty() else 150), NOTES if standard else ())
    if plot is not None:
        typer.echo(f"drawn: {plot}", err=True)


def _trajectories(trace: Path) -> SearchBatch:
    """Raises:
    ReplayError: it cannot be read.
    """
    try:
        return read_search_trace(trace)
    except TraceError as error:
        raise ReplayError(str(error), WRONG) from error
    except OSError as error:
        raise ReplayError(f"cannot read {trace} ({error.strerror}): name a trace file", WRONG) from error
