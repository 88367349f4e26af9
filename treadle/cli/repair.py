"""``treadle repair``."""

import os

import typer

from shared.runtime.stack_state import StackError
from treadle.cli.up import Home
from treadle.stack.operate import repair_store


def register(app: typer.Typer) -> None:
    app.command("repair")(repair)


def repair(home: Home = None) -> None:
    """Cut a damaged file of Valkey back to its last whole command; a copy of the damaged file is kept.

    Only for a stack that is down and does not start because of that file. The contents of the file behind the damage
    are lost. They may contain acknowledged writes: accepted actions and answers. Postgres (histories of batches,
    archived answers) is not changed.
    """
    if home is not None:
        os.environ["TREADLE_HOME"] = str(home)
    try:
        found, copy = repair_store(os.environ)
    except StackError as error:
        typer.echo(f"treadle repair: {error}", err=True)
        raise typer.Exit(1) from error
    if copy is None:
        typer.echo(f"{found.path} is whole ({found.commands} commands, {found.size} bytes): nothing to repair")
        return
    typer.echo(
        f"{found.path} was damaged at byte {found.whole} of {found.size}. It now ends there, after {found.commands} "
        f"whole commands.\nLost: the {found.size - found.whole} bytes behind, which may hold accepted actions and "
        f"answers.\nThe damaged file is kept as {copy}.\nStart the stack with: treadle up"
    )
