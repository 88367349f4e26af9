"""``treadle services``."""

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import exit_status
from treadle.cli.up import Home
from treadle.client.answers import EngineView, ModelServiceView

STYLES = {
    "resident": "green",
    "running": "bold green",
    "quarantined": "bold red",
    "unknown": "red",
    "loading": "yellow",
    "restoring": "yellow",
    "draining": "yellow",
    "evicting": "yellow",
}


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(services)
    app.command("ls")(ls)
    app.command("watch")(watch)


def services(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show and watch model services: reward models, judges and teachers that share GPUs.

    Actions name them: "kind": "model.judge", "params": {"service": "judge-a", ...}. Exit status: 3 no stack answers.
    """
    context.obj = GroupOptions(url, home, as_json)
    if context.invoked_subcommand is None:
        ls(context, as_json, url, home)


def ls(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """List the model services with their engines. It wakes no engine."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services ls"):
        views = options.call(lambda client: client.model_services.all())
        if options.as_json:
            typer.echo(msgspec.json.encode({"services": views}))
        elif not views:
            typer.echo("there is no model service; declare some in the file GPU_MANAGER_SERVICES of a GPU manager")
        else:
            Console().print(_table(views))


def watch(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Show all model services until Ctrl-C. With --json: each look is one line."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services watch"):
        while options.as_json:
            typer.echo(msgspec.json.encode({"services": options.call(lambda client: client.model_services.all())}))
            time.sleep(seconds)
    with exit_status("services watch"), Live(_table([]), console=Console(), auto_refresh=False) as live:
        while True:
            live.update(_table(options.call(lambda client: client.model_services.all())), refresh=True)
            time.sleep(seconds)


def _table(views: Sequence[ModelServiceView]) -> Table:
    """One line for each engine, and one for each service without any."""
    table = Table(pad_edge=False, box=None)
    for title, justify in (
        ("SERVICE", "left"),
        ("NODE", "left"),
        ("GPUS", "left"),
        ("STATE", "left"),
        ("FOR", "right"),
        ("RUNNING", "right"),
        ("WAITING", "right"),
        ("GB", "right"),
        ("RESTORE", "right"),
        ("WHY", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]  # a literal
    now = time.time()
    for view in views:
        for one in view.engines:
            table.add_row(escape(view.name), *_row(one, now))
        if not view.engines:
            nodes = ", ".join(view.nodes)
            table.add_row(escape(view.name), escape(nodes), "", "cold", "", "", "", "", "", "no action has needed it")
    return table


def _row(one: EngineView, now: float) -> tuple[str, ...]:
    first, last = min(one.gpus, default=0), max(one.gpus, default=0)
    state = f"{one.state} ({one.level})" if one.level else one.state
    style = STYLES.get(one.state, "")
    restores = [took for name, took in one.measured_s.items() if name.startswith(("restore", "load"))]
    return (
        escape(one.node),
        str(first) if first == last else f"{first}-{last}",
        f"[{style}]{escape(state)}[/]" if style else escape(state),
        _age(now - one.since),
        str(one.running or ""),
        str(one.waiting or ""),
        f"{one.device_gb:.1f}" if one.device_gb else "",
        f"{min(restores):.1f} s" if restores else "",
        escape(one.why),
    )


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
