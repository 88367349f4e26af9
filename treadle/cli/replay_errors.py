"""Errors and exit statuses of ``treadle replay``."""

from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

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
