"""``treadle openapi``."""

import importlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.cli.breaking import breaking_changes
from treadle.mesh import extra_is_installed


def register(app: typer.Typer) -> None:
    app.command("openapi")(openapi)


def openapi(
    out: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
    since: Annotated[
        Path | None, typer.Option(help="Print what breaks clients of this older document instead; exit with 1 if any.")
    ] = None,
) -> None:
    """Print the proxy's OpenAPI 3.1 document, which clients are generated from. Needs no running stack."""
    try:
        document = proxy_document() if extra_is_installed() else packed_document()
    except ValueError as error:  # a setting of the proxy
        typer.echo(f"treadle openapi: {error}", err=True)
        raise typer.Exit(1) from error
    if since is not None:
        _compare(since, document)
        return
    text = json.dumps(document, indent=2, sort_keys=True)
    if out is None:
        typer.echo(text)
        return
    try:
        out.write_text(text + "\n")
    except OSError as error:
        typer.echo(f"treadle openapi: cannot write {out}: {error.strerror}", err=True)
        raise typer.Exit(1) from error


def _compare(since: Path, document: dict[str, Any]) -> None:
    try:
        broken = breaking_changes(json.loads(since.read_text()), document)
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        typer.echo(f"treadle openapi: {since} is no OpenAPI document: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo("\n".join(broken) if broken else f"no client of {since} breaks")
    if broken:
        raise typer.Exit(1)


def proxy_document() -> dict[str, Any]:
    """Return the document of the proxy's app, which is created but not started. Takes about 1 s for the imports.

    Raises:
        WrongSetting: an environment variable of the proxy cannot be read.
    """
    from treadle.stack.services import PROXY, SERVICES

    module, _, attribute = next(spec.factory for spec in SERVICES if spec.name == PROXY).partition(":")
    document: dict[str, Any] = getattr(importlib.import_module(module), attribute)().openapi()
    return document


def packed_document() -> dict[str, Any]:
    """Return the document of this release: `treadle/openapi.json` of a wheel, docs/openapi.json of the checkout."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "openapi.json"
    file = packed if packed.is_file() else package.parent / "docs" / "openapi.json"
    document: dict[str, Any] = json.loads(file.read_text())
    return document
