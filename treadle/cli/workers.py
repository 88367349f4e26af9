"""``treadle workers``."""

import asyncio
import json
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import aiohttp
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from yarl import URL

from treadle.cli.groups import AsJson
from treadle.cli.proxy import NOT_UP, WRONG, CommandFailed, exit_status
from treadle.cli.up import Home
from treadle.cli.watching import watch_lines, watch_tables
from treadle.stack.home import home_path
from treadle.stack.operate import current_state

ROUTER: Final = "trajectory_router"
LIMIT_S: Final = 40.0
"""A registration waits for an engine that is starting."""

Url = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Address of a router; default: TRAJECTORY_ROUTER_URL, else the running stack's."),
]
Key = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Operator's key of the router.",
        envvar="TRAJECTORY_ROUTER_OPERATOR_KEY",
        show_envvar=True,
        show_default=False,
    ),
]
Worker = Annotated[str, typer.Argument(metavar="WORKER", help="Id or address of a worker.", show_default=False)]


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(workers)
    app.command("ls")(ls)
    app.command("add")(add)
    app.command("drain")(drain)
    app.command("rm")(remove)
    app.command("watch")(watch)


class RouterCalls:
    """Calls of a router's `/workers`."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url.rstrip("/")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Make a call and return the JSON of its answer.

        Raises:
            CommandFailed: no router answers, or it has refused the call.
        """
        try:
            status, text = asyncio.run(self._call(method, path, body))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise CommandFailed(
                f"no router answers at {self._url}: {str(error) or type(error).__name__}", NOT_UP
            ) from error
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise CommandFailed(f"{self._url} is no router of treadle: it answers {status}", WRONG) from error
        if status >= HTTPStatus.BAD_REQUEST:
            raise CommandFailed(str(document.get("detail", document)), WRONG)
        return document

    async def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, str]:
        timeout = aiohttp.ClientTimeout(total=LIMIT_S)
        async with (
            aiohttp.ClientSession(headers=self._headers, timeout=timeout) as http,
            http.request(method, URL(self._url + path, encoded=True), json=body) as response,
        ):
            return response.status, await response.text()


class WorkerOptions:
    """WorkerOptions of the group, which a command may repeat."""

    def __init__(self, url: str | None, key: str | None, home: Path | None, as_json: bool) -> None:
        self.url, self.key, self.home, self.as_json = url, key, home, as_json

    @classmethod
    def of(
        cls, context: typer.Context, url: str | None, key: str | None, home: Path | None, as_json: bool
    ) -> "WorkerOptions":
        """Return the options of a command, else those of its group."""
        group: WorkerOptions | None = context.obj
        if group is None:
            return cls(url, key, home, as_json)
        return cls(url or group.url, key or group.key, home or group.home, as_json or group.as_json)

    def calls(self) -> RouterCalls:
        """Return the calls of the router that the options name.

        Raises:
            CommandFailed: no address is given, and no stack with a router is up.
        """
        return RouterCalls(self.url or find_router(self.home), self.key)


def find_router(home: Path | None) -> str:
    """Return the address of the running stack's router.

    Raises:
        CommandFailed: no stack with a router is up.
    """
    if url := os.environ.get("TRAJECTORY_ROUTER_URL"):
        return url
    state = current_state(home.absolute() if home else home_path(os.environ))
    for service in state.services if state else ():
        if service.name == ROUTER and service.url:
            return service.url
    raise CommandFailed(
        "no stack with a router is up: start one with treadle up --detach, or name a router: TRAJECTORY_ROUTER_URL "
        "(treadle workers: --url)",
        NOT_UP,
    )


def workers(
    context: typer.Context, as_json: AsJson = False, url: Url = None, key: Key = None, home: Home = None
) -> None:
    """Show, add, drain and remove inference engines behind the trajectory router.

    Clients call the router as they would call an engine: http://ROUTER/v1/chat/completions. Exit status: 2 a worker or
    the key is wrong; 3 no router answers.
    """
    context.obj = WorkerOptions(url, key, home, as_json)
    if context.invoked_subcommand is None:
        ls(context, as_json, url, key, home)


def ls(context: typer.Context, as_json: AsJson = False, url: Url = None, key: Key = None, home: Home = None) -> None:
    """List the workers, their states and what they do."""
    options = WorkerOptions.of(context, url, key, home, as_json)
    with exit_status("workers ls"):
        listed = options.calls().call("GET", "/workers")
        if options.as_json:
            typer.echo(json.dumps(listed))
        elif not listed["workers"]:
            typer.echo("there is no worker; add one with treadle workers add http://HOST:PORT")
        else:
            Console().print(_table(listed))


def add(
    context: typer.Context,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="http://HOST:PORT", show_default=False)],
    most_calls: Annotated[int | None, typer.Option(help="Most calls in flight.", min=1, show_default=False)] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="Capacity of its KV cache in tokens. [default: detected]", min=1, show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The one model that it serves.", show_default=False)] = None,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
    home: Home = None,
) -> None:
    """Add an engine, or add it again after its restart. Waits up to 30 s for one that is starting.

    A vLLM server: treadle workers add http://127.0.0.1:8000 --most-calls 256
    """
    options = WorkerOptions.of(context, url, key, home, as_json)
    body = {"url": address, "most_calls": most_calls, "kv_tokens": kv_tokens, "model_id": model}
    with exit_status("workers add"):
        given = {name: value for name, value in body.items() if value is not None}
        _print_accepted(options, options.calls().call("POST", "/workers", given))


def drain(
    context: typer.Context, worker: Worker, as_json: AsJson = False, url: Url = None, key: Key = None, home: Home = None
) -> None:
    """Drain a worker: it finishes its calls and gets no new ones. `add` ends this."""
    options = WorkerOptions.of(context, url, key, home, as_json)
    with exit_status("workers drain"):
        _print_accepted(options, options.calls().call("POST", f"/workers/{quote(worker, safe='')}/drain"))


def remove(
    context: typer.Context, worker: Worker, as_json: AsJson = False, url: Url = None, key: Key = None, home: Home = None
) -> None:
    """Remove a worker. Its running calls go on to their end."""
    options = WorkerOptions.of(context, url, key, home, as_json)
    with exit_status("workers rm"):
        _print_accepted(options, options.calls().call("DELETE", f"/workers/{quote(worker, safe='')}"))


def watch(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
    url: Url = None,
    key: Key = None,
    home: Home = None,
) -> None:
    """Show all workers until Ctrl-C. With --json: each look is one line."""
    options = WorkerOptions.of(context, url, key, home, as_json)
    with exit_status("workers watch"):
        calls = options.calls()
        if options.as_json:
            watch_lines(lambda: json.dumps(calls.call("GET", "/workers")), seconds)
        watch_tables(lambda: _table(calls.call("GET", "/workers")), seconds)


def _print_accepted(options: WorkerOptions, accepted: Mapping[str, Any]) -> None:
    typer.echo(
        json.dumps(accepted)
        if options.as_json
        else f"{accepted['url']} ({accepted['worker_id']}): {accepted['message']}"
    )


def _table(listed: Mapping[str, Any]) -> Table:
    """One line for each worker."""
    table = Table(pad_edge=False, box=None)
    for title in ("WORKER", "ADDRESS", "ENGINE", "STATE"):
        table.add_column(title)
    for title in ("CALLS", "WAITING", "TRAJECTORIES", "KV RESERVED"):
        table.add_column(title, justify="right")
    for one in listed["workers"]:
        cap = "" if one["most_calls"] is None else f"/{one['most_calls']}"
        kv = "" if not one["kv_tokens"] else f"{one['kv_reserved'] / one['kv_tokens']:.0%} of {one['kv_tokens']:,}"
        state = one["state"] or "unknown"
        table.add_row(
            one["id"], one["url"], one["engine"], state, f"{one['in_flight']}{cap}", str(one["waiting"] or ""),
            str(one["trajectories"]), kv,
        )  # fmt: skip
        if one["reason"] and state != "ready":
            table.add_row("", escape(one["reason"]))
    return table
