"""``treadle tenants``."""

import json
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from shared.runtime.numbers import number
from treadle.cli.groups import AsJson, GroupOptions, Url
from treadle.cli.proxy import exit_status
from treadle.cli.up import Home
from treadle.client.answers import TenantView

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.", show_default=False)]


def register(app: typer.Typer) -> None:
    app.callback(invoke_without_command=True)(tenants)
    app.command("set")(set_weight)
    app.command("delete")(delete)


def tenants(context: typer.Context, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Show the tenants whose weight was set; set a weight, or reset it.

    While several tenants have waiting work, each gets units in proportion to its weight. A tenant without one has
    weight 1. Exit status: 2 the name or the weight is wrong; 3 no stack answers.
    """
    context.obj = options = GroupOptions(url, home, as_json)
    if context.invoked_subcommand is None:
        with exit_status("tenants"):
            _show(options.call(lambda client: client.tenants.weights()), as_json)


def set_weight(
    context: typer.Context,
    name: Name,
    weight: Annotated[float, typer.Option(help="From 0.001 to 1000.", show_default=False)],
    as_json: AsJson = False,
    url: Url = None,
    home: Home = None,
) -> None:
    """Set a tenant's weight: 2 gives it twice the share of a tenant with weight 1.

    It applies to grants after it, within a few seconds.
    """
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("tenants set"):
        view = options.call(lambda client: client.tenants.set_weight(name, weight))
        typer.echo(msgspec.json.encode(view) if options.as_json else f"{view.name} has weight {number(view.weight)}")


def delete(context: typer.Context, name: Name, as_json: AsJson = False, url: Url = None, home: Home = None) -> None:
    """Reset a tenant's weight to 1. Its work and its answers stay."""
    options = GroupOptions.of(context, url, home, as_json)
    with exit_status("tenants delete"):
        options.call(lambda client: client.tenants.reset_weight(name))
        typer.echo(json.dumps({"name": name, "weight": 1.0}) if options.as_json else f"{name} has weight 1")


def _show(views: Sequence[TenantView], as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode({"tenants": views}))
    elif not views:
        typer.echo("no weight was set: every tenant has weight 1")
    else:
        width = max(6, *(len(view.name) for view in views))
        typer.echo(f"{'TENANT':<{width}} {'WEIGHT':>8}")
        for view in views:
            typer.echo(f"{view.name:<{width}} {view.weight:>8g}")
