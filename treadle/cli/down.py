"""``treadle down``."""

import os

import typer

from shared.runtime.stack_state import StackError
from treadle.cli.up import Home
from treadle.stack.home import home_path
from treadle.stack.operate import stop_stack


def register(app: typer.Typer) -> None:
    app.command("down")(down)


def down(home: Home = None) -> None:
    """Stop the stack: the services, then the servers, with all processes that they started.

    HTTP calls may end (10 s), running programs are interrupted, and processes that run after STACK_GRACE (15 s) are
    killed. Accepted work is kept: after the next treadle up, queued and interrupted work runs from its start.
    """
    root = home.absolute() if home else home_path(os.environ)
    try:
        stopped = stop_stack(root)
    except StackError as error:
        typer.echo(f"treadle down: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo("the stack is down" if stopped else f"no stack is up in {root}")
