"""``treadle up``."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from shared.runtime.stack_state import AlreadySupervised, ServiceState, StackError
from treadle.stack.model_service_file import file_warnings
from treadle.stack.operate import run_stack, start_detached
from treadle.stack.services import PROXY

Home = Annotated[
    Path | None,
    typer.Option(envvar="TREADLE_HOME", help="Folder of the stack; two homes are two stacks."),
]


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when it is healthy.")] = False,
    port: Annotated[
        int | None, typer.Option(help="Port of the proxy; 0 takes a free one. [default: PROXY_PORT, or 8700]")
    ] = None,
    home: Home = None,
) -> None:
    """Start the stack and wait until every service is healthy.

    In the foreground all logs are shown and Ctrl-C stops the stack. Other ports are set by the environment
    (CPU_MANAGER_PORT ...); TREADLE_REDIS_URL and TREADLE_DATABASE_URL name servers to use instead of the embedded ones.
    """
    if home is not None:
        os.environ["TREADLE_HOME"] = str(home)
    if port is not None:
        os.environ["PROXY_PORT"] = str(port)
    try:
        if not detach:
            raise typer.Exit(run_stack(os.environ, sys.stdout))
        state = start_detached(os.environ, _progress)
    except AlreadySupervised as already:
        typer.echo(already)
        typer.echo("settings that have changed since are not applied; for them: treadle down, then treadle up")
    except StackError as error:
        typer.echo(f"treadle up: {error}", err=True)
        raise typer.Exit(1) from error
    else:
        names = {service.name for service in state.services}
        where = f": {state.url(PROXY)}" if PROXY in names else ""
        typer.echo(f"the stack is up{where}. Stop it with: treadle down")
        for warning in file_warnings(os.environ):
            typer.echo(f"treadle up: WARNING: {warning}", err=True)


def _progress(service: ServiceState) -> None:
    typer.echo(f"{service.name:<16} {service.state:<10} {service.url}  {service.last_end}".rstrip())
