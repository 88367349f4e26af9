"""``treadle status``."""

import json
import os
from typing import Annotated

import typer

from shared.cli.up import Home
from shared.stack.errors import StackError
from shared.stack.home import home_path
from shared.stack.operate import current_state
from shared.stack.state import Phase, StackState

NOT_UP = 3
"""Exit status when no stack is up, as init scripts have it."""


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    home: Home = None,
) -> None:
    """Show every service of the stack: process, address, state, restarts. Exit status 3 when no stack is up."""
    root = home.absolute() if home else home_path(os.environ)
    try:
        state = current_state(root)
    except StackError as error:
        typer.echo(f"treadle status: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"phase": state.phase if state else None, "services": _rows(state)}))
    elif state is None:
        typer.echo(f"no stack is up in {root}: start one with treadle up")
    else:
        _show(state)
    if state is None:
        raise typer.Exit(NOT_UP)


def _rows(state: StackState | None) -> list[dict[str, str | int | None]]:
    services = state.services if state else ()
    return [
        {
            "name": one.name,
            "pid": one.pid,
            "url": one.url,
            "state": one.state,
            "restarts": one.restarts,
            "last_end": one.last_end,
        }
        for one in services
    ]


def _show(state: StackState) -> None:
    if state.phase is not Phase.UP:
        typer.echo(f"the stack is {state.phase}")
    typer.echo(f"{'SERVICE':<16} {'STATE':<11} {'PID':>8}  {'RESTARTS':>8}  URL")
    for one in state.services:
        typer.echo(f"{one.name:<16} {one.state:<11} {one.pid or '-':>8}  {one.restarts:>8}  {one.url}")
        if one.last_end:
            typer.echo(f"{'':<16} last end: {one.last_end}")
