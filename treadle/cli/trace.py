"""``treadle trace``."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.api.otlp import ERROR, Span, TraceData
from shared.runtime.numbers import number
from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import exit_status
from treadle.cli.up import Home

MOST_WIDTH, LEAST_WIDTH = 40, 10
"""Cells of the bar of the whole time."""
BESIDE: Final = 76
"""Cells beside the bars: names, times and ends."""
MOST_NAME, MOST_END = 40, 60
"""Characters of a name and of an end."""
SHORT_QUEUE_S: Final = 0.005
"""A shorter wait for units has no row."""
COLORS: Final = {"queue": "yellow", "model": "magenta", "execution": "green", "whole": "cyan"}
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def register(app: typer.Typer) -> None:
    app.command("trace")(trace)


def trace(
    trajectory: Annotated[str, typer.Argument(metavar="TRAJECTORY", help="Its id.", show_default=False)],
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Show what a trajectory's time was spent on: its actions, their queueing, its model calls, its grading.

    --json prints the trace in OpenTelemetry's format, as collectors and viewers take it:

    treadle trace ID --json | curl -d @- -H 'content-type: application/json' http://COLLECTOR:4318/v1/traces

    Exit status: 2 there is no such trajectory; 3 no stack answers.
    """
    with exit_status("trace"):
        found = GroupOptions(url, home, as_json).call(lambda client: client.trajectories.trace(trajectory))
        if as_json:
            typer.echo(msgspec.json.encode(found))
        else:
            console = Console()
            console.print(trace_table(msgspec.convert(found, TraceData), console.width))


def trace_table(trace: TraceData, columns: int) -> Table:
    """Return a trace as a table: a row for each span, children below their parents, with a bar on the common time.

    Args:
        trace: at least one span.
        columns: width of the terminal.
    """
    spans = trace.spans
    width = max(LEAST_WIDTH, min(MOST_WIDTH, columns - BESIDE))
    start_s = min(one.start_s for one in spans)
    total_s = max(max(one.start_s + one.duration_s for one in spans) - start_s, 1e-6)
    table = Table(box=None, pad_edge=False)
    table.add_column("span", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column(no_wrap=True, min_width=width)
    table.add_column()
    for depth, span in _nested(spans):
        bar = _bar((span.start_s - start_s) / total_s, span.duration_s / total_s, width)
        table.add_row(
            f"{'  ' * depth}{_text(span.name, MOST_NAME)}",
            f"{span.start_s - start_s:.2f} s",
            f"{span.duration_s:.2f} s",
            f"[{COLORS[_work(span)]}]{bar}[/]",
            _text(_end(span), MOST_END),
        )
    return table


def _nested(spans: list[Span]) -> Iterator[tuple[int, Span]]:
    """Yield (depth, span), each before its children. Short waits are left out."""
    children: dict[str, list[Span]] = {}
    for one in reversed(spans):
        if one.name != "queue" or one.duration_s >= SHORT_QUEUE_S:
            children.setdefault(one.parent_span_id, []).append(one)
    waiting = [(0, one) for one in children.pop("", [])]
    while waiting:
        depth, span = waiting.pop()
        yield depth, span
        waiting += [(depth + 1, one) for one in children.pop(span.span_id, [])]


def _text(text: str, most: int) -> str:
    """Return a text of others as the table may show it: printable, short, without markup."""
    shown = "".join(one if one.isprintable() else " " for one in text)
    return escape(shown if len(shown) <= most else f"{shown[: most - 1]}…")


def _work(span: Span) -> str:
    if span.name == "queue":
        return "queue"
    if span.attribute("treadle.call") is not None:
        return "model"
    return "execution" if span.attribute("treadle.execution_s") is not None else "whole"


def _bar(start: float, length: float, width: int) -> str:
    """Return a bar of characters. `start` and `length` are parts of the whole; every span has at least an eighth."""
    first = min(int(start * width), width - 1)
    eighths = max(1, min(round(length * width * 8), (width - first) * 8))
    return " " * first + EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _end(span: Span) -> str:
    """Return what a span ended with, in a few words."""
    ended, passed, score = (span.attribute(f"treadle.{name}") for name in ("ended", "passed", "score"))
    if span.status.code == ERROR:
        return " ".join(["✗", *([str(ended)] if ended else []), span.status.message])
    if (tokens := span.attribute("gen_ai.usage.output_tokens")) is not None:
        return f"{span.attribute('gen_ai.usage.input_tokens'):,} + {tokens:,} tokens"
    if ended is not None:
        mark = "" if passed is None else "✓ " if passed else "✗ "
        return f"{mark}{ended}" + (f", score {number(score)}" if isinstance(score, int | float) else "")
    parts = [str(node)] if (node := span.attribute("treadle.node")) else []
    for name, what in (("restore_s", "until its model service was resident"), ("parked_s", "parked")):
        if isinstance(seconds := span.attribute(f"treadle.{name}"), float):
            parts.append(f"{seconds:.2f} s {what}")
    return ", ".join(parts)
