"""Commands that call a proxy: its address, a first check, and exit statuses of errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import typer

from shared.runtime.settings import WrongSetting
from shared.runtime.stack_state import StackError
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import TreadleError, Unavailable
from treadle.stack.home import home_path
from treadle.stack.operate import current_state
from treadle.stack.services import PROXY

WRONG, NOT_UP, INTERRUPTED = 2, 3, 130
"""Exit statuses: the file, an option or a setting is wrong; no stack answers; Ctrl-C."""


BATCH_CANCELLED = "interrupted; the batch was cancelled"


class CommandFailed(Exception):
    """An error that ends the command with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def find_proxy(environ: Mapping[str, str], url: str | None = None, home: Path | None = None) -> str | None:
    """Return the proxy's address: `url`, else TREADLE_URL, else that of the running stack in `home` (TREADLE_HOME).

    Returns:
        None if no address is given and no stack with a proxy is up.
    Raises:
        StackError: the stack's state cannot be read.
    """
    if url or (url := environ.get("TREADLE_URL")):
        return url
    state = current_state(home.absolute() if home else home_path(environ))
    services = state.services if state else ()
    return next((service.url for service in services if service.name == PROXY), None)


def proxy_url(url: str | None, home: Path | None) -> str:
    """Return the proxy's address (`find_proxy`).

    Raises:
        CommandFailed: no address is given and no stack is up.
        StackError: the stack's state cannot be read.
    """
    found = find_proxy(os.environ, url, home)
    if found is None:
        raise CommandFailed("no stack is up: start one with treadle up --detach, or name a proxy with --url", NOT_UP)
    return found


async def check_proxy(client: AsyncTreadle) -> None:
    """Check once that a proxy answers. Later calls are retried for a minute.

    Raises:
        CommandFailed: none answers.
    """
    try:
        await client.probe()
    except Unavailable as error:
        raise CommandFailed(f"no stack answers at {client.url}: start one with treadle up --detach", NOT_UP) from error


@contextmanager
def exit_status(command: str, interrupted: str = "interrupted") -> Iterator[None]:
    """Print an error as one line on stderr, and exit with its status. `interrupted`: the line after Ctrl-C."""
    try:
        yield
    except (CommandFailed, StackError, TreadleError, WrongSetting) as error:
        typer.echo(f"treadle {command}: {error}", err=True)
        away = isinstance(error, (StackError, Unavailable))
        raise typer.Exit(error.status if isinstance(error, CommandFailed) else NOT_UP if away else WRONG) from error
    except KeyboardInterrupt:
        typer.echo(f"treadle {command}: {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None
