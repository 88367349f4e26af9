"""Output of the commands that watch: a table that changes in place on a terminal, else one table after the other."""

import time
from collections.abc import Callable

import typer
from rich.console import RenderableType
from rich.live import Live

from treadle.cli.tables import output


def watch_lines(look: Callable[[], str | bytes], seconds: float) -> None:
    """Write what each look returns as a line, until an error or Ctrl-C."""
    while True:
        typer.echo(look())
        time.sleep(seconds)


def watch_tables(look: Callable[[], RenderableType], seconds: float) -> None:
    """Show what each look returns, until an error or Ctrl-C.

    Into a file or a pipe each table is printed that differs from the one before.
    """
    console, before = output(), ""
    if console.is_terminal:
        with Live(look(), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(seconds)
                live.update(look(), refresh=True)
    while True:
        with console.capture() as captured:
            console.print(look(), crop=False)
        if (text := captured.get()) != before:
            before = text
            typer.echo(text, nl=False)
        time.sleep(seconds)
