"""``treadle bench``."""

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop
from rich.console import Console

from shared.messages.environments import LOCAL
from shared.runtime.stack_state import StackError
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.containers import bench_image
from treadle.lab.bench.figures import BenchError, BenchReport, Skipped
from treadle.lab.bench.mesh import BenchMesh, own_mesh, running_mesh
from treadle.lab.bench.peers.environment import FOLDER, peers_python
from treadle.lab.bench.peers.process import running_peers
from treadle.lab.bench.sizes import QUICK, Sizes
from treadle.lab.bench.suite import MEASUREMENTS, NO_STACK, need_a_stack, run_all
from treadle.lab.bench.table import show
from treadle.stack.collector import settle_collector
from treadle.testing.servers import running_valkey, temporary_home


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    peers: Annotated[bool, typer.Option("--peers", help="Beside dramatiq and Ray, in the same run.")] = False,
    docker: Annotated[
        bool, typer.Option("--docker", help="Environments in containers as well; needs an engine and its socket.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="About a minute, for a coarse result.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Only this one; may be repeated: {', '.join(MEASUREMENTS)}.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Address of a running proxy. [default: a stack of its own]")] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores that the own stack's node offers.")] = 2,
    seconds: Annotated[float | None, typer.Option(min=0.05, help="Length of a round.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds; a figure is their median.")] = None,
    callers: Annotated[int | None, typer.Option(min=1, help="Callers of single actions.")] = None,
    bulk: Annotated[int | None, typer.Option(min=1, help="Reward requests of a bulk batch.")] = None,
    beside: Annotated[int | None, typer.Option(min=1, help="Lines of another tenant's bulk call.")] = None,
    results: Annotated[int | None, typer.Option(min=1, help="Results that pass through a small Valkey.")] = None,
    queued: Annotated[int | None, typer.Option(min=1, help="Actions that wait when a leader is killed.")] = None,
    peers_venv: Annotated[Path, typer.Option(help="The environment that --peers makes or uses.")] = FOLDER,
) -> None:
    """Measure the costs of the mesh and compare them with its targets. Five minutes; with --peers or --docker more.

    Do not use the machine during the run. Progress goes to standard error. Exit status 1 if a measurement failed; a
    missed target is shown and is no error.
    """
    chosen: dict[str, Any] = {"seconds": seconds, "rounds": rounds, "callers": callers, "bulk": bulk}
    chosen |= {"beside": beside, "results": results, "queued": queued}
    sizes = replace(QUICK if quick else Sizes(), **{name: value for name, value in chosen.items() if value is not None})
    names = [name for name in MEASUREMENTS if not only or name in only]
    try:
        if unknown := set(only or ()) - MEASUREMENTS.keys():
            raise BenchError(f"--only {min(unknown)} is unknown; there are {', '.join(MEASUREMENTS)}")
        report = _measure(names, sizes, url, cores, peers_venv if peers else None, docker=docker)
    except (BenchError, StackError) as error:
        typer.echo(f"treadle bench: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        show(report, Console(width=None if sys.stdout.isatty() else 132))
    if report.failed:
        raise typer.Exit(1)


def _measure(
    names: list[str], sizes: Sizes, url: str | None, cores: int, venv: Path | None, *, docker: bool
) -> BenchReport:
    """Start stack and peers on the main thread, because children are bound to it; measure on an event loop."""
    settle_collector()  # a collection of all that this process has imported would count as latency of the mesh
    mesh: AbstractContextManager[BenchMesh] = nullcontext(running_mesh(url) if url else NO_STACK)
    if not url and need_a_stack(names):
        mesh = own_mesh(cores, engine=docker)
    skipped: list[Skipped] = []
    python = None
    if venv is not None:
        try:
            python = peers_python(venv, _log)
        except BenchError as error:
            skipped.append(Skipped("peers", str(error)))
    with ExitStack() as entered:
        images: tuple[str, ...] = (LOCAL,)
        if docker:
            _log("making an image from this machine's files")
            images = (LOCAL, entered.enter_context(bench_image()))
        if url or need_a_stack(names):
            _log(f"measuring {url}" if url else "starting a stack")
        ours, root = entered.enter_context(mesh), entered.enter_context(temporary_home())
        valkey = entered.enter_context(running_valkey(root)) if python else ""
        return uvloop.run(_run(names, Bench(ours, sizes, _log, images), python, valkey, skipped))


async def _run(names: list[str], bench: Bench, python: Path | None, valkey: str, skipped: list[Skipped]) -> BenchReport:
    if python is None:
        return await run_all(bench, names, skipped)
    async with running_peers(python, valkey, _log) as (peers, missing):
        return await run_all(replace(bench, peers=peers), names, [*skipped, *missing])


def _log(line: str) -> None:
    typer.echo(line, err=True)
