"""``treadle replay gpu``."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from treadle.cli.replay_errors import WRONG, ReplayError, check_drawable, failing
from treadle.lab.evaluations.gpu.jobs import QUICK_SIZES, SEEDS, GpuWorkload, evaluation, run_all
from treadle.lab.evaluations.gpu.report import GpuReport
from treadle.lab.evaluations.gpu.table import show
from treadle.lab.evaluations.pool import progress_bar
from treadle.lab.replay.gpu.evaluation import SIZES
from treadle.lab.replay.gpu.kernels import MeasuredKernel
from treadle.lab.traces.kernels import KERNELS, read_kernels
from treadle.lab.traces.rewards import TraceError


def gpu(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG. Needs treadle[plot].")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds, from 1 on. With 1 no spread is printed.")] = SEEDS,
    restore_s: Annotated[
        float | None,
        typer.Option(
            "--restore-s",
            min=0.001,
            max=3600.0,
            help="Seconds of each restore. [default: 0.1 + the copy of a GPU's part of the weights]",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two batch sizes, no variants: two CPU minutes for each seed.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes; with 1 there is none.")] = 2,
    data: Annotated[
        Path, typer.Option(envvar="TREADLE_DATA", help="Folder with measured kernels, for DistRS's evaluation.")
    ] = Path("../shared/data"),
) -> None:
    """ARL-Tangram §6.3, §6.4: nine teachers and a judge on forty GPUs, in virtual time.

    Trajectories generate, and call a model. The mesh's own dispatcher grants chunks of GPUs, and each node's own policy
    evicts and restores engines. It is compared with a static partition and with a FIFO swapper like ServerlessLLM.
    Also: swaps of one GPU against LRU and Belady, and DistRS's evaluation with measured kernels as its GPU stage. The
    latter is left out if the data folder has none.

    Exit status: 0 replayed; 1 a worker process was killed; 2 an option is wrong; 130 interrupted.
    """
    with failing():
        check_drawable(plot)
        workload = GpuWorkload(
            seeds, QUICK_SIZES if quick else SIZES, variants=not quick, restore_s=restore_s, kernels=_kernels(data)
        )
        weight = sum(job.weight for job in evaluation(workload))
        with progress_bar(Console(stderr=True), "replaying ARL-Tangram, GPUs", weight) as on_done:
            report = GpuReport(workload, run_all(workload, processes, on_done))
        if plot is not None:
            from treadle.lab.evaluations.gpu.plot import draw  # matplotlib is not always there

            draw(report, plot)
    if as_json:
        typer.echo(json.dumps(report.document(), allow_nan=False))
    else:
        show(report, Console(width=None if sys.stdout.isatty() else 150))
    if plot is not None:
        typer.echo(f"drawn: {plot}", err=True)


def _kernels(data: Path) -> tuple[MeasuredKernel, ...]:
    """Return the measured kernels; none, with a message, if the folder has none.

    Raises:
        ReplayError: they are not as expected.
    """
    try:
        return read_kernels(data)
    except FileNotFoundError:
        message = f"{data / KERNELS} is not there, so DistRS's evaluation with kernels is left out: set TREADLE_DATA"
        typer.echo(f"treadle replay: {message}", err=True)
        return ()
    except TraceError as error:
        raise ReplayError(str(error), WRONG) from error
    except OSError as error:
        raise ReplayError(
            f"cannot read {error.filename} ({error.strerror}): set TREADLE_DATA to the data", WRONG
        ) from error
