"""``treadle trace``."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from shared.api.otlp import ERROR, Span, TraceData
from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import exit_status
from treadle.cli.up import Home

WIDTH: Final = 40
"""Cells of the bar of the whole time."""
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
            Console().print(trace_table(msgspec.convert(found, TraceData)))


def trace_table(trace: TraceData) -> Table:
    """Return a trace as a table: a row for each span, children below their parents, with a bar on the common time."""
    spans = trace.spans
    start_s = min(one.start_s for one in spans)
    total_s = max(max(one.start_s + one.duration_s for one in spans) - start_s, 1e-6)
    table = Table(box=None, pad_edge=False)
    for name, justify in (("span", "left"), ("start", "right"), ("time", "right"), ("", "left"), ("", "left")):
        table.add_column(name, justify=justify, no_wrap=name != "")  # type: ignore[arg-type]
    for depth, span in _nested(spans, ""):
        bar = _bar((span.start_s - start_s) / total_s, span.duration_s / total_s)
        table.add_row(
            f"{'  ' * depth}{escape(span.name)}",
            f"{span.start_s - start_s:.2f} s",
            f"{span.duration_s:.2f} s",
            f"[{COLORS[_work(span)]}]{bar}[/]",
            escape(_end(span)),
        )
    return table


def _nested(spans: list[Span], parent: str, depth: int = 0) -> Iterator[tuple[int, Span]]:
    for one in spans:
        if one.parent_span_id == parent and not (one.name == "queue" and one.duration_s < SHORT_QUEUE_S):
            yield depth, one
            yield from _nested(spans, one.span_id, depth + 1)


def _work(span: Span) -> str:
    if span.name == "queue":
        return "queue"
    if span.attribute("treadle.call") is not None:
        return "model"
    return "execution" if span.attribute("treadle.execution_s") is not None else "whole"


def _bar(start: float, length: float) -> str:
    """Return a bar of characters. `start` and `length` are parts of the whole; every span has at least an eighth."""
    first = min(int(start * WIDTH), WIDTH - 1)
    eighths = max(1, min(round(length * WIDTH * 8), (WIDTH - first) * 8))
    return " " * first + EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _end(span: Span) -> str:
    """Return what a span ended with, in a few words."""
    if span.status.code == ERROR:
        return f"✗ {span.attribute('treadle.ended') or ''} {span.status.message}".replace("  ", " ")
    if (tokens := span.attribute("gen_ai.usage.output_tokens")) is not None:
        return f"{span.attribute('gen_ai.usage.input_tokens'):,} + {tokens:,} tokens"
    if (node := span.attribute("treadle.node")) is not None and (parked_s := span.attribute("treadle.parked_s")):
        return f"{node}, {parked_s:.2f} s parked"
    if node is not None:
        return str(node)
    if (ended := span.attribute("treadle.ended")) is None:
        return ""
    passed, score = span.attribute("treadle.passed"), span.attribute("treadle.score")
    mark = "" if passed is None else "✓ " if passed else "✗ "
    return f"{mark}{ended}" + (f", score {score:g}" if score is not None else "")
