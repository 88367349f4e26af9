"""``treadle demo --gpu``."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from shared.runtime.settings import TreadleSettings, load
from treadle.cli.grade import DISAGREES
from treadle.cli.proxy import WRONG, CommandFailed, exit_status
from treadle.model_demo.cases import SERVICES
from treadle.model_demo.demonstration import DemoOptions, demonstrate_models
from treadle.model_demo.models import ModelsMissing
from treadle.model_demo.references import ModelFailed
from treadle.model_demo.report import DemoProgress

LINE_EVERY_S = 15.0
"""Seconds between two lines where the output is no terminal."""
REAL_GPUS = (
    "this machine has NVIDIA GPUs, which a GPU manager uses instead of the described device of this demo; run it where "
    "there are none. Real services on these GPUs: docs/vllm-in-five-minutes.md"
)


def demo_gpu(minutes: float, seed: int, as_json: bool, console: Console) -> int:
    """Run the demo of model services, and return its exit status."""
    with exit_status("demo --gpu", "interrupted; its stack and its engines are stopped"):
        if any(Path("/dev").glob("nvidia[0-9]*")):
            raise CommandFailed(REAL_GPUS, WRONG)
        options = DemoOptions(minutes, seed, load(TreadleSettings).data)
        try:
            with _Display(console) as display:
                found = demonstrate_models(options, display.entered, display.changed)
        except (ModelsMissing, ModelFailed) as error:
            raise CommandFailed(str(error), WRONG) from error
    if as_json:
        typer.echo(msgspec.json.encode(report_of(found)).decode())
    else:
        show(found, console)
    return 0 if found.succeeded else DISAGREES


def report_of(found: DemoProgress) -> dict[str, object]:
    """Return the result for programs: the counts, with two times of each service instead of all."""
    report: dict[str, object] = msgspec.to_builtins(found)
    report["services"] = {
        name: {
            **{field: value for field, value in msgspec.to_builtins(one).items() if field != "seconds"},
            "median_s": round(one.median_s(), 3),
            "p99_s": round(one.p99_s(), 3),
        }
        for name, one in found.services.items()
    }
    return {**report, "swaps": found.engines.swaps, "exceeded": found.exceeded, "succeeded": found.succeeded}


class _Display:
    """Progress for people: a table that is drawn anew, or lines where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._line_s = 0.0

    def __enter__(self) -> "_Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def entered(self, title: str) -> None:
        self._console.print(escape(title), highlight=False, soft_wrap=True)

    def changed(self, progress: DemoProgress) -> None:
        if self._console.is_terminal:
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False, transient=True)
                self._live.start()
            self._live.update(progress_table(progress), refresh=True)
        elif progress.elapsed_s >= self._line_s:
            self._line_s = progress.elapsed_s + LINE_EVERY_S
            self._console.print(escape(line_of(progress)), highlight=False, soft_wrap=True)


def line_of(progress: DemoProgress) -> str:
    """Return the counts so far as one line."""
    states = ", ".join(f"{name} {state}" for name, state in sorted(progress.states.items()))
    return (
        f"{progress.elapsed_s / 60:5.1f} min  {states}; {progress.used_gb:.2f} of {progress.budget_gb:.2f} GB; "
        f"{progress.judged} judged, {progress.wrong} wrong, {progress.masked} masked, {progress.kills} kills, "
        f"{progress.engines.swaps} swaps"
    )


def progress_table(progress: DemoProgress) -> Table:
    """Return the state now: one line for each service."""
    title = (
        f"{progress.elapsed_s / 60:.1f} of {progress.minutes:g} min, memory {progress.used_gb:.2f} of "
        f"{progress.budget_gb:.2f} GB (peak {progress.peak_gb:.2f}), {progress.engines.swaps} swaps"
    )
    table = Table(title=title, title_justify="left", pad_edge=False, box=None)
    for column in ("SERVICE", "STATE", "JUDGED", "WRONG", "MASKED", "REPEATED", "KILLS", "MEDIAN", "P99"):
        table.add_column(column, justify="left" if column in ("SERVICE", "STATE") else "right")
    for name in SERVICES:
        one = progress.services[name]
        wrong = f"[bold red]{one.wrong}[/]" if one.wrong else "0"
        times = (f"{one.median_s():.1f} s", f"{one.p99_s():.1f} s")
        state = escape(progress.states.get(name, "cold"))
        table.add_row(name, state, f"{one.judged:,}", wrong, str(one.masked), str(one.repeated), str(one.kills), *times)
    return table


def show(found: DemoProgress, console: Console) -> None:
    """Print the result for people."""
    console.rule("Three real models, room for two")
    console.print(progress_table(found))
    console.print()
    for passed, text in _findings(found):
        console.print(f"{'[green]✓[/]' if passed else '[red]✗[/]'} {escape(text)}", soft_wrap=True)
    for why, number in found.masked_reasons.items():
        console.print(escape(f"- masked {number} x {why}"), soft_wrap=True, highlight=False)
    for wrong in found.wrong_answers:
        console.print(f"[red]wrong: {escape(wrong)}[/]", soft_wrap=True, highlight=False)


def _findings(found: DemoProgress) -> Iterator[tuple[bool, str]]:
    """Yield what was to be shown: whether it is so, and a sentence."""
    engines = found.engines
    yield found.wrong == 0, f"{found.judged:,} answers equal those of the models alone; {found.wrong} are wrong"
    memory = (
        f"{found.peak_gb:.2f} GB at most, budget {found.budget_gb:.2f} GB, all three awake {found.together_gb:.2f} GB"
    )
    lacked = engines.out_of_memory
    yield not found.exceeded and not lacked, f"memory of the engines: {memory}; {lacked} steps lacked memory"
    steps = f"steps: {_listed(engines.steps)}; failed: {_listed(engines.failed)}"
    yield (
        all(one.judged for one in found.services.values()),
        f"{found.kills} engines killed, {engines.swaps} evictions ({_listed(engines.evictions)}); {steps}",
    )


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
