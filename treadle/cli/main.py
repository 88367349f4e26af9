"""``treadle``: a list of commands that imports none of them, so that ``--help`` is quick.

A command ``grade`` is the module ``treadle.cli.grade`` with a function ``register(app: typer.Typer) -> None``, which
declares one command, or a callback and the commands of a group. It is imported when the command is called, and only
then. Commands run with the packages of the mesh: `main` replaces its process by one that has them (`treadle.mesh`).
Without the extra ``mesh`` only ``--version``, ``--help`` and the commands in `LIGHT` run.
"""

import importlib
import importlib.metadata
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from treadle.mesh import extra_is_installed, mesh_command

COMMANDS = {
    "up": "Start the stack and wait until every service is healthy.",
    "down": "Stop the stack.",
    "status": "Show every service of the stack.",
    "upgrade": "Bring the data of a stopped stack to this release.",
    "repair": "Cut a damaged file of Valkey back to its last whole command.",
    "tenants": "Show and set the weights of tenants.",
    "quota": "Show, watch and set quotas: slots and rates of external APIs.",
    "services": "Show and watch model services: reward models, judges and teachers on GPUs.",
    "workers": "Show, add, drain and remove inference engines behind the trajectory router.",
    "trace": "Show what a trajectory's time was spent on; export its trace to OpenTelemetry.",
    "grade": "Grade a file of programs or answers as one batch.",
    "demo": "Grade HumanEval's references and mutants of them on a stack of your own.",
    "bench": "Measure what the mesh costs, beside its targets and its peers.",
    "replay": "Reproduce a paper's evaluation in virtual time, or decisions from a log.",
    "openapi": "Print the OpenAPI document of the proxy.",
}
"""Command (and module) -> its line in ``treadle --help``."""
LIGHT = frozenset({"openapi"})
"""Commands that run without the extra ``mesh``."""


class LazyGroup(TyperGroup):
    """Group with names and summaries of all commands. It imports the called command alone."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary), name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the called command with its module imported, if its packages are installed."""
        name, command, rest = super().resolve_command(ctx, args)
        runs = name in LIGHT or extra_is_installed()
        return (name, load_command(str(name)) if command and runs else command, rest)


def load_command(name: str) -> Any:
    """Import the module of ``name`` and build its command."""
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    importlib.import_module(f"treadle.cli.{name}").register(single)
    command = get_command(single)
    command.name = name
    return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"treadle {importlib.metadata.version('treadle')}")
        raise typer.Exit


@app.callback()
def treadle(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The mesh beside your RL trainer: rewards and sandboxes, action by action."""


def main() -> None:
    """Entry point of the installed ``treadle``."""
    command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    completes = "_TREADLE_COMPLETE" in os.environ
    if (command in COMMANDS or completes) and extra_is_installed():
        again = mesh_command("treadle.cli.main", *sys.argv[1:])
        os.execv(again[0], again)
    if command in COMMANDS and command not in LIGHT:
        sys.exit(f"treadle {command} needs the mesh. Install it with: pip install 'treadle[mesh]'")
    app(prog_name="treadle")


if __name__ == "__main__":
    app(prog_name="treadle")
