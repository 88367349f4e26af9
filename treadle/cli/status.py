"""``treadle status``."""

import http.client
import json
import os
import urllib.request
from typing import Annotated, Any

import typer

from shared.runtime.stack_state import Phase, StackError, StackState
from treadle.cli.up import Home
from treadle.stack.home import home_path
from treadle.stack.operate import current_state
from treadle.stack.services import PROXY

NOT_UP = 3
"""Exit status when no stack is up: that of an init script for a stopped program (LSB)."""
HEALTH_TIMEOUT_S = 3.0
MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    home: Home = None,
) -> None:
    """Show every service of the stack: process, address, state, restarts. Show use of the stores, and problems.

    Exit status 3 when no stack is up.
    """
    root = home.absolute() if home else home_path(os.environ)
    try:
        state = current_state(root)
    except StackError as error:
        typer.echo(f"treadle status: {error}", err=True)
        raise typer.Exit(1) from error
    health = proxy_health(state) if state is not None else None
    if as_json:
        phase = state.phase if state else None
        typer.echo(json.dumps({"phase": phase, "services": _rows(state), "health": health}))
    elif state is None:
        typer.echo(f"no stack is up in {root}: start one with treadle up")
    else:
        _show(state)
        _show_health(health)
    if state is None:
        raise typer.Exit(NOT_UP)


def proxy_health(state: StackState) -> dict[str, Any] | None:
    """Return `/v1/health` of the stack's proxy. None: there is no proxy, or it does not answer within 3 s."""
    url = next((one.url for one in state.services if one.name == PROXY), None)
    if url is None:
        return None
    try:
        with urllib.request.urlopen(f"{url}/v1/health", timeout=HEALTH_TIMEOUT_S) as answer:
            health = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return health if isinstance(health, dict) else None


def _show_health(health: dict[str, Any] | None) -> None:
    """Print the use of the stores and the problems."""
    if health is None:
        return
    fills = []
    if (used := health["valkey"]["used_bytes"]) is not None:
        bound = health["valkey"]["bound_bytes"]
        fills.append(f"valkey {used / MEBIBYTE:.0f} MiB" + (f" of {bound / MEBIBYTE:.0f} MiB" if bound else ""))
    if (disk := health["disk"]) is not None:
        fills.append(f"disk {disk['free_bytes'] / GIBIBYTE:.1f} of {disk['total_bytes'] / GIBIBYTE:.1f} GiB free")
    if fills:
        typer.echo("; ".join(fills))
    for problem in health["problems"]:
        typer.echo(f"problem: {problem}")


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
