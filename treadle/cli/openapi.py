"""``treadle openapi``."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.runtime.settings import WrongSetting
from treadle.cli.breaking import breaking_changes
from treadle.stack.services import PROXY, SERVICES


def register(app: typer.Typer) -> None:
    app.command("openapi")(openapi)


def openapi(
    out: Annotated[Path | None, typer.Option(help="Write it there instead of printing it.")] = None,
    since: Annotated[
        Path | None, typer.Option(help="Print what breaks clients of this older document instead; exit with 1 if any.")
    ] = None,
) -> None:
    """Print the proxy's OpenAPI 3.1 document: what clients are generated from. Needs no running stack."""
    try:
        now = proxy_document()
    except WrongSetting as error:
        typer.echo(f"treadle openapi: {error}", err=True)
        raise typer.Exit(1) from error
    if since is not None:
        _compare(since, now)
        return
    document = json.dumps(now, indent=2, sort_keys=True)
    if out is None:
        typer.echo(document)
        return
    try:
        out.write_text(document + "\n")
    except OSError as error:
        typer.echo(f"treadle openapi: cannot write {out}: {error.strerror}", err=True)
        raise typer.Exit(1) from error


def _compare(since: Path, now: dict[str, Any]) -> None:
    try:
        broken = breaking_changes(json.loads(since.read_text()), now)
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        typer.echo(f"treadle openapi: {since} is no OpenAPI document: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo("\n".join(broken) if broken else f"no client of {since} breaks")
    if broken:
        raise typer.Exit(1)


def proxy_document() -> dict[str, Any]:
    """The document; the proxy's app is made for it, but not started. About a second, for its imports."""
    module, _, attribute = next(spec.factory for spec in SERVICES if spec.name == PROXY).partition(":")
    document: dict[str, Any] = getattr(importlib.import_module(module), attribute)().openapi()
    return document
