"""``treadle upgrade``."""

import os
from typing import Annotated

import typer

from shared.runtime.stack_state import StackError
from treadle.cli.up import Home
from treadle.stack.operate import upgrade_stack


def register(app: typer.Typer) -> None:
    app.command("upgrade")(upgrade)


def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Show the steps and their needs; change nothing.")] = False,
    home: Home = None,
) -> None:
    """Upgrade the data of a stopped stack to this release: Alembic's migrations in Postgres, the schema of Valkey.

    The embedded servers run during the upgrade. If the need of a step is not met (an empty journal, for example), the
    command reports it and changes nothing. It rejects data of a newer release. ``treadle up`` does the same by itself.
    """
    if home is not None:
        os.environ["TREADLE_HOME"] = str(home)
    try:
        lines = upgrade_stack(os.environ, check=check)
    except StackError as error:
        typer.echo(f"treadle upgrade: {error}", err=True)
        raise typer.Exit(1) from error
    for line in lines:
        typer.echo(line)
