"""Errors and exit statuses of ``treadle replay``."""

import importlib.util
import os
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path

import typer

FAILED, WRONG, INTERRUPTED = 1, 2, 130
"""Exit statuses."""


class ReplayError(Exception):
    """Error that ends the command with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def failing() -> Iterator[None]:
    """Turn an error into one line on stderr and an exit status."""
    try:
        yield
    except ReplayError as error:
        typer.echo(f"treadle replay: {error}", err=True)
        raise typer.Exit(error.status) from error
    except BrokenProcessPool as error:
        typer.echo("treadle replay: a worker process was killed (out of memory?): try --processes 1", err=True)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        typer.echo("treadle replay: interrupted; nothing was printed or drawn", err=True)
        raise typer.Exit(INTERRUPTED) from None


def check_drawable(plot: Path | None) -> None:
    """Check before the long run that the picture can be drawn.

    Raises:
        ReplayError: it cannot.
    """
    if plot is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ReplayError("--plot needs matplotlib: install treadle[plot], or leave --plot out", WRONG)
    folder = plot.absolute().parent
    if plot.is_dir() or not folder.is_dir() or not os.access(plot if plot.exists() else folder, os.W_OK):
        raise ReplayError(f"cannot write --plot {plot}: name a file in a folder that is there and yours", WRONG)
