"""``treadle services``."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Group
from rich.markup import escape

from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import WRONG, CommandFailed, exit_status
from treadle.cli.tables import Column, ReasonTable, output, printable, printable_json
from treadle.cli.up import Home
from treadle.cli.watching import watch_lines, watch_tables
from treadle.client.answers import EngineView, GpuView, ModelServiceList, ModelServiceView
from treadle.client.errors import NotFound

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the service.", show_default=False)]
MOST_BYTES = 256 << 10
"""Longest declaration that the proxy accepts."""
STYLES = {
    "resident": "green",
    "running": "bold green",
    "quarantined": "bold red",
    "unknown": "red",
    "loading": "yellow",
    "restoring": "yellow",
    "draining": "yellow",
    "evicting": "yellow",
    "held": "green",
    "releasing": "yellow",
    "acquiring": "yellow",
}


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(services)
    app.command("ls")(ls)
    app.command("watch")(watch)
    app.command("show")(show)
    app.command("set")(set_service)
    app.command("rm")(rm)


def services(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show and watch model services: reward models, judges and teachers that share GPUs.

    Actions name them: "kind": "model.judge", "params": {"service": "judge-a", ...}. Exit status: 2 a name or
    a declaration is wrong; 3 no stack answers.
    """
    context.obj = GroupOptions(url, home, as_json)
    if context.invoked_subcommand is None:
        ls(context, as_json, url, home)


def ls(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """List the model services with their engines. It wakes no engine."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services ls"):
        found = options.call(lambda client: client.model_services.overview())
        if options.as_json:
            typer.echo(msgspec.json.encode(found))
        elif not found.services:
            typer.echo(
                "there is no model service; declare some in the file GPU_MANAGER_SERVICES of a GPU manager. "
                "One runs where there are GPUs, or where GPU_MANAGER_DEVICES describes some"
            )
        else:
            output().print(_overview(found), crop=False)


def watch(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(help="Between two looks.", min=0.1)] = 1.0,
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Show all model services until Ctrl-C. With --json: each look is one line."""
    options = GroupOptions.of(context, url, home, as_json)

    def look() -> ModelServiceList:
        return options.call(lambda client: client.model_services.overview())

    with exit_status("services watch"):
        if options.as_json:
            watch_lines(lambda: msgspec.json.encode(look()), seconds)
        watch_tables(lambda: _overview(look()), seconds)


def show(context: typer.Context, name: Name, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show one model service: its entry, its engines, and nodes that cannot use it. It wakes no engine."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services show"):
        try:
            view = options.call(lambda client: client.model_services.view(name))
        except NotFound as error:  # its message is for callers of the API
            how = f"in the file GPU_MANAGER_SERVICES of a GPU manager, or with treadle services set {name} FILE"
            raise CommandFailed(f"no model service {name!r}; declare it {how}", WRONG) from error
        _show(view, options.as_json)


def set_service(
    context: typer.Context,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON file; `-`: standard input.", show_default=False)],
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Declare a model service, or change it.

    FILE: {"entry": "judge-a", "concurrency": 8} refers to an entry of the file of a GPU manager. A whole entry needs
    GPU_MANAGER_ALLOW_COMMANDS=true there.
    """
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services set"):
        declaration = _declaration(file)
        _show(options.call(lambda client: client.model_services.set(name, declaration)), options.as_json)


def rm(context: typer.Context, name: Name, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Remove a declaration. Engines of the service are drained and stopped."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("services rm"):
        try:
            options.call(lambda client: client.model_services.view(name))  # a delete of the API is idempotent
        except NotFound as error:
            raise CommandFailed(f"no model service {name!r}; treadle services ls lists all", WRONG) from error
        options.call(lambda client: client.model_services.delete(name))
        typer.echo(msgspec.json.encode({"name": name}) if options.as_json else f"{name} is removed")


def _declaration(file: str) -> dict[str, Any]:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read ({error.strerror})", 2) from error
    if len(content) > MOST_BYTES:
        raise CommandFailed(f"{file} is longer than {MOST_BYTES} bytes", 2)
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CommandFailed(f'{file} is no JSON object such as {{"entry": "judge-a"}}: {error}', 2) from error


def _show(view: ModelServiceView, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(view))
        return
    console = output()
    console.print(_table([view]), crop=False)
    refers = f", refers to {view.refers_to}" if view.refers_to else ""
    console.print(escape(printable(f"declared by {view.source}{refers}")))
    lines = [f"{problem.node} cannot use it: {problem.why}" for problem in view.problems]
    if view.pending:
        lines.insert(0, f"not applied yet by {', '.join(view.pending)}: each does at its next heartbeat")
    if view.entry is not None:
        fields = msgspec.to_builtins(view.entry)
        shown = {name: value for name, value in fields.items() if value not in ({}, [])}
        console.print(printable_json(shown), soft_wrap=True)
    elif view.pending:
        lines.insert(0, "its entry is shown when a node has applied its declaration")
    for line in lines:
        console.print(escape(printable(line)))


def _overview(found: ModelServiceList) -> Group:
    """Services with their engines, and the GPUs of nodes that give some away."""
    special = [one for one in found.gpus if one.ownership or one.why]  # with hooks, or faulty
    return Group(_table(found.services), "", _gpus(special)) if special else Group(_table(found.services))


def _gpus(gpus: Sequence[GpuView]) -> ReasonTable:
    table = ReasonTable(Column("NODE"), Column("GPU"), Column("OWNERSHIP"), Column("NAME"))
    for one in gpus:
        shown = _styled(one.ownership, one.ownership)
        table.add_row((escape(one.node), str(one.number), shown, escape(one.name)), one.why)
    return table


def _table(views: Sequence[ModelServiceView]) -> ReasonTable:
    """One row for each engine, and one for each service without any."""
    table = ReasonTable(
        Column("SERVICE"),
        Column("NODE", below=1),
        Column("GPUS", below=4),
        Column("STATE"),
        Column("FOR", "right", below=7),
        Column("RUNNING", "right", below=6),
        Column("WAITING", "right", below=5),
        Column("GB", "right", below=3),
        Column("RESTORE", "right", below=2),
    )
    now = time.time()
    for view in views:
        for one in view.engines:
            table.add_row((escape(view.name), *_row(one, now)), one.why)
        if not view.engines:
            nodes = ", ".join(view.nodes) or ("none yet" if view.pending else "")
            cells = (escape(view.name), escape(nodes), "", _styled(view.state, view.state), *[""] * 5)
            table.add_row(cells, view.why)
    return table


def _row(one: EngineView, now: float) -> tuple[str, ...]:
    first, last = min(one.gpus, default=0), max(one.gpus, default=0)
    state = f"{one.state} ({one.level})" if one.level else one.state
    restores = [took for name, took in one.measured_s.items() if name.startswith(("restore", "load"))]
    return (
        escape(one.node),
        str(first) if first == last else f"{first}-{last}",
        _styled(one.state, state),
        _age(now - one.since),
        str(one.running or ""),
        str(one.waiting or ""),
        f"{one.device_gb:.1f}" if one.device_gb else "",
        f"{min(restores):.1f} s" if restores else "",
    )


def _styled(state: str, text: str) -> str:
    """Return a text in the style of a state."""
    style = STYLES.get(state, "")
    return f"[{style}]{escape(text)}[/]" if style else escape(text)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
