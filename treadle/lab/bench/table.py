"""The report for people: one table."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from treadle.lab.bench.figures import BenchFigure, BenchReport, Target

_UNITS = {"us": "µs", "x": "×"}
_SENSES = {"at least": "≥", "at most": "≤"}


def show(report: BenchReport, console: Console) -> None:
    """Print the figures, then the missing measurements."""
    table = Table(title="What the mesh costs", title_justify="left", pad_edge=False)
    table.add_column("Figure", no_wrap=True)
    table.add_column("What it is")
    table.add_column("Value", justify="right", no_wrap=True)
    table.add_column("Target")
    table.add_column("Met", justify="center")
    for one in report.figures:
        table.add_row(one.name, one.what, quantity(one.value, one.unit), _wanted(one), _verdict(one))
    console.print(table)
    machine = report.machine
    console.print(
        f"{machine.cpus} CPUs, Python {machine.python}, {machine.loop_ms:.0f} ms for a loop of a million additions, "
        f"load {machine.load_before:.1f} before, took {report.took_s:.0f} s"
    )
    for word, those in (("not measured", report.skipped), ("failed", report.failed)):
        for one_skipped in those:
            console.print(f"{word}: {one_skipped.name}: {one_skipped.reason}", markup=False)


def quantity(value: float, unit: str) -> str:
    """Format a number with three significant digits and its unit."""
    digits = 0 if abs(value) >= 100 or not unit else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {_UNITS.get(unit, unit)}".rstrip()


def _wanted(one: BenchFigure) -> str:
    if one.target is None:
        return ""
    return f"{_SENSES[one.target.sense]} {_bound(one.target)} {_UNITS.get(one.unit, one.unit)}" + (
        f" ({one.target.why})" if one.target.why else ""
    )


def _bound(target: Target) -> str:
    return f"{target.bound:,g}" if target.bound < 1e6 else f"{target.bound:,.0f}"


def _verdict(one: BenchFigure) -> Text:
    if one.met is None:
        return Text("")
    return Text("yes", style="green") if one.met else Text("no", style="bold red")
