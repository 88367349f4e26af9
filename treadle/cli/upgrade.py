"""``treadle upgrade``."""

import os
from typing import Annotated

import typer

from shared.runtime.stack_errors import StackError
from treadle.cli.up import Home
from treadle.stack.operate import upgrade_stack


def register(app: typer.Typer) -> None:
    app.command("upgrade")(upgrade)


def upgrade(
    check: Annotated[
        bool, typer.Option("--check", help="Show what would be done and what it needs; change nothing.")
    ] = False,
    home: Home = None,
) -> None:
    """Bring the data of a stopped stack to this release: Alembic's migrations in Postgres, the schema of Valkey.

    The embedded servers are started for it and stopped again. A step that needs something first, such as an empty
    journal, says so and changes nothing. Data of a newer release is refused. ``treadle up`` does the same by itself.
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
